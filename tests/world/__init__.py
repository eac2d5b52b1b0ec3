"""The whole system in one process and in virtual time: real engines and coordinator, a network that may misbehave."""
