"""Times the kernels of a model step against what moving their bytes costs, on a GPU.

    python -m bench.kernels --json kernels.json        every part: torch, ours, floor
    python -m bench.kernels --check                    first compares every kernel with its reference
    python -m bench.kernels --tune --only 0.6B         searches the tiles of the skinny product and prints their table

Times are medians over replays of CUDA graphs, between CUDA events, with inputs that take turns so that none stays in
the L2 cache. The floor is bytes divided by the bandwidth of a copy, measured in the same run.
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from bench.kernel_parts import Timing

PARTS = ("linear", "attention", "branches", "rows", "draw")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program; exits with a message where there is no GPU, and with status 1 where a check fails."""
    options = parse(argv)
    if not torch.cuda.is_available():
        sys.exit("bench kernels needs an NVIDIA GPU, and torch finds none")
    device = torch.device("cuda")
    report = environment(argv)
    if options.check:
        report["checks"] = check(device, early=options.early)
    if options.tune:
        report["tiles"] = tune(device, options.only, quick=options.quick, table=options.table)
    elif not (options.check and options.check_only):
        report.update(measure(device, options.parts, options.only, early=options.early))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if any(not row["passed"] for row in report.get("checks", ())):
        sys.exit("a kernel differs from its reference")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ssd bench kernels", description="Time the kernels of a model step against their floors."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--check", action="store_true", help="first compare every kernel with its reference")
    parser.add_argument("--check-only", action="store_true", help="with --check: time nothing")
    parser.add_argument("--tune", action="store_true", help="search the tiles of the skinny product instead")
    parser.add_argument("--quick", action="store_true", help="with --tune: try only the likeliest tiles")
    parser.add_argument("--table", type=Path, metavar="FILE", help="with --tune: the module whose table to rewrite")
    parser.add_argument("--early", action="store_true", help="launch kernels while the one before still runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--only", default="", metavar="TEXT", help="only products with this in their name")
    return parser.parse_args(argv)


def environment(argv: Sequence[str] | None) -> dict[str, Any]:
    """What the numbers were measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "command": list(sys.argv[1:] if argv is None else argv),
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": version("triton"),
    }


def check(device: torch.device, *, early: bool) -> list[dict[str, Any]]:
    """Prints and returns every comparison."""
    from bench.kernel_checks import checks

    rows = []
    for row in checks(device, early):
        print(f"{'ok  ' if row.passed else 'FAIL'} {row.error:9.2e} (limit {row.limit:.0e})  {row.part}", flush=True)
        rows.append(asdict(row) | {"passed": row.passed})
    return rows


def tune(device: torch.device, only: str, *, quick: bool, table: Path | None) -> list[dict[str, Any]]:
    """Prints the table of the best tiles, line by line, and writes it into a module."""
    from bench import kernel_tuning
    from bench.kernel_parts import LINEARS

    search = kernel_tuning.tune_quickly if quick else kernel_tuning.tune
    found = []
    for tuned in search([shape for name, shape in LINEARS.items() if only in name], device):
        print(f"{tuned.source()}  # {tuned.best_us:.1f} us, guessed tile {tuned.guess_us:.1f}", flush=True)
        found.append(tuned)
        if table is not None:
            kernel_tuning.write_table(found, table)
    return [asdict(tuned) for tuned in found]


def measure(device: torch.device, parts: Sequence[str], only: str, *, early: bool) -> dict[str, Any]:
    """Prints and returns the times of every part."""
    from bench.kernel_parts import timings
    from bench.kernel_timing import copy_bandwidth

    bandwidth = copy_bandwidth(device)
    print(f"copy {bandwidth / 1e12:.2f} TB/s; microseconds, and times the floor in brackets\n")
    print(f"{'part':22} {'setting':34} {'floor':>8} {'torch':>16} {'ours':>16}")
    rows = []
    for row in timings(device, parts, only, early):
        floor = row.floor_us(bandwidth)
        print(
            f"{row.part:22} {row.setting:34} {floor:8.1f} {against(row.torch_us, floor)} {against(row.ours_us, floor)}"
        )
        sys.stdout.flush()
        rows.append(as_json(row, floor))
    return {"copy_bytes_per_s": bandwidth, "timings": rows}


def against(time: float | None, floor: float) -> str:
    return " " * 16 if time is None else f"{time:8.1f} ({time / floor:5.2f})"


def as_json(row: "Timing", floor: float) -> dict[str, Any]:
    return asdict(row) | {"floor_us": floor, "ours_by_floor": row.ours_us / floor}


if __name__ == "__main__":
    main()
