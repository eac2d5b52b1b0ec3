"""Changes to logits that depend on the text so far: bias, penalties, forbidden tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from ssd.speculation.params import SamplingParams


class TokenHistory:
    """The committed tokens of one sequence, shared by all of its rows.

    Extending it costs O(1) a token; the tensors that penalties need are made on first use and kept until the next
    change, so that the K + 1 rows of a block share them and sequences without penalties never make them.
    """

    def __init__(self, prompt_ids: Sequence[int], output_ids: Iterable[int] = ()) -> None:
        self._prompt = tuple(prompt_ids)
        self._output: list[int] = []
        self._counts: dict[int, int] = {}
        self._seen: dict[int, None] | None = None
        self._seen_tensor: Tensor | None = None
        self._count_tensors: tuple[Tensor, Tensor] | None = None
        self.extend(output_ids)

    def __len__(self) -> int:
        """Committed tokens, prompt included: the absolute position of the token to be drawn next."""
        return len(self._prompt) + len(self._output)

    @property
    def prompt_len(self) -> int:
        return len(self._prompt)

    @property
    def output_ids(self) -> Sequence[int]:
        return self._output

    def extend(self, ids: Iterable[int]) -> None:
        """Commit further generated tokens."""
        for token in ids:
            self._output.append(token)
            self._counts[token] = self._counts.get(token, 0) + 1
            if self._seen is not None:
                self._seen[token] = None
        self._seen_tensor = None
        self._count_tensors = None

    def seen(self, ahead: Sequence[int], device: torch.device) -> Tensor:
        """Distinct ids of prompt, output and `ahead`: int64 [S]."""
        if self._seen is None:
            self._seen = dict.fromkeys(self._prompt) | dict.fromkeys(self._output)
        if self._seen_tensor is None or self._seen_tensor.device != device:
            self._seen_tensor = torch.tensor(list(self._seen), dtype=torch.int64, device=device)
        fresh = [token for token in dict.fromkeys(ahead) if token not in self._seen]
        if not fresh:
            return self._seen_tensor
        return torch.cat([self._seen_tensor, torch.tensor(fresh, dtype=torch.int64, device=device)])

    def output_counts(self, ahead: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Distinct ids of output and `ahead`, and how often each occurs there: two int64 [S]."""
        if self._count_tensors is None or self._count_tensors[0].device != device:
            self._count_tensors = _id_count_tensors(self._counts, device)
        if not ahead:
            return self._count_tensors
        ids, counts = self._count_tensors
        more = Counter(ahead)
        fresh = {token: count for token, count in more.items() if token not in self._counts}
        for token, count in more.items():
            if token not in fresh:
                counts = counts + count * (ids == token)
        fresh_ids, fresh_counts = _id_count_tensors(fresh, device)
        return torch.cat([ids, fresh_ids]), torch.cat([counts, fresh_counts])


def adjusts(params: SamplingParams, forbidden: Collection[int]) -> bool:
    """True when `adjust` would change anything."""
    return bool(params.logit_bias or forbidden or params.repetition_penalty != 1.0 or params.counts_output)


def adjust(
    row: Tensor, params: SamplingParams, history: TokenHistory, ahead: Sequence[int], forbidden: Collection[int]
) -> None:
    """Apply bias, then penalties, then forbidden ids to one row of logits [V], in place.

    `ahead` holds the proposal tokens that stand between the committed text and this row's position. They count
    exactly like committed output, otherwise a block would draw other tokens than one step at a time does.
    """
    if params.logit_bias:
        ids, bias = zip(*params.logit_bias, strict=True)
        where = torch.tensor(ids, dtype=torch.int64, device=row.device)
        row[where] += torch.tensor(bias, dtype=row.dtype, device=row.device)
    if params.repetition_penalty != 1.0:
        where = history.seen(ahead, row.device)
        logits = row[where]
        penalty = params.repetition_penalty
        row[where] = torch.where(logits > 0, logits / penalty, logits * penalty)
    if params.counts_output:
        where, counts = history.output_counts(ahead, row.device)
        row[where] -= params.frequency_penalty * counts.to(row.dtype) + params.presence_penalty
    if forbidden:
        row[torch.tensor(sorted(forbidden), dtype=torch.int64, device=row.device)] = -torch.inf


def _id_count_tensors(counts: dict[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(list(counts.keys()), dtype=torch.int64, device=device)
    return ids, torch.tensor(list(counts.values()), dtype=torch.int64, device=device)
