"""`ssd up`: the whole system on one machine."""

from pathlib import Path
from typing import Annotated

import typer

import ssd.cli.stack as stacks
from ssd.cli.errors import BAD_INPUT, CliError
from ssd.cli.options import (
    ConfigFile,
    DefaultBudget,
    DefaultFallback,
    DefaultFanOut,
    DefaultFanOutRule,
    DefaultK,
    DefaultMode,
    DefaultSaguaroC,
    DefaultVerification,
    Deterministic,
    DraftModel,
    Dtype,
    MetricsListen,
    TargetModel,
    Threads,
    Tp,
    Trace,
)
from ssd.cli.running import run_folder, running
from ssd.cli.signals import StopRequested, stop_on_signals
from ssd.cli.stack import StackOptions
from ssd.config import MAX_DRAFTS


def up(
    port: Annotated[
        int | None, typer.Option(help="Port of the router; target and drafts take the next ones; 0 = free ones.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where the router listens; target and drafts stay on the loopback.")
    ] = stacks.HOST,
    target_model: TargetModel = None,
    draft_model: DraftModel = None,
    drafts: Annotated[
        int, typer.Option(min=1, max=MAX_DRAFTS, help="Draft processes; sequences share their fan-out among them.")
    ] = 1,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Start no draft: plain decoding.")] = False,
    dtype: Dtype = None,
    deterministic: Deterministic = None,
    threads: Threads = None,
    tp: Tp = None,
    mode: DefaultMode = None,
    k: DefaultK = None,
    fan_out: DefaultFanOut = None,
    fan_out_rule: DefaultFanOutRule = None,
    budget: DefaultBudget = None,
    verification: DefaultVerification = None,
    saguaro_c: DefaultSaguaroC = None,
    fallback: DefaultFallback = None,
    metrics_listen: MetricsListen = None,
    trace: Trace = None,
    file: ConfigFile = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep configuration and logs here; default: a temporary folder.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Copy the services' logs to standard error.")
    ] = False,
) -> None:
    """Start target, draft and router on this machine; Ctrl-C ends them."""
    if no_draft and drafts != 1:
        raise CliError(f"--drafts {drafts} and --no-draft contradict each other", BAD_INPUT)
    options = StackOptions(
        port=port,
        host=host,
        target_model=target_model,
        draft_model=draft_model,
        drafts=0 if no_draft else drafts,
        dtype=dtype,
        deterministic=deterministic,
        threads=threads,
        tp=tp,
        mode=mode,
        k=k,
        fan_out=fan_out,
        fan_out_rule=fan_out_rule,
        budget=budget,
        verification=verification,
        saguaro_c=saguaro_c,
        fallback=fallback,
        metrics_listen=metrics_listen,
        trace=None if trace is None else str(trace.absolute()),
        file=file,
    )
    stack = stacks.build(options)
    try:
        with stop_on_signals(), run_folder(log_dir) as folder, running(stack, folder, verbose=verbose) as run:
            print(f"try: ssd chat --address {stack.router.listen}    (Ctrl-C here ends everything)", flush=True)
            run.watch()
    except StopRequested:
        print("stopped", flush=True)
