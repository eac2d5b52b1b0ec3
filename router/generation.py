"""One generation from request to last message; what Generate, GenerateStream and the warm-up share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from protos.ssd.v1 import inference_pb2, types_pb2
from router import validation
from router.admission import Admission
from router.detokenizer import Detokenizers
from router.hub import Hub
from router.metrics import mode_name
from router.plan import Plan
from router.session import Session
from router.stops import StopTexts
from router.tokenization import Tokenization
from ssd.config import RouterConfig
from ssd.rpc.status import ApiError, unavailable
from ssd.telemetry.metrics import RequestTimes

Send = Callable[[inference_pb2.GenerateStreamResponse], Awaitable[None]]

# The first generation on a fresh target may have kernels to compile.
WARM_UP_WITHIN_S = 60.0


@dataclass
class Generations:
    """Checks requests, has them served by the hub, and sends what comes. `name`: the model's, as clients call it."""

    config: RouterConfig
    name: str
    tokenization: Tokenization
    hub: Hub
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.config.max_live, self.config.max_live_tokens)
        self._detokenizers = Detokenizers(self.tokenization.tokenizer)

    @property
    def limits(self) -> validation.Limits:
        """What the targets can take. Raises ApiError (UNAVAILABLE) before the first one has answered."""
        if self.hub.limits is None:
            raise unavailable("STARTING", "no target has answered yet")
        return self.hub.limits

    async def run(self, request: inference_pb2.GenerateRequest, remaining_s: float | None, send: Send) -> None:
        """Send every message of a generation, within `remaining_s`. Raises ApiError.

        However this is left (end, deadline, cancellation, a failing `send`), target and draft are told at once.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        delivery = None
        try:
            async with asyncio.timeout(remaining_s) as leash:
                self.admission.check()
                checked, plan = await self._prepare(request)
                request_id = request.request_id or uuid.uuid4().hex
                session = self._session(request, request_id, checked, plan)
                times = RequestTimes(self.hub.metrics, mode_name(plan.mode), begun)
                with self.admission.admit(plan), self.hub.generation(request_id, plan, session, times) as delivery:
                    delivery.cut = lambda: None if leash.expired() else leash.reschedule(loop.time())
                    if checked.time_limit_s is not None:
                        delivery.limit_time(begun + checked.time_limit_s, lambda: self._time_is_up(request_id))
                    while (message := await delivery.next()) is not None:
                        await send(message)
        except TimeoutError:
            if delivery is not None and delivery.error is not None:
                raise delivery.error from None
            raise ApiError(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline passed") from None

    async def warm_up(self) -> None:
        """One token through a target, by the way of every request but admission. Raises ApiError when that fails."""
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=[0]), stop=inference_pb2.StopParameters(max_tokens=1)
        )
        checked, plan = await self._prepare(request)
        request_id = uuid.uuid4().hex
        session = self._session(request, request_id, checked, plan)
        try:
            async with asyncio.timeout(WARM_UP_WITHIN_S):
                with self.hub.generation(request_id, plan, session) as delivery:
                    while await delivery.next() is not None:
                        continue
        except TimeoutError:
            message = f"no token within {WARM_UP_WITHIN_S:g} s"
            raise ApiError(grpc.StatusCode.DEADLINE_EXCEEDED, message) from None

    async def _prepare(self, request: inference_pb2.GenerateRequest) -> tuple[validation.Checked, Plan]:
        validation.check_model(request.model, self.name)
        checked = validation.check(request, self.config, self.limits)
        kind = request.WhichOneof("input")
        if kind == "text":
            prompt = await self.tokenization.of_text(request.text, self.limits.context)
        elif kind == "chat":
            prompt = await self.tokenization.of_chat(request.chat, self.limits.context)
        else:
            prompt = list(request.token_ids.ids)
        return checked, checked.plan(prompt, kind or "input")

    def _session(
        self, request: inference_pb2.GenerateRequest, request_id: str, checked: validation.Checked, plan: Plan
    ) -> Session:
        start = inference_pb2.GenerationStart(
            request_id=request_id, model=self.name, seed=plan.sampling.seed, prompt_tokens=len(plan.prompt)
        )
        return Session(
            start=start,
            mode=plan.mode,
            detokenizer=self._detokenizers.new(checked.special_tokens),
            stops=StopTexts(request.stop.texts, include=request.stop.include_stop_text),
            min_tokens=request.stop.min_tokens,
        )

    def _time_is_up(self, request_id: str) -> None:
        self.hub.end(request_id, types_pb2.FINISH_REASON_TIME_LIMIT)
