"""Between the open port and the work: until there is a way to do it, calls are answered with UNAVAILABLE."""

from __future__ import annotations

from router.generation import Generations
from router.hub import Hub
from ssd.rpc.status import ApiError, unavailable


class Gate:
    """`open` once a generation has succeeded; `close` when the process is to end."""

    def __init__(self) -> None:
        self._generations: Generations | None = None
        self._closed: ApiError | None = unavailable("STARTING", "the router is starting")

    def attach(self, generations: Generations) -> None:
        """Questions about the system can be answered; generations not yet."""
        self._generations = generations

    def open(self) -> None:
        self._closed = None

    def close(self, reason: ApiError) -> None:
        self._closed = reason

    @property
    def hub(self) -> Hub | None:
        """None while the router loads."""
        return None if self._generations is None else self._generations.hub

    @property
    def core(self) -> Generations:
        """For questions. Raises ApiError while the router loads."""
        if self._generations is None:
            raise unavailable("STARTING", "the router is loading its tokenizer")
        return self._generations

    @property
    def generations(self) -> Generations:
        """For generating. Raises ApiError while none can be begun."""
        if self._closed is not None:
            raise self._closed
        return self.core
