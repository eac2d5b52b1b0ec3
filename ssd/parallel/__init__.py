"""One model over several processes: rank 0 serves, the others make the same calls."""
