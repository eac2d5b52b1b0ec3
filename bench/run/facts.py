"""What a result has to carry so that somebody else can believe it: machine, versions, command."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from protos.ssd.v1 import admin_pb2, types_pb2
from ssd.cores import cores

PACKAGES = ("ssd-serve", "torch", "triton", "transformers", "grpcio", "protobuf")


def facts() -> dict[str, Any]:
    """Of this machine and process; what is not there is left out."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["ssd", *sys.argv[1:]]),
        "cpu": f"{_cpu()}, {cores()} cores",
        "gpus": gpus(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
    }


def gpus() -> list[str]:
    """Name, memory and driver of each GPU, without touching one from this process."""
    query = "--query-gpu=name,memory.total,driver_version"
    text = _output("nvidia-smi", query, "--format=csv,noheader")
    return text.splitlines() if text else []


def model_facts(model: types_pb2.ModelInfo) -> dict[str, Any]:
    """A served model."""
    return {
        "name": model.name,
        "source": model.source,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "deterministic": model.deterministic,
    }


def plane_facts(plane: admin_pb2.Plane) -> str:
    """How laws got from one draft to one target."""
    name = types_pb2.PlaneKind.Name(plane.kind).removeprefix("PLANE_KIND_").lower()
    what = f"{name}: {plane.reason}" if plane.reason else name
    if plane.bandwidth:
        what += f", {plane.latency_us:.0f} us one way, {plane.bandwidth / 1e9:.2f} GB/s"
    return what + (f", broke {plane.fallbacks} times" if plane.fallbacks else "")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
