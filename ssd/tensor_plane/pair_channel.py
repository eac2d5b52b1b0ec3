"""A channel of headers over a link and bytes over a carrier."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.tensor_plane.channel import Broken, Bundle, Measured
from ssd.tensor_plane.framing import Header, What, flat, parts
from ssd.tensor_plane.process_group import Carrier, Link

_ECHOES = 16
_LOADS = 2
LOAD_BYTES = 4 << 20


class PairChannel:
    """One end of a plane; see Channel."""

    def __init__(self, link: Link, carrier: Carrier, device: torch.device | str = "cpu") -> None:
        """device: where the bytes of a measurement are, which is where those of hidden states would be."""
        self._link = link
        self._carrier = carrier
        self._device = device
        self._aborted = threading.Event()

    def begin_sending(self) -> Measured:
        """See Channel. The way there and back is measured by empty probes, the bandwidth by large ones."""
        echo_s = min(self._probe(0) for _ in range(_ECHOES))
        load_s = min(self._probe(LOAD_BYTES) for _ in range(_LOADS))
        measured = Measured(echo_s / 2, LOAD_BYTES / max(load_s - echo_s, 1e-9))
        nanoseconds = max(1, round(measured.latency_s * 1e9))
        self._say(Header(What.OPEN, nanoseconds, extra=round(measured.bandwidth)))
        return measured

    def begin_receiving(self) -> Measured:
        """See Channel."""
        while True:
            header, riding = self._heard()
            if header.what is What.OPEN:
                return Measured(header.number / 1e9, float(header.extra))
            if header.what is not What.PROBE:
                raise Broken("the two ends are out of step: no probe came")
            self._taken(header, riding)
            self._say(Header(What.ANSWER))

    def send(self, number: int, tensors: Sequence[Tensor]) -> None:
        """See Channel."""
        self._hand_over(*flat(number, tensors))

    def beat(self) -> None:
        """See Channel."""
        self._say(Header(What.BEAT))

    def receive(self) -> Bundle | None:
        """See Channel."""
        header, riding = self._heard()
        if header.what is What.BEAT:
            return None
        if header.what is not What.BUNDLE:
            raise Broken("the two ends are out of step: no bundle came")
        return Bundle(header.number, parts(header, self._taken(header, riding)))

    def abort(self) -> None:
        """See Channel."""
        self._aborted.set()
        self._carrier.abort()

    def _probe(self, size: int) -> float:
        """Seconds until `size` bytes were answered."""
        whole = torch.zeros(size, dtype=torch.uint8, device=self._device)
        began = time.perf_counter()
        self._hand_over(Header(What.PROBE, size=size), whole)
        if self._heard()[0].what is not What.ANSWER:
            raise Broken("the two ends are out of step: a probe was not answered")
        return time.perf_counter() - began

    def _hand_over(self, header: Header, whole: Tensor) -> None:
        if header.size <= self._carrier.rides:
            self._say(header, whole.cpu())
            return
        if header.size:
            self._carrier.offer(whole)
        self._say(header)
        if header.size:
            self._carrier.transfer(whole)

    def _taken(self, header: Header, riding: Tensor) -> Tensor:
        """The bytes that a header announced."""
        if header.size <= self._carrier.rides:
            return riding[: header.size]
        return self._carrier.take(header.size)

    def _say(self, header: Header, rider: Tensor | None = None) -> None:
        self._check()
        self._link.send(header, rider)

    def _heard(self) -> tuple[Header, Tensor]:
        self._check()
        return self._link.receive()

    def _check(self) -> None:
        if self._aborted.is_set():
            raise Broken("aborted")
