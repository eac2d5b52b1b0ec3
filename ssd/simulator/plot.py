"""Curves of throughput over batch size, as a PNG."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path


class PlotUnavailable(Exception):
    """matplotlib is not installed."""


def check_plot() -> None:
    """Raises PlotUnavailable where nothing can be plotted."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise PlotUnavailable("a plot needs matplotlib: install the extra `plot` (pip install -e '.[plot]')") from error


def plot_throughput(path: Path, title: str, rows: Sequence[int], curves: Mapping[str, Sequence[float]]) -> None:
    """Tokens per second (both axes logarithmic) of each named curve. Raises PlotUnavailable, OSError."""
    check_plot()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, rates in curves.items():
        axes.plot(rows, rates, marker="o", label=name, linewidth=2.5 if name == "auto" else 1.5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(rows), [str(one) for one in rows])
    axes.set_xlabel("sequences at a time")
    axes.set_ylabel("tokens per second, all sequences")
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=120)
