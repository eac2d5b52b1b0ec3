"""What a step has to say: one message for each stream, whatever the number of its sequences."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeVar

from protos.ssd.v1 import types_pb2

Message = TypeVar("Message", bound=Any)  # a protobuf envelope with the field `refused`


class Status(IntEnum):
    """The google.rpc.Code numbers of refusals."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    OUT_OF_RANGE = 11
    INTERNAL = 13


class Mail(Generic[Message]):
    """Responses being written, by stream."""

    def __init__(self, envelope: Callable[[], Message]) -> None:
        """`envelope` makes an empty message."""
        self._envelope = envelope
        self._responses: dict[int, Message] = {}

    def __bool__(self) -> bool:
        return bool(self._responses)

    def to(self, stream: int) -> Message:
        """The message to a stream, to add to."""
        if stream not in self._responses:
            self._responses[stream] = self._envelope()
        return self._responses[stream]

    def refuse(self, stream: int, sequence: int, status: Status, reason: str) -> None:
        self.to(stream).refused.append(types_pb2.Refused(sequence=sequence, status=status, message=reason))

    def discard(self, stream: int) -> None:
        """Nobody is left to read it."""
        self._responses.pop(stream, None)

    def collect(self) -> dict[int, Message]:
        """All messages; the next ones start empty."""
        responses, self._responses = self._responses, {}
        return responses
