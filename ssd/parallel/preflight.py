"""Whether a machine can do what the settings ask, before anything heavy is started: a plain sentence for each check."""

from dataclasses import dataclass

import torch

from ssd.config import EngineConfig
from ssd.errors import FieldError
from ssd.parallel.findings import Findings, look
from ssd.parallel.place import device_of

GIB, MIB = 1 << 30, 1 << 20
LEAST_FREE = 2 * GIB
"""Of a GPU, so that a CUDA context and the least of models fit."""
LEAST_SHARED_MEMORY = 256 * MIB
"""Of /dev/shm, where NCCL's ranks exchange what does not go over NVLink; containers often have 64 MiB."""


@dataclass(frozen=True)
class Check:
    """`message` says what was found, and where that is not enough also what to do."""

    name: str
    ok: bool
    message: str


def checks(found: Findings, engine: EngineConfig) -> list[Check]:
    """All that applies to these settings."""
    done = [_backends(found, engine)] if engine.tp > 1 else []
    if engine.device.startswith("cuda"):
        done.append(_count(found, engine))
        numbers = [number for number in gpus_of(engine) if number < len(found.gpus)]
        done += [check for number in numbers if (check := _memory(found, number)) is not None]
        if len(numbers) > 1:
            done.append(_peers(found, engine, numbers))
            done.append(_shared_memory(found))
    done += [
        Check("port", False, f"cannot listen on {name}: {_hinted(reason)}") for name, reason in found.taken.items()
    ]
    return done


def require(engine: EngineConfig) -> None:
    """FieldError with the first check that fails. How much memory is free each rank sees when it loads."""
    for check in checks(look(memory=False), engine):
        if not check.ok:
            raise FieldError("engine.tp", f"is {engine.tp}, but {check.message}")


def gpus_of(engine: EngineConfig) -> list[int]:
    """Numbers of the GPUs that the ranks run on, in rank order."""
    try:
        return [torch.device(device_of(engine.device, rank)).index for rank in range(engine.tp)]
    except (RuntimeError, ValueError):
        raise FieldError("engine.device", f"is {engine.device!r}, must be cpu, cuda or cuda:N") from None


def _backends(found: Findings, engine: EngineConfig) -> Check:
    needed = ("gloo", "nccl") if engine.device.startswith("cuda") else ("gloo",)
    absent = [name for name in needed if name not in found.backends]
    if absent:
        return Check("backends", False, f"this torch comes without {' and '.join(absent)}: install another build")
    return Check("backends", True, f"ranks talk through {' and '.join(needed)}")


def _count(found: Findings, engine: EngineConfig) -> Check:
    wanted = gpus_of(engine)
    if wanted[-1] < len(found.gpus):
        return Check("GPUs", True, f"{len(found.gpus)} found, using {', '.join(f'cuda:{n}' for n in wanted)}")
    there = f"torch finds {len(found.gpus) or 'no'} GPU{'s' if len(found.gpus) > 1 else ''}"
    return Check(
        "GPUs",
        False,
        f"{there}, and {engine.tp} from cuda:{wanted[0]} on are asked for: lower tp, choose another first device, or "
        "look at CUDA_VISIBLE_DEVICES",
    )


def _memory(found: Findings, number: int) -> Check | None:
    gpu = found.gpus[number]
    if gpu.free is None:
        return None
    text = f"cuda:{number} ({gpu.name}) has {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free"
    if gpu.free < LEAST_FREE:
        return Check("memory", False, f"{text}: end the process that holds the rest, or choose another GPU")
    return Check("memory", True, text)


def _peers(found: Findings, engine: EngineConfig, numbers: list[int]) -> Check:
    apart = [pair for pair in found.apart if pair[0] < pair[1] and set(pair) <= set(numbers)]
    if not apart:
        return Check("peer access", True, "the GPUs reach each other's memory")
    pairs = ", ".join(f"cuda:{one} and cuda:{other}" for one, other in apart)
    if engine.all_reduce == "one_shot":
        return Check("peer access", False, f"{pairs} cannot reach each other's memory: use all_reduce = group")
    return Check("peer access", True, f"{pairs} cannot reach each other's memory: slower, through shared memory")


def _shared_memory(found: Findings) -> Check:
    text = f"/dev/shm has {found.shared_memory // MIB} MiB"
    if found.shared_memory < LEAST_SHARED_MEMORY:
        least = LEAST_SHARED_MEMORY // MIB
        return Check("shared memory", False, f"{text}, NCCL wants {least}: in a container, --shm-size=1g or a volume")
    return Check("shared memory", True, text)


def _hinted(reason: str) -> str:
    """Somebody who asks the doctor while everything runs should not look for a fault."""
    return f"{reason}; is this system running already?" if "in use" in reason else reason
