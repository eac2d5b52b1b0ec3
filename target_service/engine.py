"""The target's engine: messages in, one step at a time, messages out. No IO and no clock of its own.

What a peer says about the future is a guess. Under coupled verification it decides speed alone; under rejection the
ids depend on it, but their distribution does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
import torch

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.config import TargetConfig
from ssd.errors import FieldError
from ssd.models.config import ModelConfig
from ssd.proto_convert import outcome_table, proposal
from ssd.rpc.mail import Mail, Status
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.runner import Runner, Stepped
from ssd.speculation.cache import Found, SpeculationCache
from ssd.speculation.finish import cut
from ssd.speculation.proposal import Continuation, Proposal
from ssd.speculation.verify import Verdict
from ssd.telemetry.trace import NO_TRACER, Tracer
from ssd.tensor_plane.planes import LawReceiver, NoPlanes
from target_service.admission import Limits, terms_of
from target_service.fallback import Fallback
from target_service.laws import LawLookup
from target_service.mail import source_of, step_outcome
from target_service.patience import Patience
from target_service.roster import Roster
from target_service.scheduler import Scheduler, StepRow
from target_service.sequence import LiveSequence
from target_service.timing import StepClock
from target_service.verification import Ruling, Undrawable, rulings, rulings_of

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Round:
    """A row that drew in this step, and what will be said of it."""

    sequence: LiveSequence
    outcome: target_pb2.StepOutcome


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was given to the device at monotonic time `planned`, seconds. `ran`: what is known of it by now, the
    logits of all draws where the runner does not draw itself."""

    rows: list[StepRow]
    ran: Stepped | torch.Tensor
    planned: float

    def done(self) -> bool:
        """Whether its ids would come without a wait."""
        return not isinstance(self.ran, Stepped) or self.ran.done()


class TargetEngine:
    """Serves the sequences of any number of streams from one model; see ssd.rpc.engine_loop.Engine."""

    def __init__(
        self,
        runner: Runner,
        pool: BlockPool,
        model: ModelConfig,
        config: TargetConfig,
        info: types_pb2.ModelInfo,
        tracer: Tracer = NO_TRACER,
        planes: LawReceiver | None = None,
    ) -> None:
        context = min(config.engine.max_context or model.max_position, model.max_position)
        self.info = info
        self._tracer = tracer
        self.limits = Limits(model.vocab_size, context, pool.blocks * pool.block_size, config.max_k, model.eos_ids)
        self.roster = Roster()
        self._launched: Launched | None = None
        self._ruled: list[tuple[StepRow, Verdict | None]] = []  # of the step that has begun
        self._clock = StepClock(tracer)
        self.scheduler = Scheduler(self.roster.live, pool, config.engine.token_budget)
        # The read replica of the router's speculation cache, for the rounds in flight.
        self.replica = SpeculationCache(max_sequences=config.engine.max_sequences)
        self.planes: LawReceiver = planes or NoPlanes()
        self._laws = LawLookup(self.planes, model.vocab_size)
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
            plane=self.planes.ability,
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
            stale_drops=self._dropped + sum(self.replica.stale.values()) + self._laws.drops.total(),
            preemptions=self.scheduler.preemptions,
            law_drops=self._laws.drops,
        )

    # What peers send

    def handle(self, stream: int, request: target_pb2.TargetServiceServeRequest) -> None:
        """Take in one message of a stream. An empty one says that something has come on a plane."""
        for late in self._laws.take_late():
            if self.roster.holds(late) and not late.proposal.ids:
                self._look_up_or_run(late)
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
                self._arrived("table", sequence)
                self.replica.put(sequence.number, outcome_table(table, vocab_size=self.limits.vocab_size))
                self._look_up(sequence)
        for made in request.proposals:
            if sequence := self._speculating(stream, made.sequence):
                self._take_proposal(sequence, made)
        for change in request.drafting:
            if sequence := self._speculating(stream, change.sequence):
                sequence.set_drafting(change.drafting, change.fallback)
        for plane in request.plane_closes:
            self.planes.close(stream, plane)
        for order in request.planes:
            self.planes.order(stream, order)

    def close_stream(self, stream: int) -> None:
        """The peer is gone: end all of its sequences."""
        for sequence in self.roster.of_stream(stream):
            self._end(sequence)
        self.roster.forget(stream)
        self.planes.close_stream(stream)
        self._mail.discard(stream)

    # What happens in a step

    def wake_at(self, now: float) -> float | None:
        """When step() has something to do if no message comes."""
        return now if self._mail else self.scheduler.wake_at(now)

    def begin(self, now: float) -> None:
        """Plan a step at monotonic time `now`, seconds, and give it to the device."""
        rows = self.scheduler.plan(now)
        if not rows:
            return
        self._clock.begin(now, rows)
        self._launched = self._launch(rows, now)

    def busy_for(self, now: float) -> float:
        """Seconds for which the device will surely be busy with the step; 0 when it may be over."""
        if self._launched is None or self._launched.done():
            return 0.0
        return max(0.0, self._clock.surely_left(now))

    def wait(self) -> None:
        """Wait for the step that was begun, and draw."""
        launched, self._launched = self._launched, None
        if launched is None:
            return
        for row, ruling in zip(launched.rows, self._decided(launched), strict=True):
            if not self.roster.holds(row.sequence):
                continue  # it was closed meanwhile
            if isinstance(ruling, Undrawable):
                log.error("no token can be drawn", sequence=row.sequence.id, error=ruling.reason)
                self._refuse(row.sequence, Status.INTERNAL, f"no token can be drawn: {ruling.reason}")
            else:
                self._ruled.append((row, ruling))

    def finish(self, now: float | None = None) -> Mapping[int, target_pb2.TargetServiceServeResponse]:
        """Commit the step, with every prediction that came while it ran; one message for each stream that has news.

        now   monotonic time in seconds; without it the step is not timed
        """
        self.wait()
        ruled, self._ruled = self._ruled, []
        timing = self._clock.end(now)
        # A sequence may have been closed meanwhile.
        rounds = [self._commit(row, ruling) for row, ruling in ruled if self.roster.holds(row.sequence)]
        drawn = [one for one in rounds if one is not None]
        over = {one.sequence for one in drawn if one.outcome.finish}
        missed = [one.sequence for one in drawn if one.sequence not in over and not self._anticipated(one)]
        self._fall_back(missed, over)
        for one in drawn:
            self._report(one, timing)
        for stream, report in self.planes.reports():
            self._mail.to(stream).planes.append(report)
        return self._mail.collect()

    def step(self, now: float) -> Mapping[int, target_pb2.TargetServiceServeResponse]:
        """Begin and finish with nothing in between."""
        self.begin(now)
        return self.finish()

    def _launch(self, rows: list[StepRow], begun: float) -> Launched:
        """One forward over all rows of the step that began at `begun`."""
        runs = [row.run_row() for row in rows]
        planned = self._tracer.now()
        self._tracer.span("engine", "plan", begun, planned)
        if not self._runner.draws:
            return Launched(rows, self._runner.run(runs), planned)
        return Launched(rows, self._runner.step(runs, [draw for row in rows for draw in row.plain_draws()]), planned)

    def _decided(self, launched: Launched) -> list[Ruling]:
        """What the step decides for each of its rows."""
        rows, ran = launched.rows, launched.ran
        if isinstance(ran, Stepped):
            _ = ran.ids  # here the device is waited for
        known = self._tracer.now()
        decided = rulings_of(rows, ran) if isinstance(ran, Stepped) else rulings(rows, ran)
        self._tracer.span("engine", "forward", launched.planned, known)
        self._tracer.span("engine", "draw", known, self._tracer.now())
        return decided

    def _commit(self, row: StepRow, verdict: Verdict | None) -> Round | None:
        """Commit what the verdict says, up to the end of the sequence; None when the row was not complete."""
        sequence, base_len = row.sequence, row.sequence.length
        if verdict is None:
            sequence.advance(self._pool, sequence.computed + row.tokens)
            return None
        end = cut(verdict.ids, sequence.generated, sequence.terms.rules)
        emitted = verdict.emitted[: end.kept]
        accepted = min(verdict.accepted, end.kept)
        sequence.learn(row.proposal, verdict.accepted, self._clock.typical_s)
        # The last draw's own KV is not written yet, unless the cut made an accepted token the last one.
        sequence.advance(self._pool, base_len + accepted, [one.id for one in emitted])
        return Round(sequence, step_outcome(sequence, base_len, row.proposal, accepted, emitted, end))

    def _anticipated(self, round_: Round) -> bool:
        """Put the proposal in flight that the replica has for the outcome; False on a miss."""
        found = self._look_up(round_.sequence)
        if found is not None and round_.sequence.came_late(found) and round_.sequence.waits:
            return False
        if found is not None and round_.sequence.terms.anticipates:
            round_.outcome.hit = True
            # A table of an earlier round ranks other candidates.
            round_.outcome.hit_rank = found.rank if found.base_len == round_.outcome.base_len else 0
        return found is not None

    def _fall_back(self, missed: list[LiveSequence], over: set[LiveSequence]) -> None:
        """Prompt lookups for sequences without a proposal, or the beginning of a wait for one.

        Those that may do either decide last: only when nothing else runs does a wait cost time.
        """
        missed = sorted(missed, key=lambda sequence: sequence.fallback.choice == types_pb2.FALLBACK_AUTO)
        aside = over.union(missed)
        running = sum(one not in aside and not one.patience.waiting for one in self.roster.live.values())
        for sequence in missed:
            sequence.fall_back(busy=running > 0)
            running += not sequence.patience.waiting

    def _report(self, round_: Round, timing: target_pb2.StepTiming | None) -> None:
        sequence, outcome = round_.sequence, round_.outcome
        if not sequence.patience.waiting:
            outcome.next_depth = len(sequence.proposal.ids)
            outcome.next_source = source_of(sequence.proposal)
        mail = self._mail.to(sequence.stream)
        mail.outcomes.append(outcome)
        if timing is not None:
            mail.timing.CopyFrom(timing)
        if outcome.finish:
            self._end(sequence)

    # Proposals

    def _speculating(self, stream: int, number: int) -> LiveSequence | None:
        """The sequence that a prediction is for; the message is dropped and counted when there is none."""
        sequence = self.roster.get(stream, number)
        if sequence is None or sequence.terms.mode == types_pb2.MODE_AR:
            self._dropped += 1
            return None
        return sequence

    def _take_proposal(self, sequence: LiveSequence, message: types_pb2.Proposal) -> None:
        self._arrived("proposal", sequence)
        made = proposal(message, vocab_size=self.limits.vocab_size)
        if made.ids:
            self.replica.put_proposal(sequence.number, made)
            if made.base_len == sequence.length:
                self._look_up_or_run(sequence)
            else:
                self._look_up(sequence)
        elif made.base_len == sequence.length:
            sequence.patience.end()
        else:
            self._dropped += 1

    def _look_up_or_run(self, sequence: LiveSequence) -> None:
        """Look up what a row waited for. If its laws will never come it need not wait on, as nothing else may come."""
        if self._look_up(sequence) is None and not self._laws.is_late(sequence):
            sequence.patience.end()

    def _arrived(self, what: str, sequence: LiveSequence) -> None:
        """Note a prediction, and for how long its row has been standing still."""
        now, since = self._tracer.now(), sequence.patience.since
        self._tracer.instant("predictions", what, now, sequence=sequence.id)
        if sequence.patience.waiting and since is not None:
            self._tracer.span("waiting", f"wait for a {what}", since, now, sequence=sequence.id)

    def _look_up(self, sequence: LiveSequence) -> Found | None:
        """Give a sequence the best proposal that the replica has, or what it has behind the one in flight."""
        if not sequence.appetite:
            return None
        found = self.replica.next_proposal(
            sequence.number, sequence.length, sequence.ids, impartial=sequence.terms.rejection
        )
        found = self._laws.opened(sequence, found) if found is not None else None
        if found is None:
            return None
        made = Proposal(sequence.length, found.ids, found.laws, found.source)
        if sequence.patience.waiting and sequence.came_late(found):
            sequence.hold(made, found.base_len)
        elif sequence.proposal.ids and not sequence.patience.waiting:
            sequence.deepen(Continuation(found.ids, found.laws))
        else:
            sequence.propose(made, found.base_len)
            if not sequence.came_late(found):
                sequence.patience.answered()
        return found

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
            fallback=Fallback(terms.fallback),
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
