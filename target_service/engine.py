"""The target's engine: messages in, one step at a time, messages out. No IO and no clock of its own.

Only what the model draws is ever emitted; all that a peer says about the future is a guess, and decides speed alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import structlog
import torch

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.config import TargetConfig
from ssd.errors import FieldError
from ssd.models.config import ModelConfig
from ssd.proto_convert import outcome_table, proposal
from ssd.rpc.mail import Mail, Status
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.runner import ModelRunner
from ssd.speculation.cache import SpeculationCache
from ssd.speculation.finish import cut
from ssd.speculation.sampling import Draw, draw
from ssd.speculation.verify import verify
from target_service.admission import Limits, terms_of
from target_service.mail import step_outcome
from target_service.patience import Patience
from target_service.roster import Roster
from target_service.scheduler import Scheduler, StepRow
from target_service.sequence import LiveSequence

log = structlog.get_logger()


class TargetEngine:
    """Serves the sequences of any number of streams from one model; see ssd.rpc.engine_loop.Engine."""

    def __init__(
        self, runner: ModelRunner, pool: BlockPool, model: ModelConfig, config: TargetConfig, info: types_pb2.ModelInfo
    ) -> None:
        context = min(config.engine.max_context or model.max_position, model.max_position)
        self.info = info
        self.limits = Limits(model.vocab_size, context, pool.blocks * pool.block_size, config.max_k, model.eos_ids)
        self.roster = Roster()
        self._drawn: list[tuple[StepRow, list[Draw]]] = []  # of the step that has begun
        self.scheduler = Scheduler(self.roster.live, pool, config.engine.token_budget)
        # The read replica of the router's speculation cache, for the rounds in flight.
        self.replica = SpeculationCache(max_sequences=config.engine.max_sequences)
        self._runner = runner
        self._pool = pool
        self._config = config
        self._mail = Mail(target_pb2.TargetServiceServeResponse)
        self._numbers = itertools.count(1)
        self._dropped = 0

    def welcome(self, epoch: int) -> types_pb2.Welcome:
        """The first answer on a stream."""
        return types_pb2.Welcome(
            epoch=epoch,
            model=self.info,
            max_k=self._config.max_k,
            max_sequences=self._config.engine.max_sequences,
            max_tokens=self.limits.kv_tokens,
        )

    def load(self) -> types_pb2.EngineLoad:
        """Occupancy."""
        running = sum(sequence.holds_blocks for sequence in self.roster.live.values())
        return types_pb2.EngineLoad(
            running=running,
            waiting=len(self.roster) - running,
            kv_blocks_used=self._pool.in_use,
            kv_blocks_total=self._pool.blocks,
            block_size=self._pool.block_size,
            steps=self.scheduler.steps,
            stale_drops=self._dropped + sum(self.replica.stale.values()),
            preemptions=self.scheduler.preemptions,
        )

    # What peers send

    def handle(self, stream: int, request: target_pb2.TargetServiceServeRequest) -> None:
        """Take in one message of a stream."""
        # What ends makes room for what begins.
        for number in request.closes:
            if closing := self.roster.get(stream, number):
                self._end(closing)
            else:
                self.roster.end(stream, number)
        for message in request.opens:
            self._open(stream, message)
        for table in request.tables:
            if sequence := self._speculating(stream, table.sequence):
                self.replica.put(sequence.number, outcome_table(table, vocab_size=self.limits.vocab_size))
                self._look_up(sequence)
        for made in request.proposals:
            if sequence := self._speculating(stream, made.sequence):
                self._take_proposal(sequence, made)
        for change in request.drafting:
            if sequence := self._speculating(stream, change.sequence):
                sequence.set_drafting(change.drafting)

    def close_stream(self, stream: int) -> None:
        """The peer is gone: end all of its sequences."""
        for sequence in self.roster.of_stream(stream):
            self._end(sequence)
        self.roster.forget(stream)
        self._mail.discard(stream)

    # What happens in a step

    def wake_at(self, now: float) -> float | None:
        """When step() has something to do if no message comes."""
        return now if self._mail else self.scheduler.wake_at(now)

    def begin(self, now: float) -> None:
        """Plan a step at monotonic time `now`, seconds, run it and draw."""
        rows = self.scheduler.plan(now)
        if rows:
            self._drawn = self._draw(rows, self._run(rows))

    def finish(self) -> Mapping[int, target_pb2.TargetServiceServeResponse]:
        """Commit the step, with every prediction that came while it ran; one message for each stream that has news."""
        drawn, self._drawn = self._drawn, []
        for row, tokens in drawn:
            if self.roster.holds(row.sequence):  # it may have been closed meanwhile
                self._commit(row, tokens)
        return self._mail.collect()

    def step(self, now: float) -> Mapping[int, target_pb2.TargetServiceServeResponse]:
        """Begin and finish with nothing in between."""
        self.begin(now)
        return self.finish()

    def _run(self, rows: list[StepRow]) -> torch.Tensor:
        """One forward over all rows: logits [sum of row.draws, vocab]."""
        return self._runner.run([row.run_row() for row in rows])

    def _draw(self, rows: list[StepRow], logits: torch.Tensor) -> list[tuple[StepRow, list[Draw]]]:
        """The tokens y_0..y_K of each row; none for a row that is not complete."""
        wanted = [row.sequence.draw_rows(row.proposal) if row.complete else [] for row in rows]
        try:
            drawn = iter(draw(logits, list(itertools.chain(*wanted))) if len(logits) else [])
            return [(row, list(itertools.islice(drawn, row.draws))) for row in rows]
        except ValueError:
            # One row without a token to draw must not take the others with it.
            return self._draw_one_by_one(rows, logits)

    def _draw_one_by_one(self, rows: list[StepRow], logits: torch.Tensor) -> list[tuple[StepRow, list[Draw]]]:
        drawn: list[tuple[StepRow, list[Draw]]] = []
        parts = logits.split([row.draws for row in rows])
        for row, part in zip(rows, parts, strict=True):
            try:
                drawn.append((row, draw(part, row.sequence.draw_rows(row.proposal)) if row.complete else []))
            except ValueError as error:
                log.error("no token can be drawn", sequence=row.sequence.id, error=str(error))
                self._refuse(row.sequence, Status.INTERNAL, f"no token can be drawn: {error}")
        return drawn

    def _commit(self, row: StepRow, drawn: list[Draw]) -> None:
        """Accept what the draws confirm, end the sequence where it ends, and find the next proposal."""
        sequence, base_len = row.sequence, row.sequence.length
        if not drawn:
            sequence.advance(self._pool, sequence.computed + row.tokens)
            return
        verdict = verify(row.proposal, drawn)
        end = cut(verdict.ids, sequence.generated, sequence.terms.rules)
        emitted = verdict.emitted[: end.kept]
        accepted = min(verdict.accepted, end.kept)
        # The last draw's own KV is not written yet, unless the cut made an accepted token the last one.
        sequence.advance(self._pool, base_len + accepted, [one.id for one in emitted])
        outcome = step_outcome(sequence, base_len, len(row.proposal), accepted, emitted, end)
        if end.reason is None:
            outcome.hit = self._next_round(sequence)
            outcome.next_depth = len(sequence.proposal)
        self._mail.to(sequence.stream).outcomes.append(outcome)
        if end.reason is not None:
            self._end(sequence)

    def _next_round(self, sequence: LiveSequence) -> bool:
        """Put the next proposal in flight, or begin to wait for one; whether anticipation found it."""
        if self._look_up(sequence):
            return sequence.terms.mode == types_pb2.MODE_SSD
        if sequence.drafting and sequence.appetite:
            sequence.patience.begin()
        return False

    # Proposals

    def _speculating(self, stream: int, number: int) -> LiveSequence | None:
        """The sequence that a prediction is for; the message is dropped and counted when there is none."""
        sequence = self.roster.get(stream, number)
        if sequence is None or sequence.terms.mode == types_pb2.MODE_AR:
            self._dropped += 1
            return None
        return sequence

    def _take_proposal(self, sequence: LiveSequence, message: types_pb2.Proposal) -> None:
        made = proposal(message, vocab_size=self.limits.vocab_size)
        if made.ids:
            self.replica.put_proposal(sequence.number, made)
            self._look_up(sequence)
        elif made.base_len == sequence.length:
            sequence.patience.end()
        else:
            self._dropped += 1

    def _look_up(self, sequence: LiveSequence) -> bool:
        """Give a sequence without a proposal the best one that the replica has; whether there was one."""
        if sequence.proposal or not sequence.appetite:
            return False
        found = self.replica.next_proposal(sequence.number, sequence.length, sequence.ids)
        if found is not None:
            sequence.propose(found.ids)
        return found is not None

    # Beginning and end

    def _open(self, stream: int, message: target_pb2.TargetOpen) -> None:
        if self.roster.used(stream, message.sequence):
            # A doubled or late message; what is there, if anything, goes on.
            self._dropped += 1
            return
        try:
            terms = terms_of(message, self.limits)
        except FieldError as error:
            self._mail.refuse(stream, message.sequence, Status.INVALID_ARGUMENT, str(error))
            return
        most = self._config.engine.max_sequences
        if len(self.roster) >= most:
            self._mail.refuse(stream, message.sequence, Status.RESOURCE_EXHAUSTED, f"all {most} sequences are in use")
            return
        sequence = LiveSequence(
            stream=stream,
            id=message.sequence,
            number=next(self._numbers),
            terms=terms,
            ids=list(message.ids),
            table=BlockTable(self._pool),
            patience=Patience(self._config.proposal_wait_s),
            drafting=message.drafting,
        )
        self.roster.add(sequence)

    def _end(self, sequence: LiveSequence) -> None:
        """Give back everything that the sequence holds, and say so."""
        sequence.table.release()
        self.replica.forget(sequence.number)
        self.roster.end(sequence.stream, sequence.id)
        self._mail.to(sequence.stream).closed.append(sequence.id)

    def _refuse(self, sequence: LiveSequence, status: Status, reason: str) -> None:
        self._mail.refuse(sequence.stream, sequence.id, status, reason)
        self._end(sequence)
