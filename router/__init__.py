"""The router: public API, sessions, owner of the speculation cache. Runs on asyncio, without GPU and torch."""
