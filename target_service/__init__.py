"""The target: verifies proposals, draws every token that is emitted, and owns the KV cache of committed tokens."""
