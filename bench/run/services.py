"""The services that are measured: started here as `ssd up` would, or somebody else's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import ssd.cli.stack as stacks
from bench.run.mps import MpsUnavailable, mps
from ssd.cli.ports import free_ports
from ssd.cli.running import run_folder, running
from ssd.cli.stack import Stack, StackOptions
from ssd.config import EngineConfig

CPU, MPS, SLICED, APART, FOREIGN = "cpu", "MPS", "time-sliced", "a GPU each", "as the router has it"


@dataclass(frozen=True)
class ServiceOptions:
    """Which services. None = the default of `ssd up`, as configured by file and environment.

    kv_tokens: of each engine; None = as configured, but at least `room`, which the workload needs. trace: the file that
    the services' timelines are for.
    """

    target_model: str | None = None
    draft_model: str | None = None
    device: str | None = None
    draft_device: str | None = None  # None = the target's
    dtype: str | None = None
    draft_dtype: str | None = None  # None = the target's
    deterministic: bool | None = None
    threads: int | None = None
    kv_tokens: int | None = None
    room: int = 0
    most_live: int = 1
    most_tokens: int = 1
    most_k: int = 1
    most_branches: int = 1
    most_fan_out: int = 1
    mps: bool = False
    trace: str = ""
    file: Path | None = None
    log_dir: Path | None = None
    verbose: bool = False


@dataclass(frozen=True)
class Endpoint:
    """A router to measure. metrics: host:port of its Prometheus metrics, "" = unknown. sharing: how the services share
    a GPU; note: why not otherwise, if that was asked for. check() raises if a service of ours has died: its numbers
    would be those of another system."""

    router: str
    metrics: str = ""
    sharing: str = FOREIGN
    note: str = ""
    stack: Stack | None = None
    check: Callable[[], None] = lambda: None


def build(options: ServiceOptions) -> Stack:
    """The configurations. Raises FieldError, CliError."""
    stack = stacks.build(
        StackOptions(
            port=0,
            target_model=options.target_model,
            draft_model=options.draft_model,
            dtype=options.dtype,
            deterministic=options.deterministic,
            threads=options.threads,
            metrics_listen=f"{stacks.HOST}:{free_ports(stacks.HOST, 1)[0]}",
            trace=options.trace or None,
            file=options.file,
        )
    )
    target = replace(
        stack.target,
        max_k=max(stack.target.max_k, options.most_k),
        engine=_engine(stack.target.engine, options.device, options.dtype, options, options.most_live * options.most_k),
    )
    draft = stack.draft
    if draft is not None:
        draft = replace(
            draft,
            max_k=max(draft.max_k, options.most_k),
            max_branches=max(draft.max_branches, options.most_branches),
            engine=_engine(
                draft.engine, options.draft_device or options.device, options.draft_dtype or options.dtype, options, 0
            ),
        )
    router = replace(
        stack.router,
        max_live=max(stack.router.max_live, options.most_live),
        max_live_tokens=max(stack.router.max_live_tokens, options.most_tokens),
        max_branches=max(stack.router.max_branches, options.most_branches),
        max_fan_out=max(stack.router.max_fan_out, options.most_fan_out),
    )
    return Stack(target, draft, router)


def _engine(
    engine: EngineConfig, device: str | None, dtype: str | None, options: ServiceOptions, drafted: int
) -> EngineConfig:
    """drafted: draft tokens that one step has to hold besides a token of each sequence."""
    moved = device is not None and not device.startswith("cpu")
    return replace(
        engine,
        device=device or engine.device,
        dtype=dtype or engine.dtype,
        # Threads were shared out for engines on the CPU.
        threads=options.threads or 0 if moved else engine.threads,
        # 0 is the engine's own choice.
        kv_tokens=options.kv_tokens or (engine.kv_tokens and max(engine.kv_tokens, options.room)),
        max_sequences=max(engine.max_sequences, options.most_live),
        token_budget=max(engine.token_budget, options.most_live + drafted),
    )


@contextlib.contextmanager
def services(options: ServiceOptions) -> Iterator[Endpoint]:
    """Services of our own, serving; ended in every case. Raises CliError, FieldError."""
    stack = build(options)
    with contextlib.ExitStack() as around:
        sharing, note = sharing_of(stack), ""
        if options.mps:
            if sharing == CPU:
                note = "--mps: nothing runs on a GPU"
            else:
                try:
                    around.enter_context(environment(around.enter_context(mps(os.environ))))
                    sharing = MPS
                except MpsUnavailable as reason:
                    note = f"--mps: {reason}; the services are {sharing}"
        folder = around.enter_context(run_folder(options.log_dir))
        run = around.enter_context(running(stack, folder, verbose=options.verbose))
        check = run.supervisor.check_alive
        yield Endpoint(stack.router.listen, stack.router.metrics_listen, sharing, note, stack, check)


def sharing_of(stack: Stack) -> str:
    """How target and draft share a GPU without any service for that."""
    devices = [one.engine.device for one in (stack.target, stack.draft) if one is not None]
    gpus = [_number(device) for device in devices if not device.startswith("cpu")]
    if not gpus:
        return CPU
    return SLICED if len(gpus) > len(set(gpus)) else APART


def _number(device: str) -> str:
    return device if ":" in device else f"{device}:0"


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, and so of children started meanwhile; as they were afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
