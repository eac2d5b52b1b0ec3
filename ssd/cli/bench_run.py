"""`ssd bench run` and `ssd bench datasets`: the whole system on real prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ssd.cli.errors import BAD_INPUT, FAILED, INTERRUPTED, CliError
from ssd.cli.options import ConfigFile, Deterministic, DraftModel, Dtype, TargetModel, Threads
from ssd.cli.signals import StopRequested, stop_on_signals

Number = TypeVar("Number", int, float)

Data = Annotated[
    Path | None,
    typer.Option(envvar="SSD_DATA", help="Folder of public prompt sets; default: `datasets` in the cache folder."),
]


def run(
    modes: Annotated[str, typer.Option(help="ar, sd, ssd, auto, with commas.")] = "ar,sd,ssd,auto",
    batch: Annotated[str, typer.Option(help="Requests at a time, with commas.")] = "1",
    temperature: Annotated[str, typer.Option(help="With commas.")] = "0",
    k: Annotated[str, typer.Option("--k", help="Proposal lengths; SD is measured for each and its best one named.")] = (
        "2,4,6"
    ),
    ssd_k: Annotated[str, typer.Option("--ssd-k", help="Proposal lengths of SSD; default: those of --k.")] = "",
    fan_out: Annotated[str, typer.Option(help="SSD: branches for each acceptance length.")] = "",
    budget: Annotated[str, typer.Option(help="SSD: branches of a table, shared out as measured.")] = "",
    dataset: Annotated[
        str, typer.Option(help="Prompt sets with commas, in turns: NAME, or NAME=FILE; see `ssd bench datasets`.")
    ] = "mixed",
    data: Data = None,
    prompts: Annotated[int, typer.Option(min=0, help="Use the first N only; 0 = all.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of each answer, tokens.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each case; speeds are their median.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Tokens of the unmeasured answers at first; 0 = none.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the first request; each further one adds 1.")] = 1234,
    stop_at_eos: Annotated[
        bool, typer.Option("--stop-at-eos", help="End answers where the model does, not at --max-tokens.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue prompts as text instead of answering a chat turn.")] = (
        False
    ),
    target_model: TargetModel = None,
    draft_model: DraftModel = None,
    device: Annotated[str | None, typer.Option(help="Of the target: cpu, cuda, cuda:1, ...")] = None,
    draft_device: Annotated[str | None, typer.Option(help="Default: the target's, so both share one GPU.")] = None,
    dtype: Dtype = None,
    draft_dtype: Annotated[str | None, typer.Option(help="Default: the target's.")] = None,
    deterministic: Deterministic = None,
    threads: Threads = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="KV room of each engine; default: what the batch needs.")
    ] = None,
    mps: Annotated[bool, typer.Option("--mps", help="Run both services under a CUDA MPS daemon of their own.")] = False,
    router: Annotated[str | None, typer.Option(help="host:port of a running router; nothing is started then.")] = None,
    metrics: Annotated[str, typer.Option(help="host:port of the running router's metrics.")] = "",
    baseline: Annotated[str | None, typer.Option(help="transformers: plain generation, measured afterwards.")] = None,
    require_equal: Annotated[
        bool, typer.Option("--require-equal", help="Fail where ids differ between modes.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a timeline of all services (Chrome trace).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, results.md and plots.")] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Plots in --out (needs matplotlib).")] = True,
    timeout: Annotated[float, typer.Option(help="Deadline of one answer, seconds.")] = 600.0,
    file: ConfigFile = None,
    log_dir: Annotated[Path | None, typer.Option(help="Keep configuration and logs here.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Copy the services' logs to standard error.")
    ] = False,
) -> None:
    """Measure all modes on the same prompts in one run: speed, and what explains it."""
    # Only now: what a benchmark needs is not for every command.
    from bench import datasets
    from bench.run.cases import Grid
    from bench.run.program import RunOptions
    from bench.run.program import run as measure
    from bench.run.report import as_markdown
    from bench.run.services import ServiceOptions

    if baseline not in (None, "transformers"):
        raise CliError(f"--baseline: there is no {baseline!r}, only transformers", BAD_INPUT)
    if mps and router is not None:
        raise CliError("--mps is for services that are started here, --router for others", BAD_INPUT)
    grid = Grid(
        tuple(modes.split(",")),
        listed("--batch", batch, int),
        listed("--temperature", temperature, float),
        listed("--k", k, int),
        listed("--ssd-k", ssd_k, int),
        listed("--fan-out", fan_out, int),
        listed("--budget", budget, int),
    )
    names = tuple(dataset.split(","))
    try:
        found = datasets.load(names, datasets.data_folder(data), prompts)
    except datasets.DatasetError as error:
        raise CliError(f"--dataset: {error}", BAD_INPUT) from None
    options = RunOptions(
        grid=grid,
        prompts=tuple(found),
        datasets=names,
        services=ServiceOptions(
            target_model=target_model,
            draft_model=draft_model,
            device=device,
            draft_device=draft_device,
            dtype=dtype,
            draft_dtype=draft_dtype,
            deterministic=deterministic,
            threads=threads,
            kv_tokens=kv_tokens,
            mps=mps,
            file=file,
            log_dir=log_dir,
            verbose=verbose,
        ),
        router=router,
        metrics=metrics,
        max_tokens=max_tokens,
        seed=seed,
        repeats=repeats,
        warm_up_tokens=warm_up,
        ignore_eos=not stop_at_eos,
        raw=raw,
        transformers=baseline is not None,
        plots=plots,
        trace=trace,
        out=out,
        timeout_s=timeout,
    )
    try:
        with stop_on_signals():
            report = measure(options)
    except StopRequested:
        print("\nstopped")
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        raise CliError(str(error), BAD_INPUT) from None
    print(as_markdown(report))
    if require_equal and report.identity.differences:
        raise typer.Exit(FAILED)


def datasets(data: Data = None) -> None:
    """List the prompt sets: which are here, what file each is, and where it is published."""
    from bench.datasets import DATASETS, OWN, OWN_FILE, data_folder

    folder = data_folder(data)
    count = len(OWN_FILE.read_text(encoding="utf-8").splitlines())
    print(f"{OWN}: {count} prompts, shipped with the project")
    for one in DATASETS:
        found = one.find(folder)
        print(f"{one.name}: {found if found is not None else f'not in {folder / one.name}'}")
        print(f"  file    {', or '.join(one.files)}\n  fields  {one.fields}\n  from    {one.origin}")


def listed(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Numbers with commas; CliError names the option."""
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise CliError(f"{option}: expected numbers with commas, got {text!r}", BAD_INPUT) from None
