"""Benchmarks: programs that print a table and write JSON. Nothing here is needed to serve."""
