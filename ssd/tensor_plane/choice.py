"""Which kind of plane a draft and a target use, from what each can do. Pure, and free of torch: the router decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protos.ssd.v1 import types_pb2


class Kind(Enum):
    """How tensors travel; the values are the names in a configuration."""

    INLINE = "inline"
    GLOO = "gloo"
    CUDA_IPC = "cuda_ipc"
    NCCL = "nccl"


AUTO = "auto"

_NUMBERS = {
    Kind.INLINE: types_pb2.PLANE_KIND_INLINE,
    Kind.GLOO: types_pb2.PLANE_KIND_GLOO,
    Kind.CUDA_IPC: types_pb2.PLANE_KIND_CUDA_IPC,
    Kind.NCCL: types_pb2.PLANE_KIND_NCCL,
}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Ability:
    """What one end can do.

    host      equal for processes that can hand each other device memory; "" = unknown
    devices   UUIDs of its GPUs; none = CPU
    kinds     those that it has the libraries for, inline aside
    """

    host: str = ""
    devices: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """A kind; where it is INLINE, why no other."""

    kind: Kind
    reason: str = ""


def choose(target: Ability, draft: Ability, wanted: str = AUTO) -> Choice:
    """The kind of plane between two processes.

    wanted   auto, or the name of a kind. auto takes the one for the devices: cuda_ipc on one GPU, nccl between two, and
             inline on the CPU, where a message is as quick. A kind that is asked for by name and impossible is inline
    """
    kind = _suitable(target, draft) if wanted == AUTO else Kind(wanted)
    if kind is Kind.INLINE:
        return Choice(kind, "a CPU is at one end" if wanted == AUTO else "asked for")
    for name, end in (("target", target), ("draft", draft)):
        if kind not in end.kinds:
            return Choice(Kind.INLINE, f"the {name} cannot do {kind.value}")
    return _possible(kind, target, draft)


def _suitable(target: Ability, draft: Ability) -> Kind:
    if not target.devices or not draft.devices:
        return Kind.INLINE
    return Kind.CUDA_IPC if set(target.devices) & set(draft.devices) else Kind.NCCL


def _possible(kind: Kind, target: Ability, draft: Ability) -> Choice:
    """Whether devices and hosts allow a kind that both ends have the libraries for."""
    shared = sorted(set(target.devices) & set(draft.devices))
    if kind is Kind.NCCL and not (target.devices and draft.devices):
        return Choice(Kind.INLINE, "nccl needs a GPU at each end")
    if kind is Kind.NCCL and shared:
        return Choice(Kind.INLINE, f"nccl needs a GPU for each end, and both are on {shared[0]}")
    if kind is Kind.CUDA_IPC and not shared:
        return Choice(Kind.INLINE, "cuda_ipc needs both ends on one GPU")
    if kind is Kind.CUDA_IPC and (not target.host or target.host != draft.host):
        return Choice(Kind.INLINE, "cuda_ipc needs both ends on one host and in one IPC namespace")
    return Choice(kind)


def kind_number(kind: Kind) -> types_pb2.PlaneKind:
    """A kind as it travels."""
    return _NUMBERS[kind]


def kind_of(number: types_pb2.PlaneKind) -> Kind | None:
    """The kind of a message; None for one that this version does not know."""
    return _KINDS.get(number)


def ability_message(ability: Ability) -> types_pb2.PlaneAbility:
    """An ability as it travels."""
    kinds = [number for kind, number in _NUMBERS.items() if kind in ability.kinds]
    return types_pb2.PlaneAbility(host=ability.host, devices=ability.devices, kinds=kinds)


def ability_of(message: types_pb2.PlaneAbility) -> Ability:
    """The ability in a message; an absent one can do nothing but inline."""
    kinds = (kind_of(number) for number in message.kinds)
    return Ability(message.host, tuple(message.devices), frozenset(kind for kind in kinds if kind is not None))
