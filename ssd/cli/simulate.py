"""`ssd simulate`: what a system would do, without models or GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ssd.cli.errors import BAD_INPUT, CliError
from ssd.simulator.arrivals import ConstantRows
from ssd.simulator.grid import Cell, CellResult, all_cells, run_cell, scenario_of, worst
from ssd.simulator.load import run_load
from ssd.simulator.pairs import PAIRS, Pair
from ssd.simulator.plot import PlotUnavailable, check_plot, plot_throughput
from ssd.simulator.report import Outcome, markdown, marks, put_between_marks, simulate, write_json
from ssd.simulator.scenario import Scenario
from ssd.simulator.text import GeometricProcess, TraceProcess
from ssd.speculation.prediction import Fallback, Mode, Setting
from ssd.speculation.step_time import StepTime

app = typer.Typer(
    name="simulate",
    help="Say what a system would do: a discrete-event model around the real speculation cache, fan-out and governor.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")]
Into = Annotated[Path | None, typer.Option("--into", help="Put the table between its marks in this document.")]
Seed = Annotated[int, typer.Option(help="Same seed, same numbers.")]


@app.command("run")
def run(
    pair: Annotated[str, typer.Option(help="Models whose step times and acceptance are the defaults.")] = PAIRS[0].name,
    target_ms: Annotated[float | None, typer.Option(min=0.001, help="A step of the target over one token, ms.")] = None,
    target_token_us: Annotated[float | None, typer.Option(min=0.0, help="Each further token of it, us.")] = None,
    draft_ms: Annotated[float | None, typer.Option(min=0.001, help="A step of the draft, ms.")] = None,
    draft_token_us: Annotated[float, typer.Option(min=0.0, help="Each token of it, us.")] = 1.0,
    acceptance: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Chance that a draft token is accepted.")
    ] = None,
    exponent: Annotated[
        float, typer.Option(min=0.01, help="Power law of the true token's place behind the first.")
    ] = 0.8,
    trace: Annotated[Path | None, typer.Option(help="Recorded ranks instead: JSON lines, a list in each.")] = None,
    rtt_ms: Annotated[float, typer.Option(min=0.0, help="From the target to the draft and back, ms.")] = 0.3,
    rows: Annotated[str, typer.Option(help="Sequences at a time: numbers with commas.")] = "1,2,4,8,16,32,64",
    modes: Annotated[str, typer.Option(help="Of ar, sd, ssd and auto, with commas.")] = "ar,sd,ssd,auto",
    k: Annotated[int, typer.Option("--k", min=1, help="Proposal length of sd, table depth of ssd.")] = 6,
    budget: Annotated[int, typer.Option(min=1, help="Branches of a table of ssd.")] = 24,
    targets: Annotated[int, typer.Option(min=1, help="Targets.")] = 1,
    drafts: Annotated[int, typer.Option(min=1, help="Drafts; sequences are dealt out to them.")] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=0, help="Computed when a sequence begins.")] = 0,
    new_tokens: Annotated[int, typer.Option(min=0, help="Length of an answer; 0 = endless.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens simulated for one number, at least 50 a row.")] = 10_000,
    jitter: Annotated[float, typer.Option(min=0.0, max=0.9, help="Relative unsteadiness of step times.")] = 0.03,
    plot: Annotated[Path | None, typer.Option(help="Write curves to this PNG.")] = None,
    json: Json = None,
    seed: Seed = 0,
) -> None:
    """Throughput of one system in each mode over the number of sequences served at a time."""
    known = _pair(pair)
    target = known.target
    base = (target_ms * 1e-3 if target_ms else target(1, 1)) - target.per_token
    per_token = target_token_us * 1e-6 if target_token_us is not None else target.per_token
    counts, named = _numbers("--rows", rows), _modes(modes)
    if plot:
        with _input_errors():
            check_plot()
    with _input_errors():
        process = (
            TraceProcess.read(trace)
            if trace
            else GeometricProcess(known.acceptance if acceptance is None else acceptance, exponent)
        )
        scenario = Scenario(
            target=StepTime(base, 0.0, per_token),
            draft=StepTime(draft_ms * 1e-3 if draft_ms else known.draft_step_s, 0.0, draft_token_us * 1e-6),
            process=process,
            round_trip_s=rtt_ms * 1e-3,
            targets=targets,
            drafts=drafts,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens or math.inf,
            jitter=jitter,
            seed=seed,
        )
        found: dict[str, list[Outcome]] = {name: [] for name in named}
        for count in counts:
            for name in named:
                setting = _setting(name, k, budget, count)
                loaded = replace(scenario, setting=setting, arrivals=ConstantRows(count))
                found[name].append(simulate(loaded, max(tokens, 50 * count)))
    header = ["rows", *(f"{name} tok/s" for name in named)]
    header += [f"{name}: {what}" for name in named if name in ("ssd", "auto") for what in ("hits", "tokens/round")]
    lines = []
    for i, count in enumerate(counts):
        line = [str(count), *(f"{found[name][i].tokens_per_s:.1f}" for name in named)]
        for name in named:
            if name in ("ssd", "auto"):
                line += [f"{found[name][i].hits:.2f}", f"{found[name][i].tokens_per_round:.2f}"]
        lines.append(line)
    print(markdown(header, lines))
    with _input_errors():
        if json:
            write_json(json, {"pair": pair, "rows": counts, "outcomes": found})
        if plot:
            rates = {name: [outcome.tokens_per_s for outcome in outcomes] for name, outcomes in found.items()}
            plot_throughput(plot, f"{pair}: simulated throughput", counts, rates)


@app.command("pairs")
def pairs(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens simulated for one number.")] = 50_000,
    json: Json = None,
    into: Into = None,
    seed: Seed = 0,
) -> None:
    """The paper's two pairs of models from their published step times, beside the published speeds."""
    _check_marks("simulate pairs", into)
    found = {pair.name: {mode: _rate(pair, mode, tokens, seed) for mode in (*Mode, None)} for pair in PAIRS}
    lines = []
    for pair in PAIRS:
        rates = found[pair.name]
        ssd_sd, ssd_ar = rates[Mode.SSD] / rates[Mode.SD], rates[Mode.SSD] / rates[Mode.AR]
        deviations = (ssd_sd / (pair.ssd / pair.sd) - 1.0, ssd_ar / (pair.ssd / pair.ar) - 1.0)
        lines.append([pair.name, "published", *_speeds(pair.ar, pair.sd, pair.ssd), "", f"{pair.acceptance:.3f}"])
        lines.append(
            ["", "simulated", *_speeds(rates[Mode.AR], rates[Mode.SD], rates[Mode.SSD]), f"{rates[None]:.1f}", ""]
        )
        lines.append(["", "deviation", "", "", "", *(f"{one:+.1%}" for one in deviations), "", ""])
    header = ["pair", "", "AR tok/s", "SD tok/s", "SSD tok/s", "SSD/SD", "SSD/AR", "auto tok/s", "acceptance"]
    _show(markdown(header, lines), "simulate pairs", into)
    if json:
        with _input_errors():
            write_json(
                json,
                [{"pair": pair, "rates": {str(_name(m)): r for m, r in found[pair.name].items()}} for pair in PAIRS],
            )


@app.command("grid")
def grid(
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    effort: Annotated[float, typer.Option(min=0.01, help="Length of the runs.")] = 1.0,
    rows: Annotated[str, typer.Option(help="Only these batch sizes, with commas.")] = "",
    json: Json = None,
    into: Into = None,
    seed: Seed = 1,
) -> None:
    """The governor against the best fixed setting, in every cell of the grid; fails where it is below 97 % of it."""
    wanted = set(_numbers("--rows", rows)) if rows else None
    cells = [cell for cell in all_cells() if wanted is None or cell.rows in wanted]
    if not cells:
        raise CliError("--rows names no batch size of the grid", BAD_INPUT)
    _check_marks("simulate grid", into)
    measure: Callable[[Cell], CellResult] = partial(run_cell, effort=effort, seed=seed)
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            results = list(pool.map(measure, cells))
    else:
        results = [measure(cell) for cell in cells]
    _show(_grid_table(results), "simulate grid", into)
    low = worst(results)
    behind = [result for result in results if result.share < 0.97]
    print(f"\n{len(results)} cells, worst {low.share:.3f} of the best fixed setting at {low.cell}")
    if json:
        with _input_errors():
            write_json(json, [{"result": result, "share": result.share} for result in results])
    if behind:
        raise CliError(f"{len(behind)} of {len(results)} cells are below 0.97")


@app.command("load")
def load(
    rows: Annotated[str, typer.Option(help="Sequences at a time, one stretch after the other.")] = "2,64,2,64,2",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a stretch.")] = 20.0,
    acceptance: Annotated[float, typer.Option(min=0.0, max=1.0, help="Chance that a draft token is accepted.")] = 0.5,
    t_primary: Annotated[float, typer.Option(min=0.0, help="Time of a table, as in the grid.")] = 3.7,
    rtt: Annotated[float, typer.Option(min=0.0, help="Round trip, as in the grid.")] = 0.3,
    json: Json = None,
    seed: Seed = 1,
) -> None:
    """The governor while the load steps up and down."""
    counts = _numbers("--rows", rows)
    with _input_errors():
        scenario = scenario_of(Cell(counts[0], acceptance, t_primary, rtt), None, seed)
        stretches = run_load(scenario, counts, seconds)
    lines = [
        [
            str(one.rows),
            f"{one.tokens_per_s:.1f}",
            f"{one.changes_per_row:.2f}",
            ", ".join(f"{mode.value} {rounds}" for mode, rounds in one.modes.items()),
        ]
        for one in stretches
    ]
    print(markdown(["rows", "tok/s", "mode changes per row", "rounds in mode"], lines))
    if json:
        with _input_errors():
            write_json(json, stretches)


def _grid_table(results: list[CellResult]) -> str:
    header = ["rows", "a", "T_p", "RTT", "AR", "SD", "SSD", "best setting", "auto", "auto/best"]
    lines = []
    for result in results:
        cell, best = result.cell, result.setting
        named = {Mode.AR: "ar", Mode.SD: f"sd K={best.k}"}.get(
            best.mode, f"ssd depth={best.depth} B={best.budget} {best.fallback.value}"
        )
        lines.append(
            [
                *(f"{value:g}" for value in (cell.rows, cell.acceptance, cell.t_primary, cell.round_trip)),
                *(f"{result.by_mode[mode]:.0f}" for mode in Mode),
                named,
                f"{result.auto:.0f}",
                f"{result.share:.3f}",
            ]
        )
    return markdown(header, lines)


def _rate(pair: Pair, mode: Mode | None, tokens: int, seed: int) -> float:
    return simulate(pair.scenario(mode, seed), tokens).tokens_per_s


def _speeds(ar: float, sd: float, ssd: float) -> list[str]:
    return [f"{ar:.1f}", f"{sd:.1f}", f"{ssd:.1f}", f"{ssd / sd:.3f}", f"{ssd / ar:.3f}"]


def _name(mode: Mode | None) -> str:
    return "auto" if mode is None else mode.value


def _show(table: str, name: str, into: Path | None) -> None:
    print(table)
    if into:
        with _input_errors():
            put_between_marks(into, name, table)


def _check_marks(name: str, into: Path | None) -> None:
    """Before minutes of work: whether the table will find its place."""
    if into:
        with _input_errors():
            marks(into, name)


def _pair(name: str) -> Pair:
    for pair in PAIRS:
        if pair.name == name:
            return pair
    raise CliError(f"--pair: no {name!r}; there are {', '.join(pair.name for pair in PAIRS)}", BAD_INPUT)


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise CliError(f"{option}: expected whole numbers with commas, got {text!r}", BAD_INPUT) from error
    if min(numbers) < 1:
        raise CliError(f"{option}: numbers must be at least 1, got {text!r}", BAD_INPUT)
    return numbers


def _modes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in {"ar", "sd", "ssd", "auto"}:
            raise CliError(f"--modes: no mode {name!r}; there are ar, sd, ssd and auto", BAD_INPUT)
    return names


def _setting(name: str, k: int, budget: int, rows: int) -> Setting | None:
    if name == "auto":
        return None
    if name == "ar":
        return Setting()
    if name == "sd":
        return Setting(Mode.SD, k)
    return Setting(Mode.SSD, k, budget, k, Fallback.JIT if rows == 1 else Fallback.NONE)


@contextmanager
def _input_errors() -> Iterator[None]:
    """What a user can put right becomes one line."""
    try:
        yield
    except (ValueError, OSError, PlotUnavailable) as error:
        raise CliError(str(error), BAD_INPUT) from error
