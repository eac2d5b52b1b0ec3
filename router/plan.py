"""What a checked request asks of target and draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos.ssd.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation, as ids and numbers.

    prompt      ids, at least one
    sampling    every field that was given, and always the seed
    limits      token-level ends
    logprobs    -1 none, 0 the chosen token only, n = n alternatives besides
    mode        MODE_AR, MODE_SD or MODE_SSD
    k           longest proposal
    fan_out     tokens anticipated for each acceptance length
    """

    prompt: Sequence[int]
    sampling: types_pb2.SamplingParameters
    limits: types_pb2.TokenLimits
    logprobs: int
    mode: types_pb2.Mode
    k: int
    fan_out: int

    @property
    def speculative(self) -> bool:
        return self.mode != types_pb2.MODE_AR

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and output together that may become live."""
        return len(self.prompt) + self.limits.max_tokens
