"""The identity of one process incarnation."""

import secrets


def new_epoch() -> int:
    """A random non-zero 63-bit number: two incarnations never share one in practice."""
    return secrets.randbits(62) + 1
