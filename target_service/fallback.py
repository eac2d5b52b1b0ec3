"""What a row verifies after a miss: a just-in-time proposal, a prompt lookup, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos.ssd.v1 import types_pb2
from ssd.speculation.ngram import NGramIndex
from ssd.speculation.proposal import Proposal, Source

CHOICES = (
    types_pb2.FALLBACK_AUTO,
    types_pb2.FALLBACK_JIT,
    types_pb2.FALLBACK_NGRAM,
    types_pb2.FALLBACK_NONE,
)

STRONG_MATCH = 2
"""Tokens that must stand in the text before for a look-up to be tried on trust."""

_FADE = 0.95  # of everything seen, with each miss: what failed is tried again some day
_PRIOR_TOKENS = 4.0  # weight of a prior, in proposal tokens
_STRONG_PRIOR, _WEAK_PRIOR, _JIT_PRIOR = 1.0, 0.1, 0.6  # share of a proposal's tokens that is accepted
_WORTH_VERIFYING = 0.1  # a smaller share does not pay for the query tokens
_WAIT_PRIOR = 0.5  # of a just-in-time proposal, in target steps


@dataclass(slots=True)
class _Share:
    """Accepted share of proposal tokens, decaying."""

    prior: float
    accepted: float = 0.0
    proposed: float = 0.0

    @property
    def estimate(self) -> float:
        return (self.accepted + self.prior * _PRIOR_TOKENS) / (self.proposed + _PRIOR_TOKENS)

    def observe(self, accepted: int, proposed: int) -> None:
        self.accepted += accepted
        self.proposed += proposed

    def fade(self) -> None:
        self.accepted *= _FADE
        self.proposed *= _FADE


class Fallback:
    """One sequence's choice after each miss, with what the choices before have brought.

    JIT waits for the draft; NGRAM verifies what followed when the text last ended like this; AUTO takes the one that
    promises more tokens per step. The index of n-grams is only kept once it has been asked for.
    """

    def __init__(self, choice: types_pb2.Fallback) -> None:
        self.choice = choice
        self._index: NGramIndex | None = None
        self._jit = _Share(_JIT_PRIOR)
        self._strong = _Share(_STRONG_PRIOR)
        self._weak = _Share(_WEAK_PRIOR)
        self._looked_up = self._weak  # whose proposal was the last
        self._wait_steps = _WAIT_PRIOR

    @property
    def waits(self) -> bool:
        """Whether this row ever waits for its draft."""
        return self.choice in (types_pb2.FALLBACK_JIT, types_pb2.FALLBACK_AUTO)

    def observe(self, source: Source, accepted: int, proposed: int) -> None:
        """The result of a round; rounds after hits say nothing about fallbacks."""
        if source is Source.PROPOSAL:
            self._jit.observe(accepted, proposed)
        elif source is Source.NGRAM:
            self._looked_up.observe(accepted, proposed)

    def waited(self, steps: float) -> None:
        """The row has stood still this long, in target steps, before it ran."""
        self._wait_steps += 0.25 * (steps - self._wait_steps)

    def look_up(self, ids: Sequence[int], count: int, *, draft: bool, busy: bool) -> Proposal | None:
        """After a miss: up to `count` tokens from the text itself, or None to wait for the draft or go on plainly.

        ids     all committed tokens; those of the last call, and more
        draft   a draft could be waited for
        busy    another row runs anyway, so this one would ride along without a proposal instead of waiting
        """
        if self.choice not in (types_pb2.FALLBACK_NGRAM, types_pb2.FALLBACK_AUTO):
            return None
        if self._index is None:
            self._index = NGramIndex()
        self._index.extend(ids[len(self._index) :])
        for share in (self._jit, self._strong, self._weak):
            share.fade()
        made = self._index.propose(count)
        if made is None:
            return None
        share = self._strong if self._index.matched >= STRONG_MATCH else self._weak
        if self.choice == types_pb2.FALLBACK_AUTO and not self._promises_more(share, count, draft and not busy):
            return None
        self._looked_up = share
        return Proposal(made.base_len, made.ids, source=Source.NGRAM)

    def _promises_more(self, share: _Share, count: int, wait: bool) -> bool:
        """Whether a look-up is worth verifying, and brings more tokens per time than a wait for the draft would."""
        if share.estimate < _WORTH_VERIFYING:
            return False
        drafted = (1.0 + self._jit.estimate * count) / (1.0 + self._wait_steps)
        return not wait or 1.0 + share.estimate * count >= drafted
