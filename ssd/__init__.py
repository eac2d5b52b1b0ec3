"""Shared core of the server; imports none of the services."""
