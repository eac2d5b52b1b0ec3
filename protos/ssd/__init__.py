"""Protobuf package `ssd`."""
