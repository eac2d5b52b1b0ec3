"""The services on one machine: their configurations, the file that carries them, and how to start each."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd import config
from ssd.cli.options import switch
from ssd.cli.ports import check_free, free_ports
from ssd.cli.supervisor import ServiceSpec
from ssd.config import DraftConfig, RouterConfig, TargetConfig
from ssd.cores import cores
from ssd.errors import FieldError

HOST = "127.0.0.1"
DRAIN_S = 1.5  # shorter than a service's own default: all three have to end within the supervisor's limit
HEALTH_NAMES = {"target": "ssd.v1.TargetService", "draft": "ssd.v1.DraftService", "router": "ssd.v1.InferenceService"}


@dataclass(frozen=True)
class StackOptions:
    """What the command line may say about a stack; None = not said. Files and SSD_* variables fill in the rest."""

    port: int | None = None  # the router's; target and drafts take the next ones; 0 = free ones
    host: str = HOST  # the router's; target and drafts listen on the loopback only
    target_model: str | None = None
    draft_model: str | None = None
    drafts: int = 1  # processes; sequences share their fan-out among them
    dtype: str | None = None
    deterministic: bool | None = None
    threads: int | None = None
    tp: int | None = None  # of the target
    mode: str | None = None
    k: int | None = None
    fan_out: int | None = None
    fan_out_rule: str | None = None
    budget: int | None = None
    verification: str | None = None
    saguaro_c: float | None = None
    fallback: str | None = None
    metrics_listen: str | None = None
    trace: str | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Stack:
    """Configurations that fit together. `draft`: of every draft, but for its address; those are router.drafts."""

    target: TargetConfig
    draft: DraftConfig | None
    router: RouterConfig

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables of the configuration file."""
        return ("target", "router") if self.draft is None else ("target", "draft", "router")


def build(options: StackOptions) -> Stack:
    """Merge options, file and environment. Raises FieldError for bad values, CliError for a port in use."""
    rule = options.fan_out_rule or ("measured" if options.budget is not None else None)
    for name, useless in (("budget", rule == "uniform"), ("fan_out", rule not in (None, "uniform"))):
        if useless and getattr(options, name) is not None:
            raise FieldError(name, f"means nothing under the fan-out rule {rule}")
    router_port, target_port, *draft_ports = _ports(options)
    engine: dict[str, Any] = {
        "dtype": options.dtype,
        "deterministic": switch(options.deterministic),
        "threads": options.threads,
    }
    target_values: dict[str, Any] = {
        "listen": f"{HOST}:{target_port}",
        "model": options.target_model,
        "engine": engine | {"tp": options.tp},
        "drain_s": DRAIN_S,
        "trace": options.trace,
    }
    target = config.load(TargetConfig, "target", file=options.file, overrides=target_values)
    draft = None
    if draft_ports:
        draft_values = target_values | {
            "listen": f"{HOST}:{draft_ports[0]}",
            "model": options.draft_model,
            "target_model": target.model,
            "engine": engine,
        }
        draft = config.load(DraftConfig, "draft", file=options.file, overrides=draft_values)
    router_values = {
        "listen": f"{options.host}:{router_port}",
        "model": target.model,
        "targets": [target.listen],
        "drafts": [f"{HOST}:{port}" for port in draft_ports],
        "drafts_per_sequence": len(draft_ports) if len(draft_ports) > 1 else None,
        "mode": options.mode,
        "k": options.k,
        "fan_out": options.fan_out,
        "fan_out_rule": rule,
        "budget": options.budget,
        "verification": options.verification,
        "saguaro_c": options.saguaro_c,
        "fallback": options.fallback,
        "metrics_listen": options.metrics_listen,
        "drain_s": DRAIN_S,
        "trace": options.trace,
    }
    router = config.load(RouterConfig, "router", file=options.file, overrides=router_values)
    for name, most in (("target", target.max_k), ("draft", draft.max_k if draft else router.k)):
        if router.k > most:
            raise FieldError("router.k", f"is {router.k}, above {name}.max_k = {most}")
    half = max(1, cores() // 2)
    shared = max(1, half // len(draft_ports)) if draft_ports else 1
    return Stack(
        _with_threads(target, max(1, half // target.engine.tp)), _with_threads(draft, shared) if draft else None, router
    )


def _ports(options: StackOptions) -> list[int]:
    """Of the router, the target and each draft."""
    purposes = ["router", "target", *draft_names(options.drafts)]
    if options.port == 0:
        return free_ports(HOST, len(purposes))
    first = options.port or int(RouterConfig().listen.rpartition(":")[2])
    ports = list(range(first, first + len(purposes)))
    if ports[-1] > 65535:
        raise FieldError("port", f"is {first}, but target and drafts take the next ones and 65535 is the last")
    for port, purpose in zip(ports, purposes, strict=True):
        check_free(options.host if purpose == "router" else HOST, port, purpose)
    return ports


def draft_names(count: int) -> list[str]:
    """Names of the draft processes: draft, draft2, draft3, …"""
    return ["draft", *(f"draft{number}" for number in range(2, count + 1))][:count]


def _with_threads(one: Any, threads: int) -> Any:
    """Target and drafts are busy at the same time: threads that outnumber the cores wait for each other in barriers."""
    if one.engine.threads or one.engine.device != "cpu":
        return one
    return dataclasses.replace(one, engine=dataclasses.replace(one.engine, threads=threads))


def write(stack: Stack, path: Path) -> None:
    """The effective configuration as TOML, for the children and for people."""
    tables = [_table(name, getattr(stack, name)) for name in stack.tables]
    path.write_text("\n".join(tables))


def _table(name: str, one: Any) -> str:
    lines = [f"[{name}]"]
    nested = []
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if dataclasses.is_dataclass(value):
            nested.append(_table(f"{name}.{field.name}", value))
        else:
            # JSON's strings, numbers, booleans and flat lists are written alike in TOML.
            plain = list(value) if isinstance(value, tuple) else value
            lines.append(f"{field.name} = {json.dumps(plain, ensure_ascii=False)}")
    return "\n".join([*lines, "", *nested])


def specs(stack: Stack, file: Path) -> list[ServiceSpec]:
    """How to start the services from the configuration in `file`: the router last, so that it is stopped first."""

    def spec(kind: str, name: str, address: str, *more: str) -> ServiceSpec:
        command = (sys.executable, "-m", "ssd.cli", kind, "--config", str(file), "--end-with-stdin", *more)
        return ServiceSpec(name, command, address, HEALTH_NAMES[kind])

    drafts = zip(draft_names(len(stack.router.drafts)), stack.router.drafts, strict=True)
    return [
        spec("target", "target", stack.target.listen),
        *(spec("draft", name, address, "--listen", address) for name, address in drafts),
        spec("router", "router", stack.router.listen),
    ]


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without SSD_* settings: they are in the file already, below the command line's."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(tuple(f"SSD_{n.upper()}_" for n in HEALTH_NAMES))
    }
    return {"PYTHONUNBUFFERED": "1", **kept}
