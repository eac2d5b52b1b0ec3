"""Streams that are read on threads, so that things can happen meanwhile."""

import threading
import time

import grpc

from protos.ssd.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from ssd.rpc.options import CHANNEL_OPTIONS
from tests.system import peers
from tests.system.services import System


def request(
    mode: types_pb2.Mode, tokens: int, request_id: str = "", *, seed: int = 7, **speculation: object
) -> inference_pb2.GenerateRequest:
    """`tokens` ids after a short text. `speculation`: further fields of SpeculationParameters."""
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        text="once upon a time",
        sampling=types_pb2.SamplingParameters(temperature=0.8, seed=seed),
        stop=inference_pb2.StopParameters(max_tokens=tokens, ignore_eos=True),
        speculation=inference_pb2.SpeculationParameters(mode=mode, **speculation),  # type: ignore[arg-type]
    )


class Reading:
    """A stream that is read on a thread. `times`: monotonic seconds at which each message with ids arrived."""

    def __init__(self, system: System, asked: inference_pb2.GenerateRequest) -> None:
        self.ids: list[int] = []
        self.times: list[float] = []
        self.usage = inference_pb2.Usage()
        self.error: grpc.RpcError | None = None
        self._channel = grpc.insecure_channel(system.address, options=CHANNEL_OPTIONS)
        self._call = inference_pb2_grpc.InferenceServiceStub(self._channel).GenerateStream(asked, timeout=120)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                if message.token_ids:
                    self.times.append(time.monotonic())
                self.ids.extend(message.token_ids)
                self.usage.MergeFrom(message.usage)
        except grpc.RpcError as error:
            self.error = error

    @property
    def alive(self) -> bool:
        """Whether the stream goes on."""
        return self._thread.is_alive()

    def at_least(self, count: int) -> None:
        peers.eventually(lambda: len(self.ids) >= count or not self.alive, f"{count} tokens")

    def end(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self.error is None, repr(self.error)
        self._channel.close()

    def cancel(self) -> None:
        """Want no more of it; `ids` keeps what has come."""
        assert self.alive, f"the stream ended by itself: {self.error!r}"
        self._call.cancel()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._channel.close()

    @property
    def hit_rate(self) -> float:
        """Of the rounds whose outcome could have been anticipated."""
        return self.usage.hits / max(1, self.usage.hits + self.usage.misses)
