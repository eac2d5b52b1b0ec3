"""Model families, their configuration, and everything between a directory of weights and a loaded model."""
