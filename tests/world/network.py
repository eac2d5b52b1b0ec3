"""Links between the parts: messages take time, and on a bad day they are late, lost, doubled or out of order."""

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Chaos:
    """What may happen to a message. Probabilities, and a longest extra delay in seconds."""

    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    latency_s: float = 0.001

    @property
    def quiet(self) -> bool:
        return not (self.lose or self.double or self.delay)


CALM = Chaos()


@dataclass
class Network:
    """Messages on their way, by time of arrival. A calm link keeps its order; a chaotic one need not."""

    rng: random.Random
    _mail: list[tuple[float, int, str, Any]] = field(default_factory=list)
    _order: itertools.count = field(default_factory=itertools.count)

    def send(self, now: float, to: str, message: Any, chaos: Chaos = CALM) -> None:
        """Put a message on its way to a named part."""
        if self.rng.random() < chaos.lose:
            return
        copies = 2 if self.rng.random() < chaos.double else 1
        for _ in range(copies):
            delay = chaos.latency_s + (self.rng.random() * chaos.delay if chaos.delay else 0.0)
            heapq.heappush(self._mail, (now + delay, next(self._order), to, message))

    def due(self, now: float) -> list[tuple[str, Any]]:
        """Messages that have arrived by `now`, in order of arrival."""
        arrived = []
        while self._mail and self._mail[0][0] <= now:
            _, _, to, message = heapq.heappop(self._mail)
            arrived.append((to, message))
        return arrived

    def next_arrival(self) -> float | None:
        return self._mail[0][0] if self._mail else None
