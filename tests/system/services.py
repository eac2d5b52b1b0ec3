"""The three services as real processes around toy models."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import ssd.cli.stack as stacks
from ssd.cli.client import Client
from ssd.cli.stack import Stack, StackOptions
from ssd.cli.supervisor import ServiceSpec, Supervisor

READY_WITHIN_S = 90.0
PACED = Path(__file__).with_name("paced.py")


@dataclass(frozen=True)
class Toys:
    """Directories of tiny models that share a tokenizer."""

    target: Path
    draft: Path  # agrees with the target most of the time


@dataclass(frozen=True)
class System:
    """Running services. `supervisor[name].process` is there to be killed, `restart` brings it back."""

    supervisor: Supervisor
    stack: Stack
    specs: dict[str, ServiceSpec]

    @property
    def address(self) -> str:
        """host:port of the router."""
        return self.stack.router.listen

    def client(self, timeout_s: float = 60.0) -> Client:
        """A new connection to the router."""
        return Client(self.address, timeout_s)

    def restart(self, name: str) -> None:
        """Start a dead service again on its old port and wait until it serves."""
        self.supervisor.start(self.specs[name])
        self.supervisor.wait_ready(READY_WITHIN_S)


def stack_options(toys: Toys) -> StackOptions:
    """One thread each, float32, free ports."""
    return StackOptions(port=0, target_model=str(toys.target), draft_model=str(toys.draft), dtype="float32", threads=1)


@contextlib.contextmanager
def running_system(
    toys: Toys,
    folder: Path,
    *,
    drafts: int = 1,
    pace: Mapping[str, float] | None = None,
    device: str = "cpu",
    stack: Stack | None = None,
    **router: object,
) -> Iterator[System]:
    """Services that serve. `pace`: seconds that a service's forward pass takes at least, by its name. `device`: of
    target and drafts. `stack`: their configurations, where these are not the usual ones. `router`: fields of
    RouterConfig to set."""
    stack = stack or stacks.build(replace(stack_options(toys), drafts=drafts))
    if device != "cpu":
        stack = on_device(stack, device)
    stack = replace(stack, router=replace(stack.router, **router))  # type: ignore[arg-type]
    file = folder / "config.toml"
    stacks.write(stack, file)
    specs = {spec.name: spec for spec in stacks.specs(stack, file)}
    for name, seconds in (pace or {}).items():
        specs[name] = at_pace(specs[name], seconds)
    with Supervisor(folder, stacks.child_environment(os.environ)) as supervisor:
        for spec in specs.values():
            supervisor.start(spec)
        supervisor.wait_ready(READY_WITHIN_S)
        yield System(supervisor, stack, specs)


def on_device(stack: Stack, device: str) -> Stack:
    """Target and drafts there, each with a small part of its memory."""
    assert stack.draft is not None
    target = replace(stack.target, engine=replace(stack.target.engine, device=device))
    draft = replace(stack.draft, engine=replace(stack.draft.engine, device=device))
    return replace(stack, target=target, draft=draft)


def at_pace(spec: ServiceSpec, seconds: float) -> ServiceSpec:
    """The same service on a slower device."""
    arguments = spec.command[spec.command.index("ssd.cli") + 1 :]
    return replace(spec, command=(sys.executable, str(PACED), str(seconds), *arguments))
