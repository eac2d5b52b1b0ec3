"""`ssd up`: the whole system on one machine."""

from pathlib import Path
from typing import Annotated

import typer

import ssd.cli.stack as stacks
from ssd.cli.options import (
    ConfigFile,
    DefaultFanOut,
    DefaultK,
    DefaultMode,
    Deterministic,
    DraftModel,
    Dtype,
    TargetModel,
    Threads,
)
from ssd.cli.running import run_folder, running
from ssd.cli.signals import StopRequested, stop_on_signals
from ssd.cli.stack import StackOptions


def up(
    port: Annotated[
        int | None, typer.Option(help="Port of the router; target and draft take the next two; 0 = free ones.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where the router listens; target and draft stay on the loopback.")
    ] = stacks.HOST,
    target_model: TargetModel = None,
    draft_model: DraftModel = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Start no draft: plain decoding.")] = False,
    dtype: Dtype = None,
    deterministic: Deterministic = None,
    threads: Threads = None,
    mode: DefaultMode = None,
    k: DefaultK = None,
    fan_out: DefaultFanOut = None,
    file: ConfigFile = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep configuration and logs here; default: a temporary folder.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Copy the services' logs to standard error.")
    ] = False,
) -> None:
    """Start target, draft and router on this machine; Ctrl-C ends them."""
    options = StackOptions(
        port=port,
        host=host,
        target_model=target_model,
        draft_model=draft_model,
        draft=not no_draft,
        dtype=dtype,
        deterministic=deterministic,
        threads=threads,
        mode=mode,
        k=k,
        fan_out=fan_out,
        file=file,
    )
    stack = stacks.build(options)
    try:
        with stop_on_signals(), run_folder(log_dir) as folder, running(stack, folder, verbose=verbose) as run:
            print(f"try: ssd chat --address {stack.router.listen}    (Ctrl-C here ends everything)", flush=True)
            run.watch()
    except StopRequested:
        print("stopped", flush=True)
