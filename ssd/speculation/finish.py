"""Token-level ends of a sequence, with the meaning of one token at a time however many are emitted together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class StopRules:
    """When a sequence ends.

    eos_ids      the model's end-of-sequence ids, all of them; ignored when ignore_eos is set
    stop_ids     the request's own stop ids, never ignored
    min_tokens   a stop id among the first min_tokens generated tokens does not end the sequence
    max_tokens   most tokens to generate
    max_len      most tokens of prompt and output together, None = no limit beside max_tokens
    prompt_len   tokens of the prompt, used with max_len
    """

    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 1 << 31
    max_len: int | None = None
    prompt_len: int = 0

    @cached_property
    def ending_ids(self) -> frozenset[int]:
        """Ids that end the sequence."""
        return frozenset(self.stop_ids) if self.ignore_eos else frozenset(self.eos_ids) | frozenset(self.stop_ids)

    @cached_property
    def limit(self) -> int:
        """Most tokens that may be generated."""
        return self.max_tokens if self.max_len is None else min(self.max_tokens, self.max_len - self.prompt_len)

    def forbidden_at(self, generated_index: int) -> frozenset[int]:
        """Ids that must not be drawn as generated token `generated_index` (0-based)."""
        return self.ending_ids if generated_index < self.min_tokens else frozenset()


@dataclass(frozen=True, slots=True)
class Cut:
    """`kept` emitted tokens are final; `reason` is None while the sequence goes on; `stop_id` is the stop matched."""

    kept: int
    reason: FinishReason | None = None
    stop_id: int | None = None


def cut(emitted: Sequence[int], generated_before: int, rules: StopRules) -> Cut:
    """Where the sequence ends within `emitted`, of which generated_before tokens came earlier.

    A stop inside the limit wins (the stop token is kept, also as the very last token allowed); a stop past it is never
    seen, so that the reason stays LENGTH.
    """
    room = max(0, rules.limit - generated_before)
    first_stoppable = max(0, rules.min_tokens - generated_before)
    for offset in range(first_stoppable, min(room, len(emitted))):
        if emitted[offset] in rules.ending_ids:
            return Cut(offset + 1, FinishReason.STOP, emitted[offset])
    if len(emitted) >= room:
        return Cut(room, FinishReason.LENGTH)
    return Cut(len(emitted))
