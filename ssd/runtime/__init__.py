"""What runs a model: paged KV cache, block pool with a prefix index, and the runner of one step."""
