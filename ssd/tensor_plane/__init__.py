"""Tensors from a draft straight to a target: laws under rejection, and whatever else is too big for messages."""
