"""The command line's side of the public API."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import grpc

from protos.ssd.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from ssd.cli.errors import BAD_INPUT, FAILED, CliError
from ssd.rpc.options import CHANNEL_OPTIONS
from ssd.rpc.status import details_of


@dataclass
class Answer:
    """One generation as the client saw it. Times are seconds since the request was sent."""

    start: inference_pb2.GenerationStart = field(default_factory=inference_pb2.GenerationStart)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: inference_pb2.Finish = field(default_factory=inference_pb2.Finish)
    usage: inference_pb2.Usage = field(default_factory=inference_pb2.Usage)
    first_token_s: float = 0.0
    seconds: float = 0.0


class Client:
    """A connection to a router; every failure is a CliError."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def generate(
        self, request: inference_pb2.GenerateRequest, on_text: Callable[[str], None] = lambda _: None
    ) -> Answer:
        """Run one generation, handing on text as it comes.

        Whatever ends it early (Ctrl-C, a closed output), the call is cancelled: the server must not work for nobody.
        """
        answer = Answer()
        begun = time.monotonic()
        call = self._stub.GenerateStream(request, timeout=self._timeout_s)
        try:
            for message in self._messages(call, answer):
                if message.token_ids and not answer.ids:
                    answer.first_token_s = time.monotonic() - begun
                answer.ids.extend(message.token_ids)
                if message.text:
                    answer.text += message.text
                    on_text(message.text)
                answer.finish.MergeFrom(message.finish)
                answer.usage.MergeFrom(message.usage)
        finally:
            call.cancel()
        answer.seconds = time.monotonic() - begun
        return answer

    def model(self) -> types_pb2.ModelInfo:
        """The target's model."""
        try:
            return self._stub.GetModelInfo(inference_pb2.GetModelInfoRequest(), timeout=self._timeout_s).model
        except grpc.RpcError as error:
            raise self._explained(error, begun=False) from None

    def _messages(
        self, call: Iterator[inference_pb2.GenerateStreamResponse], answer: Answer
    ) -> Iterator[inference_pb2.GenerateStreamResponse]:
        try:
            for message in call:
                answer.start.MergeFrom(message.start)
                yield message
        except grpc.RpcError as error:
            raise self._explained(error, begun=bool(answer.start.request_id)) from None

    def _explained(self, error: grpc.RpcError, begun: bool) -> CliError:
        code, text = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and details_of(error) is None:
            # Without details it is not the router's word but the transport's.
            if begun:
                return CliError(f"the router at {self.address} went away in mid-answer")
            return CliError(
                f"no router answers at {self.address}; start one with `ssd up`, or name another with --address"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED and text.startswith("Method not found"):
            return CliError(f"what listens at {self.address} is no router of ssd-serve", BAD_INPUT)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            # Either side may notice first, and each says it in its own words.
            return CliError(f"DEADLINE_EXCEEDED: no complete answer within {self._timeout_s:g} s (--timeout)")
        status = BAD_INPUT if code in _USERS_FAULT else FAILED
        return CliError(f"{code.name}: {text}", status)


_USERS_FAULT = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
)
