"""One process's part of a tensor-parallel model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist


class Collective(Protocol):
    """The two group operations that tensor parallelism needs."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of every rank's x; same shape."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's x [M, n], in rank order, side by side: [M, size * n]."""
        ...


class ProcessGroup:
    """Collective over torch.distributed's default group; its time limit is the group's own."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        rows, width = x.shape
        if not rows:
            return x.new_empty(0, width * dist.get_world_size())
        return self.parts(x).transpose(0, 1).reshape(rows, -1)

    def parts(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's x, in rank order: [size, *shape of x]."""
        # Into one tensor, which a CUDA graph captures without copies of its own.
        everyones = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(everyones, x.contiguous())
        return everyones.view(-1, *x.shape)


@dataclass(frozen=True)
class VocabPart:
    """Ids first .. first + count - 1, those of one rank. `gather` brings every rank's [N, n] side by side."""

    first: int
    count: int
    gather: Callable[[torch.Tensor], torch.Tensor]

    def below(self, vocab: int) -> "VocabPart":
        """What of it is below `vocab`."""
        return VocabPart(self.first, max(0, min(self.count, vocab - self.first)), self.gather)


@dataclass(frozen=True)
class Shard:
    """Part `rank` of `size`. The collective is only used where size > 1."""

    rank: int = 0
    size: int = 1
    collective: Collective = field(default_factory=ProcessGroup, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"shard rank {self.rank} is not in 0..{self.size - 1}")

    def split(self, total: int, what: str) -> int:
        """Equal share of `total`; ValueError names `what` where it does not divide."""
        if total % self.size:
            raise ValueError(f"{what} = {total} cannot be split over {self.size} ranks")
        return total // self.size

    def least(self, number: int, device: torch.device) -> int:
        """The smallest of every rank's number; waits for all of them."""
        if self.size == 1:
            return number
        return int(self.all_gather(torch.tensor([[number]], device=device)).min())

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self.collective.all_reduce(x) if self.size > 1 else x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self.collective.all_gather(x) if self.size > 1 else x
