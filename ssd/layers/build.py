"""What every layer is told when it is built."""

from dataclasses import dataclass, field

import torch

from ssd.layers.ops import Ops, TorchOps
from ssd.layers.rows import AllRows, Rows
from ssd.layers.shard import Shard


@dataclass(frozen=True)
class Build:
    """Where and how the weights of one model live in this process, and what computes with them."""

    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shard: Shard = field(default_factory=Shard)
    rows: Rows = field(default_factory=AllRows)
    ops: Ops = field(default_factory=TorchOps)

    def empty(self, *shape: int) -> torch.nn.Parameter:
        """An uninitialised parameter, to be filled by the loader."""
        return torch.nn.Parameter(torch.empty(*shape, dtype=self.dtype, device=self.device), requires_grad=False)
