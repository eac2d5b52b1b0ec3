"""How many requests may be live at once, by count and by tokens. More are refused at once rather than queued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from router.plan import Plan
from ssd.rpc.status import exhausted, invalid

RETRY_S = 1.0


class Admission:
    """Counts live requests and the tokens that they may come to hold."""

    def __init__(self, max_live: int, max_live_tokens: int) -> None:
        self.live = 0
        self.tokens = 0  # prompt + output limits
        self.prompt_tokens = 0
        self._max_live = max_live
        self._max_live_tokens = max_live_tokens

    def check(self) -> None:
        """Raise ApiError when no request can be taken now: before the work of tokenizing one."""
        if self.live >= self._max_live:
            raise exhausted(f"{self.live} requests are live, at most {self._max_live}", RETRY_S)

    @contextmanager
    def admit(self, plan: Plan) -> Iterator[None]:
        """Hold a place. Raises ApiError: RESOURCE_EXHAUSTED when full now, INVALID_ARGUMENT for what can never fit."""
        tokens = plan.most_tokens
        if tokens > self._max_live_tokens:
            raise invalid(
                "stop.max_tokens",
                f"prompt and output may come to {tokens} tokens; this server holds {self._max_live_tokens} in all",
            )
        self.check()
        if self.tokens + tokens > self._max_live_tokens:
            raise exhausted(
                f"live requests may come to {self.tokens} tokens; {tokens} more would pass {self._max_live_tokens}",
                RETRY_S,
            )
        self._count(1, plan)
        try:
            yield
        finally:
            self._count(-1, plan)

    def _count(self, sign: int, plan: Plan) -> None:
        self.live += sign
        self.tokens += sign * plan.most_tokens
        self.prompt_tokens += sign * len(plan.prompt)
