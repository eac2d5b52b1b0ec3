"""How ranks add up and collect tensors. See ssd.layers.shard.Collective.

All need torch.distributed's default group, and every rank must make the same calls in the same order.
"""

import importlib
import importlib.util

import torch
import torch.distributed as dist

from ssd.errors import FieldError
from ssd.layers.shard import Collective, ProcessGroup

ONE_SHOT_BYTES = 512 << 10
"""Largest sum made in one shot: beyond it a ring moves fewer bytes."""


class OrderedSums:
    """Adds up in rank order, so that an element's sum never depends on where in a tensor it stands.

    A ring adds each piece of a tensor in another order. With this, two batches that hold the same row get the same
    bits, which is what a deterministic model and comparisons on the CPU need. It moves more bytes.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self._group.parts(x)
        for part in others:
            first = first + part
        return first

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.all_gather(x)


class OneShotSums:
    """Small sums by reading every rank's part in place over NVLink (torch's symmetric memory, without multicast): one
    kernel and one crossing instead of a ring's. Larger ones are left to `group`."""

    def __init__(self, group: Collective, device: torch.device, dtype: torch.dtype) -> None:
        """FieldError where torch or the GPUs cannot do it. Every rank must build one at the same time."""
        if not _has_symmetric_memory():
            raise FieldError("all_reduce", "one_shot needs a torch with symmetric memory")
        symmetric = importlib.import_module("torch.distributed._symmetric_memory")
        self._group = group
        self._name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        try:
            self._shared = symmetric.empty(ONE_SHOT_BYTES // dtype.itemsize, dtype=dtype, device=device)
            symmetric.rendezvous(self._shared, self._name)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise FieldError("all_reduce", f"one_shot cannot share memory between these GPUs: {reason}") from None
        # 16 bytes at a time.
        self._unit = 16 // dtype.itemsize

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > self._shared.numel() or x.numel() % self._unit or x.dtype != self._shared.dtype:
            return self._group.all_reduce(x)
        mine = self._shared[: x.numel()]
        mine.copy_(x.reshape(-1))
        total: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", self._name)
        return total.view_as(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.all_gather(x)


def collective_for(device: torch.device, dtype: torch.dtype, all_reduce: str, *, deterministic: bool) -> Collective:
    """The collective of a rank on this device, once the default group is there."""
    group = ProcessGroup()
    if deterministic or device.type == "cpu":
        return OrderedSums(group)
    return OneShotSums(group, device, dtype) if all_reduce == "one_shot" else group


def _has_symmetric_memory() -> bool:
    found = importlib.util.find_spec("torch.distributed._symmetric_memory") is not None
    return found and hasattr(torch.ops.symm_mem, "one_shot_all_reduce")
