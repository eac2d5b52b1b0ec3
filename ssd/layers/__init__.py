"""Layers that know how they are sharded, and attention behind one protocol."""
