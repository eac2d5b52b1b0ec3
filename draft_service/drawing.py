"""From logits to tokens, for a batch of rows of any sequences: ranked candidates, or draws from the draft's own law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ssd.runtime.draws import MOST_RANKED, PlainDraw, drawn_plainly, plain_draw
from ssd.runtime.runner import Stepped
from ssd.speculation.law import SparseLaw
from ssd.speculation.sampling import DrawRow, top_candidates
from ssd.speculation.sparse_law import draw_from_sparse_laws, filtered_laws, sparse_laws

# Laws are float64 and a few copies are alive at once; so many numbers of each bound them.
_GROUP = 1 << 22


@dataclass(frozen=True, slots=True)
class Saguaro:
    """The scaling of a law: its fan_out + 1 likeliest tokens by `scale`; see ssd.speculation.sparse_law.saguaro."""

    fan_out: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one row of logits is for: the best candidates, or (with `law`) a draw from the draft's own law."""

    row: DrawRow
    law: Saguaro | None = None

    @property
    def plain(self) -> PlainDraw | None:
        """The draw for a device that knows nothing but temperatures, if that is all it takes."""
        if self.law is not None or self.row.forbidden or not drawn_plainly(self.row.params):
            return None
        return plain_draw(self.row.params, self.row.position)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Ids, best first, and the law that the only one was drawn from. No ids: nothing can be drawn from the row."""

    ids: tuple[int, ...]
    law: SparseLaw | None = None


def drawn(logits: Tensor, wanted: Sequence[Wanted], count: int, vocab: int) -> list[Drawn]:
    """One answer for each row of logits [N, V >= vocab]: `count` candidates (fewer if `vocab` has fewer), or a draw.

    Ids from `vocab` on are padding of the embedding and never drawn. A row whose parameters drive a logit out of range
    gets no ids, and the other rows get theirs.
    """
    answers: list[Drawn] = [Drawn(())] * len(wanted)
    common = logits[:, :vocab]
    for from_law in (False, True):
        members = [i for i, one in enumerate(wanted) if (one.law is not None) is from_law]
        if members:
            part = common if len(members) == len(wanted) else common[members]
            asked = [wanted[i] for i in members]
            for i, answer in zip(members, _answers(part, asked, min(count, common.shape[1])), strict=True):
                answers[i] = answer
    return answers


def stepped_answers(
    stepped: Stepped, wanted: Sequence[Wanted], numbers: Sequence[int], count: int, vocab: int
) -> list[Drawn]:
    """`drawn` where the device has made the plain draws already; numbers[i] is the logits' row for wanted[i]."""
    plain = [count <= MOST_RANKED and one.plain is not None for one in wanted]
    others = [i for i in range(len(wanted)) if not plain[i]]
    answers = [ranked(stepped.ids[n][:count]) if known else Drawn(()) for n, known in zip(numbers, plain, strict=True)]
    if others:
        logits = stepped.logits([numbers[i] for i in others])
        for i, answer in zip(others, drawn(logits, [wanted[i] for i in others], count, vocab), strict=True):
            answers[i] = answer
    return answers


def ranked(ids: Sequence[int]) -> Drawn:
    """The device's ids; none of a row that cannot be drawn from."""
    return Drawn(()) if ids[0] < 0 else Drawn(tuple(ids))


def _answers(logits: Tensor, wanted: Sequence[Wanted], count: int) -> list[Drawn]:
    try:
        if wanted[0].law is not None:
            return _from_laws(logits, wanted)
        return [Drawn(tuple(ids)) for ids in top_candidates(logits, [one.row for one in wanted], count).tolist()]
    except ValueError:
        if len(wanted) == 1:
            return [Drawn(())]
    return [_answers(logits[i : i + 1], [one], count)[0] for i, one in enumerate(wanted)]


def _from_laws(logits: Tensor, wanted: Sequence[Wanted]) -> list[Drawn]:
    size = max(1, _GROUP // logits.shape[1])
    laws: list[SparseLaw] = []
    for start in range(0, len(wanted), size):
        laws += _laws(logits[start : start + size], wanted[start : start + size])
    seeds = [one.row.params.seed for one in wanted]
    tokens = draw_from_sparse_laws(laws, seeds, [one.row.position for one in wanted])
    return [Drawn((token,), law) for token, law in zip(tokens, laws, strict=True)]


def _laws(logits: Tensor, wanted: Sequence[Wanted]) -> list[SparseLaw]:
    whole = filtered_laws(logits, [one.row for one in wanted])
    kinds: dict[Saguaro, list[int]] = {}
    for i, one in enumerate(wanted):
        kinds.setdefault(one.law or Saguaro(), []).append(i)
    found: dict[int, SparseLaw] = {}
    for kind, members in kinds.items():
        part = whole if len(members) == len(wanted) else whole[members]
        found |= zip(members, sparse_laws(part, fan_out=kind.fan_out, scale=kind.scale), strict=True)
    return [found[i] for i in range(len(wanted))]
