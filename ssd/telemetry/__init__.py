"""Logging now; metrics and tracing have their place here."""
