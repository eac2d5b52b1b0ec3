"""The contracts, and the stubs generated from them."""
