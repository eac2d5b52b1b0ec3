"""Numbers about generations, as people read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protos.ssd.v1 import inference_pb2, types_pb2
from ssd.cli.client import Answer


@dataclass(frozen=True)
class Totals:
    """Counts of one or more generations, added up."""

    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    hits: int = 0
    misses: int = 0
    seconds: float = 0.0  # from the request to the last message, prompt included

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> "Totals":
        """Sum over answers."""
        answers = list(answers)
        usages = [a.usage for a in answers]
        return cls(
            tokens=sum(u.completion_tokens for u in usages),
            rounds=sum(u.rounds for u in usages),
            proposed=sum(u.proposed for u in usages),
            accepted=sum(u.accepted for u in usages),
            hits=sum(u.hits for u in usages),
            misses=sum(u.misses for u in usages),
            seconds=sum(a.seconds for a in answers),
        )

    @property
    def acceptance(self) -> str:
        """Accepted draft tokens of those verified."""
        return _percent(self.accepted, self.proposed)

    @property
    def hit_rate(self) -> str:
        """Rounds whose outcome had been anticipated."""
        return _percent(self.hits, self.hits + self.misses)

    @property
    def tokens_per_second(self) -> str:
        """Over the whole time, prompt included."""
        return f"{self.tokens / self.seconds:.1f}" if self.seconds > 0 else "-"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def metrics_line(answer: Answer) -> str:
    """One line after an answer."""
    totals = Totals.of([answer])
    parts = [
        f"{totals.tokens} tokens",
        f"{totals.tokens_per_second} tok/s",
        f"first token {answer.first_token_s:.2f} s",
        f"acceptance {totals.acceptance}",
        f"hit rate {totals.hit_rate}",
    ]
    return f"[{', '.join(parts)}]"


def as_json(answer: Answer) -> dict[str, object]:
    """The answer as plain data. Ids, text, finish and usage end at the same token."""
    finish: dict[str, object] = {"reason": _short(types_pb2.FinishReason.Name(answer.finish.reason), "FINISH_REASON_")}
    if answer.finish.stop_text:
        finish["stop_text"] = answer.finish.stop_text
    if answer.finish.HasField("stop_id"):
        finish["stop_id"] = answer.finish.stop_id
    usage = {f.name: getattr(answer.usage, f.name) for f in inference_pb2.Usage.DESCRIPTOR.fields}
    usage["accepted_at"] = list(answer.usage.accepted_at)
    usage["mode"] = _short(types_pb2.Mode.Name(answer.usage.mode), "MODE_").lower()
    return {
        "request_id": answer.start.request_id,
        "model": answer.start.model,
        "seed": answer.start.seed,
        "ids": answer.ids,
        "text": answer.text,
        "finish": finish,
        "usage": usage,
    }


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns wide enough for their contents; the first left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join((first.lstrip().ljust(widths[0]), *others))

    return "\n".join((line(header), line(["-" * w for w in widths]), *map(line, rows)))
