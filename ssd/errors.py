"""Errors that a user can act on; the services turn them into gRPC statuses."""

from __future__ import annotations


class FieldError(ValueError):
    """A request field whose value cannot be honoured.

    `field` is the field's name in the public API; `message` says what is wrong and what would be accepted.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str]]:
        return type(self), (self.field, self.message)
