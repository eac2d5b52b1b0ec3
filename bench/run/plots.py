"""Curves of a run as PNG files: throughput against batch, hit rate against fan-out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.run.report import best
from bench.run.sample import Result
from ssd.config import ANY_MODE
from ssd.simulator.plot import PlotUnavailable


def plot(results: Sequence[Result], folder: Path) -> Iterator[Path]:
    """Draw what there is enough of; yields the files. Raises PlotUnavailable, OSError."""
    temperatures = list(dict.fromkeys(result.case.temperature for result in results))
    batches = sorted({result.case.batch for result in results})
    if len(batches) > 1:
        figure, axes = _figure(len(temperatures))
        for one, temperature in zip(axes, temperatures, strict=True):
            _throughput(one, results, batches, temperature)
        figure.savefig(folder / "throughput.png", format="png", dpi=120)
        yield folder / "throughput.png"
    widths = {width for result in results if (width := width_of(result)) is not None}
    if len(widths) > 1:
        figure, axes = _figure(len(temperatures))
        for one, temperature in zip(axes, temperatures, strict=True):
            _hit_rates(one, results, batches[0], temperature)
        figure.savefig(folder / "hit-rate.png", format="png", dpi=120)
        yield folder / "hit-rate.png"


def width_of(result: Result) -> int | None:
    """Branches of a table: the budget, or the fan-out for each of K + 1 acceptance lengths."""
    case = result.case
    if case.mode != "ssd" or case.k is None:
        return None
    return case.budget if case.budget is not None else case.fan_out and case.fan_out * (case.k + 1)


def _throughput(axes: Any, results: Sequence[Result], batches: Sequence[int], temperature: float) -> None:
    for mode in ANY_MODE:
        found = [(batch, best(results, batch, temperature, mode)) for batch in batches]
        points = [(batch, one) for batch, one in found if one is not None]
        if points:
            speeds = [one.tok_s for _, one in points]
            around = [
                [speed - one.spread[0] for speed, (_, one) in zip(speeds, points, strict=True)],
                [one.spread[1] - speed for speed, (_, one) in zip(speeds, points, strict=True)],
            ]
            name = mode.upper() if mode in ("ar", "auto") else f"{mode.upper()}, best setting"
            axes.errorbar([batch for batch, _ in points], speeds, yerr=around, marker="o", capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(batches), [str(one) for one in batches])
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("tokens per second, all streams")
    axes.set_title(f"T = {temperature:g}")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()


def _hit_rates(axes: Any, results: Sequence[Result], batch: int, temperature: float) -> None:
    here = [r for r in results if (r.case.batch, r.case.temperature) == (batch, temperature)]
    curves: dict[str, list[tuple[int, float]]] = {}
    for result in here:
        width, rate = width_of(result), result.hit_rate
        if width is not None and rate is not None:
            rule = "measured" if result.case.budget is not None else "uniform"
            curves.setdefault(f"K={result.case.k}, {rule}", []).append((width, rate))
    for name, points in curves.items():
        points.sort()
        axes.plot([width for width, _ in points], [rate for _, rate in points], marker="o", label=name)
    axes.set_xlabel("branches of a table")
    axes.set_ylabel("hit rate")
    axes.set_ylim(0.0, 1.0)
    axes.set_title(f"T = {temperature:g}, batch {batch}")
    axes.grid(True, alpha=0.3)
    if curves:
        axes.legend()


def _figure(columns: int) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable(
            "no plots: they need matplotlib, the extra `plot` (pip install ssd-serve[plot])"
        ) from error
    figure = Figure(figsize=(6.0 * columns, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])
