"""Which rank a process is, and where the ranks of one model meet.

The variables are those that torchrun sets, and that a LeaderWorkerSet's template sets by hand: RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR, MASTER_PORT. A rank 0 without them starts the other ranks itself, with the same variables.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ssd.errors import FieldError

LOOPBACK = "127.0.0.1"
PARENT = "SSD_RANK_PARENT"
_TORCHRUN_HOLDS = "TORCHELASTIC_USE_AGENT_STORE"
MOST_PORT = 65535


@dataclass(frozen=True)
class Place:
    """Rank `rank` of `size`, the `local_rank`-th on its machine. All meet at address:port, which rank 0 holds, or
    torchrun where it says so. parent: process id of rank 0 where that started this process, else 0."""

    rank: int
    size: int
    local_rank: int
    address: str = LOOPBACK
    port: int = 0
    parent: int = 0
    torchrun_holds: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Place | None":
        """None where nobody has given this process a rank; FieldError for half of an answer."""
        if "WORLD_SIZE" not in environment and "RANK" not in environment:
            return None
        size = _number(environment, "WORLD_SIZE")
        rank = _number(environment, "RANK")
        local = _number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank
        if not 0 <= rank < size:
            raise FieldError("RANK", f"is {rank}, must be in 0..{size - 1} with WORLD_SIZE = {size}")
        address = environment.get("MASTER_ADDR", "")
        if not address:
            raise FieldError("MASTER_ADDR", "is not set, though RANK is: set it to the address of rank 0's machine")
        port = _number(environment, "MASTER_PORT")
        if not 0 < port <= MOST_PORT:
            raise FieldError("MASTER_PORT", f"is {port}, must be in 1..{MOST_PORT}")
        parent = _number(environment, PARENT) if PARENT in environment else 0
        return cls(rank, size, local, address, port, parent, environment.get(_TORCHRUN_HOLDS) == "True")

    @property
    def environment(self) -> dict[str, str]:
        """What a process is told about its place."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            PARENT: str(self.parent),
        }


def device_of(device: str, local_rank: int) -> str:
    """The device of a rank: "cuda" and "cuda:N" are the first of a row of GPUs, the CPU serves all ranks."""
    kind, _, first = device.partition(":")
    return f"cuda:{int(first or 0) + local_rank}" if kind == "cuda" else device


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not (value.isascii() and value.isdigit()):
        raise FieldError(name, f"is {value!r}, must be a number: RANK, WORLD_SIZE and MASTER_PORT belong together")
    return int(value)
