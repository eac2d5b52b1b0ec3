"""What a checked request asks of target and draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos.ssd.v1 import types_pb2

# Fallbacks for which a draft is asked after a miss.
_DRAFTED = frozenset({types_pb2.FALLBACK_JIT, types_pb2.FALLBACK_AUTO})


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation, as ids and numbers.

    prompt        ids, at least one
    sampling      every field that was given, and always the seed
    limits        token-level ends
    logprobs      -1 none, 0 the chosen token only, n = n alternatives besides
    mode          MODE_AR, MODE_SD, MODE_SSD or MODE_AUTO
    k             longest proposal
    fan_out       how the branches of a table are shared out, every field resolved; in AUTO until the governor decides
    verification  how draft tokens are verified
    saguaro_c     rejection: C of the draft's scaled law, 0..1
    fallback      what a row verifies after a miss
    drafts        how many drafts share the fan-out, as far as there are that many
    max_budget    AUTO: most branches of a table
    """

    prompt: Sequence[int]
    sampling: types_pb2.SamplingParameters
    limits: types_pb2.TokenLimits
    logprobs: int
    mode: types_pb2.Mode
    k: int
    fan_out: types_pb2.FanOut
    verification: types_pb2.Verification = types_pb2.VERIFICATION_COUPLED
    saguaro_c: float = 1.0
    fallback: types_pb2.Fallback = types_pb2.FALLBACK_JIT
    drafts: int = 1
    max_budget: int = 48

    @property
    def drafts_wanted(self) -> int:
        """Only the first draft makes just-in-time proposals, so further ones are of use for tables alone."""
        if self.mode == types_pb2.MODE_AR:
            return 0
        if self.mode == types_pb2.MODE_SD:
            return int(self.asks_after_miss)
        return self.drafts

    @property
    def governed(self) -> bool:
        return self.mode == types_pb2.MODE_AUTO

    @property
    def asks_after_miss(self) -> bool:
        """Whether a draft is asked for a proposal after a miss."""
        return self.fallback in _DRAFTED

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and output together that may become live."""
        return len(self.prompt) + self.limits.max_tokens


def uniform(fan_out: int) -> types_pb2.FanOut:
    """`fan_out` tokens for each acceptance length."""
    return types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_UNIFORM, fan_out=fan_out)
