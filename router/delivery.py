"""Between the hub, which gets outcomes, and the call, which sends them to a client at the client's own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protos.ssd.v1 import inference_pb2, target_pb2, types_pb2
from router.session import Session
from router.totals import Totals
from ssd.rpc.status import ApiError, exhausted
from ssd.telemetry.metrics import RequestTimes


class Delivery:
    """One live request. Outcomes gather in its session while the client is slow, and go out as one message.

    A client that is `buffer` outcomes behind, or only has to take the end, and takes nothing for `stall_s` is given up:
    `on_stall` frees its sequence and `cut` ends the call, which is stuck in a write.
    """

    def __init__(
        self,
        sequence: int,
        session: Session,
        buffer: int,
        stall_s: float,
        on_stall: Callable[[], None],
        times: RequestTimes | None = None,
    ) -> None:
        self.sequence = sequence
        self.session = session
        self.cut: Callable[[], object] | None = None
        self.error: ApiError | None = None
        self._buffer = buffer
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._times = times
        self._stall: asyncio.TimerHandle | None = None
        self._time_limit: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()

    @property
    def over(self) -> bool:
        """True once the end is known, even if it has not been sent."""
        return self.error is not None or self.session.finish is not None

    def feed(self, outcome: target_pb2.StepOutcome, totals: Totals) -> bool:
        """Take in an outcome; True if the generation is over."""
        ended = self.session.feed(outcome, totals)
        if self._times is not None:
            self._times.tokens(asyncio.get_running_loop().time(), len(outcome.ids))
        self._notify()
        return ended

    def placed(self) -> None:
        """A target is there for the request."""
        if self._times is not None:
            self._times.placed(asyncio.get_running_loop().time())

    def end(self, reason: types_pb2.FinishReason) -> None:
        """End with the text so far."""
        self.session.end(reason)
        self._notify()

    def fail(self, error: ApiError) -> None:
        """End with a status, after the tokens that are already here; the first end counts."""
        if not self.over:
            self.error = error
            self._notify()

    def limit_time(self, at: float, on_limit: Callable[[], None]) -> None:
        """Call on_limit at the event loop's time `at`, unless the request is over before."""
        self._time_limit = asyncio.get_running_loop().call_at(at, on_limit)

    async def next(self) -> inference_pb2.GenerateStreamResponse | None:
        """What is new, waiting for it; None after the end. Raises the ApiError that ended the generation."""
        while True:
            message = self._take()
            if message is not None:
                return message
            if self.error is not None:
                raise self.error
            if self.session.done:
                return None
            await self._news.wait()

    def release(self) -> None:
        """Nobody will ask again: no clock of this request runs on."""
        self.cut = None
        self._unwatch()
        if self._times is not None:
            finish = self.session.finish
            reason = types_pb2.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_") if finish else None
            self._times.ended(asyncio.get_running_loop().time(), reason)
        if self._time_limit is not None:
            self._time_limit.cancel()

    def _take(self) -> inference_pb2.GenerateStreamResponse | None:
        self._unwatch()
        self._news.clear()
        message = self.session.take()
        if message is not None and self.over:
            self._watch()
        return message

    def _notify(self) -> None:
        self._news.set()
        if self._stall is None and (self.over or self.session.behind >= self._buffer):
            self._watch()

    def _watch(self) -> None:
        self._stall = asyncio.get_running_loop().call_later(self._stall_s, self._stalled)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._stall = None
        self._on_stall()
        self.error = exhausted(f"the client does not read its stream: nothing taken for {self._stall_s:g} s")
        if self.cut is not None:
            self.cut()
