"""The `ssd` command: the only part of the project that prints."""
