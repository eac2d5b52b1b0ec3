"""One request's output: from outcomes to text, stops and usage. No IO.

Stop texts are looked for token by token, whatever the size of the accepted block, so that ids, text, logprobs and usage
all end at the token that completed one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.ssd.v1 import inference_pb2, target_pb2, types_pb2
from router.detokenizer import Detokenizer
from router.stops import StopTexts
from router.totals import Totals

# With 20 alternatives each, this many tokens stay far below the limit of a message.
MESSAGE_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class _Part:
    """What one outcome added. A part may have text without ids: what is left over at the end."""

    text: str
    ids: Sequence[int] = ()
    logprobs: Sequence[types_pb2.TokenLogprob] = ()


@dataclass
class Session:
    """Output that was produced, the part of it that was not taken yet, and how it ended.

    min_tokens   a stop text completed within the first min_tokens output tokens does not end the generation
    """

    start: inference_pb2.GenerationStart
    mode: types_pb2.Mode
    detokenizer: Detokenizer
    stops: StopTexts
    min_tokens: int = 0
    totals: Totals = field(default_factory=Totals)  # the coordinator's, of the last outcome
    cached_tokens: int = 0
    generated: int = 0
    finish: inference_pb2.Finish | None = None
    done: bool = False  # the last message was taken
    _parts: deque[_Part] = field(default_factory=deque)
    _first: bool = True

    def feed(self, outcome: target_pb2.StepOutcome, totals: Totals) -> bool:
        """Take in one outcome; True if the generation ended with it, by its own end or by a stop text within it."""
        if self.finish is not None:
            return True
        self.totals = totals
        if not self.generated:
            self.cached_tokens = outcome.cached_tokens
        text: list[str] = []
        for index, token_id in enumerate(outcome.ids, start=1):
            self.generated += 1
            scan = self.stops.push(self.detokenizer.push(token_id), active=self.generated > self.min_tokens)
            text.append(scan.text)
            if scan.stop is not None:
                self._parts.append(_Part("".join(text), outcome.ids[:index], outcome.logprobs[:index]))
                self.finish = inference_pb2.Finish(reason=types_pb2.FINISH_REASON_STOP, stop_text=scan.stop)
                return True
        self._parts.append(_Part("".join(text), outcome.ids, outcome.logprobs))
        if outcome.finish:
            self.end(outcome.finish, outcome.stop_id if outcome.finish == types_pb2.FINISH_REASON_STOP else None)
        return self.finish is not None

    def end(self, reason: types_pb2.FinishReason, stop_id: int | None = None) -> None:
        """The generation is over, with all text so far; without effect if it was over already."""
        if self.finish is not None:
            return
        # What is left of an incomplete character comes after the text that a stop might have begun with.
        rest = self.stops.push(self.detokenizer.flush(), active=False)
        self._parts.append(_Part(rest.text + self.stops.flush()))
        self.finish = inference_pb2.Finish(reason=reason, stop_id=stop_id)

    @property
    def behind(self) -> int:
        """Outcomes that were not taken yet."""
        return len(self._parts)

    def take(self) -> inference_pb2.GenerateStreamResponse | None:
        """What was not taken yet as one message, or the first of several; None when there is nothing to say."""
        if self.done or not (self._first or self._parts or self.finish is not None):
            return None
        message = inference_pb2.GenerateStreamResponse()
        text: list[str] = []
        while self._parts:
            part = self._parts[0]
            if message.token_ids and len(message.token_ids) + len(part.ids) > MESSAGE_TOKENS:
                break
            self._parts.popleft()
            text.append(part.text)
            message.token_ids.extend(part.ids)
            message.logprobs.extend(part.logprobs)
        message.text = "".join(text)
        if self._first:
            message.start.CopyFrom(self.start)
            self._first = False
        if self.finish is not None and not self._parts:
            message.finish.CopyFrom(self.finish)
            message.usage.CopyFrom(self.usage())
            self.done = True
        return message

    def usage(self) -> inference_pb2.Usage:
        """Counts so far; completion tokens end where ids and text end."""
        return inference_pb2.Usage(
            prompt_tokens=self.start.prompt_tokens,
            completion_tokens=self.generated,
            cached_tokens=self.cached_tokens,
            rounds=self.totals.rounds,
            proposed=self.totals.proposed,
            accepted=self.totals.accepted,
            hits=self.totals.hits,
            misses=self.totals.misses,
            mode=self.mode,
            accepted_at=self.totals.accepted_at,
            jit_rounds=self.totals.jit_rounds,
            ngram_rounds=self.totals.ngram_rounds,
            plain_rounds=self.totals.plain_rounds,
        )
