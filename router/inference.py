"""The public InferenceService; each call is a few lines around Generations."""

from __future__ import annotations

import grpc

from protos.ssd.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from router import speculation, validation
from router.calls import statuses
from router.gate import Gate
from ssd.rpc.status import invalid
from ssd.telemetry.metrics import Metrics


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Statuses of refusals: see router.validation; of peers and deadlines: router.hub and router.generation."""

    def __init__(self, gate: Gate, metrics: Metrics) -> None:
        self._gate = gate
        self._metrics = metrics

    def _count(self, status: str) -> None:
        self._metrics.requests.labels(status).inc()

    async def GenerateStream(  # noqa: N802 - gRPC's name
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        # Written with context.write: the cleanup of an abandoned async generator would run late.
        async with statuses(context, self._count):
            await self._gate.generations.run(request, context.time_remaining(), context.write)

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.GenerateResponse:
        collected = inference_pb2.GenerateResponse()
        text: list[str] = []

        async def collect(message: inference_pb2.GenerateStreamResponse) -> None:
            text.append(message.text)
            collected.token_ids.extend(message.token_ids)
            collected.logprobs.extend(message.logprobs)
            for name in ("start", "finish", "usage"):
                if message.HasField(name):
                    getattr(collected, name).CopyFrom(getattr(message, name))

        async with statuses(context, self._count):
            await self._gate.generations.run(request, context.time_remaining(), collect)
        collected.text = "".join(text)
        return collected

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        response = inference_pb2.TokenizeResponse()
        async with statuses(context):
            core = self._gate.core
            validation.check_model(request.model, core.name)
            match request.WhichOneof("input"):
                case "text":
                    response.ids.extend(await core.tokenization.of_text(request.text, core.limits.context))
                case "chat":
                    response.ids.extend(await core.tokenization.of_chat(request.chat, core.limits.context))
                case _:
                    raise invalid("input", "one of text and chat is needed")
        return response

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        response = inference_pb2.DetokenizeResponse()
        async with statuses(context):
            core = self._gate.core
            validation.check_model(request.model, core.name)
            validation.check_ids("ids", request.ids, core.limits.vocab_size)
            response.text = core.tokenization.tokenizer.decode(request.ids, special_tokens=request.special_tokens)
        return response

    async def GetModelInfo(  # noqa: N802
        self, request: inference_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.GetModelInfoResponse:
        response = inference_pb2.GetModelInfoResponse()
        async with statuses(context):
            core = self._gate.core
            validation.check_model(request.model, core.name)
            limits = core.limits
            if (target := core.hub.target_model) is not None:
                response.model.CopyFrom(target)
            response.model.name = core.name
            response.model.context_length = limits.context
            if (draft := core.hub.draft_model) is not None:
                response.draft.CopyFrom(draft)
            defaults = speculation.defaults(core.config, limits.max_k, limits.max_branches)
            response.defaults.CopyFrom(defaults)
            response.max_k = limits.max_k
            response.max_fan_out = core.config.max_fan_out
            response.max_prompt_tokens = limits.longest_prompt
            response.max_stop_texts = validation.MAX_STOP_TEXTS
        return response

    async def Abort(  # noqa: N802
        self, request: inference_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.AbortResponse:
        response = inference_pb2.AbortResponse()
        async with statuses(context):
            hub = self._gate.core.hub
            response.was_live = hub.end(request.request_id, types_pb2.FINISH_REASON_CANCELLED)
        return response
