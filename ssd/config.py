"""The one configuration tree: frozen dataclasses, defaults written once, checked when built.

Every value can come from a TOML file (tables `[router]`, `[target]`, `[target.engine]`, …), from the environment
(`SSD_ROUTER_LISTEN`, `SSD_TARGET_ENGINE_THREADS`, …; lists are comma-separated) and from the command line; later wins.
"""

import dataclasses
import math
import os
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ssd.errors import FieldError

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
MODES = ("ar", "sd", "ssd")
ANY_MODE = (*MODES, "auto")  # auto: the router's governor chooses one of the others, round by round
VERIFICATIONS = ("coupled", "rejection")
FALLBACKS = ("auto", "jit", "ngram", "none")
FAN_OUT_RULES = ("uniform", "geometric", "measured")  # of a server; explicit lists are for requests
MAX_DRAFTS = 4  # of one sequence
MAX_RANKS = 8  # of one model
MAX_DRAFT_RANKS = 2
ALL_REDUCE = ("group", "one_shot")
SWITCH = ("auto", "on", "off")
# What a pod is told of a service that is named like one of ours.
_OF_KUBERNETES = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?")
ON_OFF = ("off", "on")
CPU_KV_TOKENS = 16384
ATTENTION = ("auto", "torch", "triton", "flash_attn")
TENSOR_PLANES = ("auto", "inline", "gloo", "cuda_ipc", "nccl")
SECTIONS = ("target", "draft", "router")


@dataclass(frozen=True)
class EngineConfig:
    """What target and draft processes share: one model on one device with a paged KV cache."""

    device: str = "cpu"
    dtype: str = "auto"  # auto: bfloat16 where the device multiplies it fast, else float32
    # Results that do not depend on batch composition, bit for bit; costs speed. auto: for a target in 16 bits on the
    # CPU, where a product of one row and one of several round differently often enough to be seen.
    deterministic: str = "auto"
    threads: int = 0  # torch threads; 0 = half of the cores on a CPU, torch's own choice on a GPU
    block_size: int = 16  # tokens per KV block
    kv_tokens: int = 0  # KV room in all, tokens; 0 = what is free on a GPU, or CPU_KV_TOKENS
    max_sequences: int = 64  # sequences held at once, running and waiting
    token_budget: int = 512  # most tokens (prefill chunks and verification rows) in one step
    max_context: int = 0  # longest prompt + output, tokens; 0 = the model's own limit
    attention: str = "auto"  # kernels of attention; auto: triton on a GPU, else torch
    cuda_graphs: str = "auto"  # steps as CUDA graphs; auto: on a GPU whose attention can be captured
    early_launch: str = "off"  # on: kernels placed on the GPU while the one before still runs; needs capability 9
    compile: str = "off"  # on: torch.compile makes the layers' kernels instead of the project's own
    memory_fraction: float = 0.9  # of a GPU's memory, for this process; two on one GPU share it
    gpu_share: int = 0  # percent of a GPU's multiprocessors that this process uses under MPS; 0 = as MPS is set
    tp: int = 1  # processes that share the model (tensor parallel), one GPU each
    all_reduce: str = "group"  # how ranks add up: NCCL's (gloo's on the CPU), or one_shot for small ones over NVLink
    rank_silence_s: float = 5.0  # a rank that gives no sign of life for this long is lost, and all end
    collective_timeout_s: float = 60.0  # longest one step of all ranks may take

    def __post_init__(self) -> None:
        _one_of("attention", self.attention, ATTENTION)
        _one_of("cuda_graphs", self.cuda_graphs, SWITCH)
        _one_of("early_launch", self.early_launch, ON_OFF)
        _one_of("compile", self.compile, ON_OFF)
        if not 0.0 < self.memory_fraction <= 1.0:
            raise FieldError("memory_fraction", f"is {self.memory_fraction}, must be above 0 and at most 1")
        if not 0 <= self.gpu_share <= 100:
            raise FieldError("gpu_share", f"is {self.gpu_share}, must be in 0..100 (percent)")
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("deterministic", self.deterministic, SWITCH)
        _at_least("threads", self.threads, 0)
        _at_least("block_size", self.block_size, 1)
        if self.kv_tokens == 0 and self.device.startswith("cpu"):
            object.__setattr__(self, "kv_tokens", CPU_KV_TOKENS)
        if self.kv_tokens:
            _at_least("kv_tokens", self.kv_tokens, self.block_size)
        _at_least("max_sequences", self.max_sequences, 1)
        _at_least("token_budget", self.token_budget, 1)
        _at_least("max_context", self.max_context, 0)
        self._check_ranks()

    def _check_ranks(self) -> None:
        if not 1 <= self.tp <= MAX_RANKS:
            raise FieldError("tp", f"is {self.tp}, must be in 1..{MAX_RANKS}")
        _one_of("all_reduce", self.all_reduce, ALL_REDUCE)
        if self.all_reduce == "one_shot" and self.device.startswith("cpu"):
            raise FieldError("all_reduce", "one_shot is for GPUs that reach each other's memory; the device is a CPU")
        if self.tp > 1 and self.compile == "on":
            raise FieldError("compile", f"is for one rank; tp is {self.tp}")
        _positive("rank_silence_s", self.rank_silence_s)
        _positive("collective_timeout_s", self.collective_timeout_s)


@dataclass(frozen=True)
class TargetConfig:
    """One target process."""

    listen: str = "127.0.0.1:50052"
    model: str = "smollm2-135m"  # a built-in name, a Hugging Face directory or a GGUF file
    max_k: int = 16  # longest proposal verified
    proposal_wait_s: float = 0.25  # longest a row waits for a proposal after a miss, seconds
    plane_listen: str = ""  # host:port where drafts meet for tensor planes; empty = any free port beside `listen`
    drain_s: float = 5.0  # how long live streams may go on after SIGTERM, seconds
    trace: str = ""  # this process writes its part of a timeline beside this file; empty = none
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        _address("listen", self.listen)
        _at_least("max_k", self.max_k, 1)
        _positive("proposal_wait_s", self.proposal_wait_s)
        _positive("drain_s", self.drain_s)
        if self.plane_listen:
            _address("plane_listen", self.plane_listen)

    @property
    def plane_address(self) -> str:
        """host:port for the rendezvous of tensor planes; port 0 = any."""
        return self.plane_listen or f"{self.listen.rpartition(':')[0]}:0"


@dataclass(frozen=True)
class DraftConfig:
    """One draft process."""

    listen: str = "127.0.0.1:50053"
    model: str = "smollm2-135m-draft"
    target_model: str = "smollm2-135m"  # gives embedding, head and tokenizer to a draft that does not carry its own
    max_k: int = 16
    max_branches: int = 64  # most branches of one outcome table
    drain_s: float = 5.0
    trace: str = ""  # this process writes its part of a timeline beside this file; empty = none
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        _address("listen", self.listen)
        _at_least("max_k", self.max_k, 1)
        _at_least("max_branches", self.max_branches, 1)
        _positive("drain_s", self.drain_s)
        if self.engine.tp > MAX_DRAFT_RANKS:
            raise FieldError("engine.tp", f"is {self.engine.tp}, must be in 1..{MAX_DRAFT_RANKS} for a draft")


@dataclass(frozen=True)
class RouterConfig:
    """One router process."""

    listen: str = "127.0.0.1:50051"
    model: str = "smollm2-135m"  # whose tokenizer and chat template are used
    model_name: str = ""  # the name clients use; empty = the last part of `model`
    targets: tuple[str, ...] = ("127.0.0.1:50052",)
    drafts: tuple[str, ...] = ("127.0.0.1:50053",)
    mode: str = "ssd"  # for requests that name none, as all up to drafts_per_sequence
    k: int = 4
    verification: str = "coupled"
    saguaro_c: float = 1.0  # rejection: C of the scaled law; 1 = unscaled
    fallback: str = "auto"
    fan_out_rule: str = "uniform"
    fan_out: int = 3  # uniform
    budget: int = 16  # geometric, measured: branches of one table
    fan_out_acceptance: float = 0.8  # geometric
    fan_out_exponent: float = 1.0  # geometric
    tensor_plane: str = "auto"  # how laws get from a draft to a target; auto: by their devices, inline on the CPU
    plane_limit_s: float = 2.0  # longest that anything on a plane may take before it is given up
    drafts_per_sequence: int = 1  # that share its fan-out, as far as there are that many
    max_fan_out: int = 16
    max_branches: int = 64  # largest budget that a request may ask for
    auto_k: int = 8  # longest proposal that the governor may choose
    auto_budget: int = 48  # most branches that it may choose
    metrics_listen: str = ""  # host:port of Prometheus metrics over HTTP; empty = none
    max_tokens: int = 512  # output limit of requests that set none
    max_live: int = 64  # requests admitted at once; more are RESOURCE_EXHAUSTED
    max_live_tokens: int = 262_144  # prompt + output limits of admitted requests, summed
    stream_buffer: int = 1024  # messages a client may be behind before its request is aborted
    stream_stall_s: float = 30.0  # longest a client may leave a full buffer unread
    heartbeat_s: float = 0.5  # between pings to a peer
    peer_timeout_s: float = 5.0  # a peer silent for this long is lost
    target_wait_s: float = 10.0  # longest a live request waits for a target to come (back)
    drain_s: float = 5.0
    trace: str = ""  # this process writes its part of a timeline beside this file; empty = none

    def __post_init__(self) -> None:
        _address("listen", self.listen)
        if not self.targets:
            raise FieldError("targets", "at least one target address is needed")
        for address in self.targets:
            _address("targets", address)
        for address in self.drafts:
            _address("drafts", address)
        self._check_speculation()
        for name in ("max_tokens", "max_live", "max_live_tokens", "stream_buffer"):
            _at_least(name, getattr(self, name), 1)
        if self.metrics_listen:
            _address("metrics_listen", self.metrics_listen)
        _one_of("tensor_plane", self.tensor_plane, TENSOR_PLANES)
        for name in ("stream_stall_s", "heartbeat_s", "peer_timeout_s", "target_wait_s", "drain_s", "plane_limit_s"):
            _positive(name, getattr(self, name))
        if self.peer_timeout_s <= self.heartbeat_s:
            raise FieldError(
                "peer_timeout_s", f"is {self.peer_timeout_s}, must be longer than heartbeat_s = {self.heartbeat_s}"
            )

    def _check_speculation(self) -> None:
        _one_of("mode", self.mode, ANY_MODE)
        _one_of("verification", self.verification, VERIFICATIONS)
        _one_of("fallback", self.fallback, FALLBACKS)
        _one_of("fan_out_rule", self.fan_out_rule, FAN_OUT_RULES)
        for name in ("k", "fan_out", "budget", "max_fan_out", "max_branches", "auto_k", "auto_budget"):
            _at_least(name, getattr(self, name), 1)
        for name, most in (("fan_out", "max_fan_out"), ("budget", "max_branches"), ("auto_budget", "max_branches")):
            if getattr(self, name) > getattr(self, most):
                raise FieldError(name, f"is {getattr(self, name)}, above {most} = {getattr(self, most)}")
        for name in ("saguaro_c", "fan_out_acceptance"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise FieldError(name, f"is {getattr(self, name)}, must be in 0..1")
        if not 0.0 < self.fan_out_exponent < math.inf:
            raise FieldError("fan_out_exponent", f"is {self.fan_out_exponent}, must be positive and finite")
        if self.saguaro_c != 1.0 and self.verification != "rejection":
            raise FieldError("saguaro_c", "is for verification = rejection only")
        if not 1 <= self.drafts_per_sequence <= MAX_DRAFTS:
            raise FieldError("drafts_per_sequence", f"is {self.drafts_per_sequence}, must be in 1..{MAX_DRAFTS}")


Config = TypeVar("Config", TargetConfig, DraftConfig, RouterConfig)


def load(
    kind: type[Config],
    section: str,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Build `kind` from the table `section` of a TOML file, the environment and explicit overrides (None = not given).

    Overrides of the engine are given as `{"engine": {...}}`. Raises FieldError naming the field, with its table.
    """
    values: dict[str, Any] = {}
    if file is not None:
        tables = _read_toml(file)
        for name in tables:
            if name not in SECTIONS:
                raise FieldError(name, f"no such table in {file}; there are {', '.join(SECTIONS)}")
        values = _table(tables.get(section, {}), section)
    given = os.environ if environment is None else environment
    prefix = f"SSD_{section.upper()}_"
    known = _names(kind, prefix)
    for name in given:
        if name.startswith(prefix) and name not in known and not _OF_KUBERNETES.fullmatch(name[len(prefix) :]):
            raise FieldError(name, f"no such setting; there are {', '.join(known)}")
    _merge(values, _from_environment(kind, prefix, given))
    _merge(values, overrides or {})
    return _build(kind, values, section)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise FieldError("config", f"no such file: {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FieldError("config", f"{file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise FieldError("config", f"{file}: {error}") from None


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(where, f"is {value!r}, must be a table of settings")
    return value


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        elif value is not None:
            into[name] = value


def _names(kind: type, prefix: str) -> list[str]:
    """The environment's variables of all settings."""
    found: list[str] = []
    for f in dataclasses.fields(kind):
        name = prefix + f.name.upper()
        found += _names(typing.cast(type, f.type), f"{name}_") if dataclasses.is_dataclass(f.type) else [name]
    return found


def _from_environment(kind: type, prefix: str, environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(f.type):
            nested = _from_environment(typing.cast(type, f.type), f"{prefix}{f.name.upper()}_", environment)
            if nested:
                found[f.name] = nested
        elif (value := environment.get(prefix + f.name.upper())) is not None:
            found[f.name] = value
    return found


def _build(kind: type[Any], values: Mapping[str, Any], path: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise FieldError(f"{path}.{name}", f"no such setting; there are {', '.join(fields)}")
    built = {}
    for name, value in values.items():
        where = f"{path}.{name}"
        declared = fields[name].type
        nested = dataclasses.is_dataclass(declared)
        if nested:
            built[name] = _build(typing.cast(type, declared), _table(value, where), where)
        else:
            built[name] = _convert(declared, value, where)
    try:
        return kind(**built)
    except FieldError as error:
        raise FieldError(f"{path}.{error.field}", error.message) from None


def _convert(declared: Any, value: Any, where: str) -> Any:
    """Bring a TOML value or an environment string to the declared type."""
    try:
        if declared == tuple[str, ...]:
            parts = value.split(",") if isinstance(value, str) else list(value)
            return tuple(str(p).strip() for p in parts if str(p).strip())
        if declared is bool:
            if isinstance(value, bool):
                return value
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[str(value).lower()]
        if declared in (int, float) and isinstance(value, bool):
            raise ValueError
        if declared is int and isinstance(value, float):
            raise ValueError
        return declared(value)
    except (ValueError, KeyError, TypeError):
        name = getattr(declared, "__name__", "list of strings")
        raise FieldError(where, f"is {value!r}, must be of type {name}") from None


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise FieldError(name, f"is {value!r}, must be one of {', '.join(allowed)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise FieldError(name, f"is {value}, must be at least {least}")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise FieldError(name, f"is {value}, must be a positive number of seconds")


def _address(name: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise FieldError(name, f"is {value!r}, must be host:port with a port of 0..65535")
