"""The results as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.run.identity import Identity
from bench.run.sample import Result

HEADER = (
    "batch",
    "T",
    "mode",
    "tok/s",
    "min-max",
    "x AR",
    "tok/s/stream",
    "acceptance",
    "hit rate",
    "E",
    "T_p",
    "verify ms",
    "draft ms",
    "draft/verify",
    "first token s",
    "preempted",
)


@dataclass(frozen=True)
class Baseline:
    """Plain generation by transformers; skipped: why there is none."""

    skipped: str = ""
    rows: tuple[Mapping[str, Any], ...] = ()
    """batch, temperature, tokens, seconds (of each repeat), tok_s (median)."""


@dataclass(frozen=True)
class Report:
    """Everything that a run found. `facts` and `setup` are plain data; notes are sentences."""

    facts: Mapping[str, Any]
    setup: Mapping[str, Any]
    results: Sequence[Result]
    identity: Identity
    baseline: Baseline | None = None
    notes: Sequence[str] = field(default_factory=list)


def write(report: Report, folder: Path) -> None:
    """results.json and results.md. Raises OSError."""
    text = json.dumps(as_json(report), indent=1, ensure_ascii=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    (folder / "results.md").write_text(as_markdown(report), encoding="utf-8")


def as_json(report: Report) -> dict[str, Any]:
    """Plain data: samples as they were measured, and beside them what is derived from them."""
    return {
        "facts": report.facts,
        "setup": report.setup,
        "results": [
            {
                "case": dataclasses.asdict(result.case),
                "label": result.case.label,
                "derived": {name: getattr(result, name) for name in DERIVED}
                | {name: getattr(result.counters, name) for name in ("verify_ms", "draft_ms", "draft_share")},
                "samples": [dataclasses.asdict(sample) | {"tok_s": sample.tok_s} for sample in result.samples],
            }
            for result in report.results
        ],
        "identity": {
            "compared": report.identity.compared,
            "equal": report.identity.equal,
            "differences": [_finite(dataclasses.asdict(one)) for one in report.identity.differences],
        },
        "baseline": None if report.baseline is None else dataclasses.asdict(report.baseline),
        "notes": list(report.notes),
    }


DERIVED = (
    "tok_s",
    "spread",
    "stream_tok_s",
    "first_token_s",
    "acceptance",
    "hit_rate",
    "tokens_per_round",
    "t_p",
)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity."""
    return {
        key: str(value) if isinstance(value, float) and math.isinf(value) else value for key, value in values.items()
    }


def as_markdown(report: Report) -> str:
    """A page: what was run, the table, what it says, and whether the ids were equal."""
    lines = ["# ssd bench run", "", *_described(report), "", table(report.results), ""]
    lines += [f"- {one}" for one in (*summary(report.results), *identity_lines(report.identity))]
    lines += [f"- {one}" for one in baseline_lines(report)]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join([*lines, "", EXPLANATION, ""])


EXPLANATION = (
    "tok/s: all streams together, prompts included, median of the repeats. E: tokens of a stream for each target step. "
    "T_p: one table, as K + 1 mean passes of the draft, in target steps. draft/verify: time that the draft computed "
    "over time that the target did; it ends near 1 where a draft works until the outcome comes. Step times leave "
    "prefill out; - is unknown or without meaning."
)


def _described(report: Report) -> Iterator[str]:
    for values in (report.facts, report.setup):
        for key, value in values.items():
            if value not in (None, "", [], {}):
                yield f"- {key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def table(results: Sequence[Result]) -> str:
    """Markdown; one line for each case."""
    rows = [HEADER, tuple("---" for _ in HEADER), *(_row(result, plain_of(result, results)) for result in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def _row(result: Result, plain: Result | None) -> tuple[str, ...]:
    case, counters = result.case, result.counters
    low, high = result.spread
    return (
        str(case.batch),
        f"{case.temperature:g}",
        case.label,
        f"{result.tok_s:.1f}",
        f"{low:.1f}-{high:.1f}",
        _number(result.tok_s / plain.tok_s if plain is not None and plain.tok_s else None, 2),
        f"{result.stream_tok_s:.1f}",
        _number(result.acceptance, 3),
        _number(result.hit_rate, 3),
        _number(result.tokens_per_round, 2),
        _number(result.t_p, 2),
        _number(counters.verify_ms, 2),
        _number(counters.draft_ms, 2),
        _number(counters.draft_share, 2),
        f"{result.first_token_s:.3f}",
        str(counters.preemptions + counters.draft_preemptions),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def plain_of(result: Result, results: Sequence[Result]) -> Result | None:
    """AR at the same batch and temperature."""
    return best(results, result.case.batch, result.case.temperature, "ar")


def best(results: Sequence[Result], batch: int, temperature: float, *modes: str) -> Result | None:
    """The fastest case of these modes."""
    found = [r for r in results if (r.case.batch, r.case.temperature) == (batch, temperature) and r.case.mode in modes]
    return max(found, key=lambda result: result.tok_s, default=None)


def summary(results: Sequence[Result]) -> Iterator[str]:
    """For each batch and temperature: the best of each mode, and the ratios that matter."""
    for batch, temperature in dict.fromkeys((r.case.batch, r.case.temperature) for r in results):
        ar, sd, ssd, auto = (best(results, batch, temperature, mode) for mode in ("ar", "sd", "ssd", "auto"))
        fixed = best(results, batch, temperature, "ar", "sd", "ssd")
        parts = [f"{one.case.label} {one.tok_s:.1f}" for one in (ar, sd, ssd, auto) if one is not None]
        pairs = (("SD/AR", sd, ar), ("SSD/SD", ssd, sd), ("SSD/AR", ssd, ar), ("auto/best fixed", auto, fixed))
        ratios = [f"{name} {a.tok_s / b.tok_s:.2f}" for name, a, b in pairs if a and b and b.tok_s]
        where = f"batch {batch}, T={temperature:g}"
        yield f"{where}: best of each mode {', '.join(parts)} tok/s; {', '.join(ratios)}{_chosen(auto)}"


def _chosen(auto: Result | None) -> str:
    """What AUTO ran."""
    modes = {} if auto is None else {mode: count for mode, count in auto.counters.modes.items() if count}
    total = sum(modes.values())
    if not total:
        return ""
    return "; auto ran " + ", ".join(f"{mode} {100 * count / total:.0f} %" for mode, count in sorted(modes.items()))


def identity_lines(identity: Identity) -> Iterator[str]:
    """Whether ids were equal between modes, batches and repeats, and the first difference of each case."""
    if not identity.compared:
        return
    if identity.equal == identity.compared:
        yield f"ids: equal in all {identity.compared} comparisons with the first answer to the same request and seed"
        return
    different = identity.compared - identity.equal
    yield f"ids: DIFFERENT in {different} of {identity.compared} comparisons; the first of each case:"
    yield from (one.text() for one in identity.differences)


def baseline_lines(report: Report) -> Iterator[str]:
    """transformers beside the best of ours."""
    if report.baseline is None:
        return
    if report.baseline.skipped:
        yield f"transformers: skipped, {report.baseline.skipped}"
    for row in report.baseline.rows:
        ours = best(report.results, row["batch"], row["temperature"], "ar", "sd", "ssd", "auto")
        beside = f"; ours at best {ours.tok_s:.1f} ({ours.case.label})" if ours is not None else ""
        where = f"batch {row['batch']}, T={row['temperature']:g}"
        yield f"transformers, {where}: {row['tok_s']:.1f} tok/s{beside}"
