"""`ssd doctor`: what this machine has, what a target would use of it, and what is missing."""

from typing import TYPE_CHECKING, Annotated

import typer

from ssd import config
from ssd.cli.errors import BAD_INPUT
from ssd.cli.options import ConfigFile
from ssd.config import DraftConfig, RouterConfig, TargetConfig
from ssd.models.cache import cache_root

if TYPE_CHECKING:
    from ssd.parallel.findings import Findings

GIB, MIB = 1 << 30, 1 << 20


def doctor(
    tp: Annotated[int | None, typer.Option("--tp", help="GPUs that share the target.")] = None,
    device: Annotated[
        str | None, typer.Option(help="First device of the target; default: the configured one, or a GPU if any.")
    ] = None,
    file: ConfigFile = None,
) -> None:
    """Check this machine before a target is started on it; the exit status is 2 when something fails."""
    # Only now: these import torch.
    from ssd.parallel.findings import look
    from ssd.parallel.preflight import checks

    engine = {"tp": tp, "device": device}
    target = config.load(TargetConfig, "target", file=file, overrides={"engine": engine})
    draft, router = config.load(DraftConfig, "draft", file=file), config.load(RouterConfig, "router", file=file)
    found = look([target.listen, draft.listen, router.listen])
    if device is None and file is None and found.gpus:
        target = config.load(TargetConfig, "target", overrides={"engine": engine | {"device": "cuda"}})

    _show(found)
    settings = target.engine
    print(f"uses   device {settings.device}, tp {settings.tp}, dtype {settings.dtype}, attention {settings.attention}")
    done = checks(found, settings)
    for check in done:
        print(f"{'ok    ' if check.ok else 'FAILED'} {check.name}: {check.message}")
    failed = sum(not check.ok for check in done)
    print("ready" if not failed else f"not ready: {failed} of {len(done)} checks failed")
    if failed:
        raise typer.Exit(BAD_INPUT)


def _show(found: "Findings") -> None:
    for number, gpu in enumerate(found.gpus):
        print(f"found  cuda:{number}  {gpu.name}, {(gpu.free or 0) / GIB:.1f} of {gpu.total / GIB:.1f} GiB free")
    if not found.gpus:
        print("found  no GPU")
    print(f"found  /dev/shm  {found.shared_memory // MIB} MiB")
    print(f"found  {', '.join(f'{name} {version}' for name, version in found.versions.items())}")
    print(f"found  MPS {'runs' if found.mps else 'does not run'}")
    print(f"found  converted models: {len(found.models) or 'none'} in {cache_root()}")
