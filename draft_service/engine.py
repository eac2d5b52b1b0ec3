"""The draft's engine: messages in, at most one pass a step, messages out. No IO and no clock of its own.

Nothing here is precious. A message that does not fit what is held is dropped and counted, a gap is answered with
NeedResync, and a sequence that cannot be served is refused: the target goes on without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from draft_service.admission import Limits, check_ids, parts_of, planned_policy, policy_of, terms_of
from draft_service.drawing import Drawn
from draft_service.experience import Experience
from draft_service.mail import DraftMail
from draft_service.passes import Passes
from draft_service.room import Room
from draft_service.round import Flight
from draft_service.scheduler import Scheduler
from draft_service.sequence import DraftSequence, Work
from draft_service.streams import Streams
from draft_service.trunk import Trunk
from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.config import DraftConfig
from ssd.errors import FieldError
from ssd.models.config import ModelConfig
from ssd.rpc.mail import Status
from ssd.runtime.blocks import BlockPool
from ssd.runtime.runner import Runner
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal, Source
from ssd.telemetry.trace import NO_TRACER, Tracer
from ssd.tensor_plane.planes import LawSender, NoPlanes

_SOURCES = {types_pb2.PROPOSAL_SOURCE_JIT: Source.PROPOSAL, types_pb2.PROPOSAL_SOURCE_NGRAM: Source.NGRAM}

log = structlog.get_logger()


class DraftEngine:
    """Drafts for the sequences of any number of streams from one model; see ssd.rpc.engine_loop.Engine."""

    def __init__(
        self,
        runner: Runner,
        pool: BlockPool,
        model: ModelConfig,
        config: DraftConfig,
        info: types_pb2.ModelInfo,
        tracer: Tracer = NO_TRACER,
        planes: LawSender | None = None,
    ) -> None:
        """`info` says how many ids the clients may use; the model's own vocabulary may be padded beyond that."""
        context = min(config.engine.max_context or model.max_position, model.max_position)
        vocab = min(info.vocab_size or model.vocab_size, model.vocab_size)
        self.info = info
        self._tracer = tracer
        self.limits = Limits(vocab, context, config.max_k, config.max_branches, tuple(info.eos_ids) or model.eos_ids)
        self.live = Streams()
        self.experience = Experience()
        self._room = Room(self.live, pool)
        self._scheduler = Scheduler(self._room, config.engine.token_budget)
        self._passes = Passes(runner, vocab, config.max_k + 1, tracer)
        self.planes: LawSender = planes or NoPlanes()
        self._mail = DraftMail(self.planes)
        self._pool = pool
        self._config = config
        self._tickets = itertools.count(1)
        self._dropped = 0

    def welcome(self, epoch: int) -> types_pb2.Welcome:
        """The first answer on a stream."""
        return types_pb2.Welcome(
            epoch=epoch,
            model=self.info,
            max_k=self.limits.max_k,
            max_branches=self.limits.max_branches,
            max_sequences=self._config.engine.max_sequences,
            max_tokens=self._pool.blocks * self._pool.block_size,
            plane=self.planes.ability,
        )

    def load(self) -> types_pb2.EngineLoad:
        """Occupancy; `preemptions` counts tables dropped for want of KV room."""
        running = sum(bool(sequence.trunk.table.blocks) for sequence in self.live)
        return types_pb2.EngineLoad(
            running=running,
            waiting=len(self.live) - running,
            kv_blocks_used=self._pool.in_use,
            kv_blocks_total=self._pool.blocks,
            block_size=self._pool.block_size,
            steps=self._passes.count,
            stale_drops=self._dropped,
            preemptions=self._room.tables_dropped,
        )

    def check(self) -> None:
        """RuntimeError unless every block is accounted for."""
        self._pool.check(self._room.tables_held())

    # The step

    def begin(self, now: float) -> None:
        """Choose a step's work, run it and take in its results: at most one forward pass, or several behind one another
        on the device where nothing is worth sending between them.

        Outcomes that arrive meanwhile are handled after that, so they find everything that was drafted.
        """
        jobs, trees = self._scheduler.choose(self.live)
        for sequence in self._room.take_starved():
            self._refuse(sequence, Status.RESOURCE_EXHAUSTED, "the draft has no KV room for the sequence")
        answered = self._passes.trunks(now, jobs) if jobs else self._passes.trees(now, trees) if trees else ()
        for sequence, drawn in answered:
            self._take(sequence, drawn)

    def busy_for(self, now: float) -> float:
        """Nothing is left to wait for: a pass is over when `begin` returns."""
        return 0.0

    def wait(self) -> None:
        """See `busy_for`."""

    def finish(self, now: float | None = None) -> Mapping[int, draft_pb2.DraftServiceServeResponse]:
        """What the step and the messages since the last one have to say: one message for each stream that has news.

        now   monotonic time in seconds; without it the step is not timed
        """
        timing = self._passes.end(now)
        if timing is not None:
            self._mail.time(timing)
        return self._mail.collect()

    def step(self, now: float) -> Mapping[int, draft_pb2.DraftServiceServeResponse]:
        """Begin and finish with nothing in between."""
        self.begin(now)
        return self.finish()

    def wake_at(self, now: float) -> float | None:
        """At once while anybody waits for a step or a message, else never."""
        return now if self._mail or any(sequence.work is not Work.NONE for sequence in self.live) else None

    def _take(self, sequence: DraftSequence, drawn: Sequence[Drawn]) -> None:
        """What a forward pass gave a sequence."""
        if not all(one.ids for one in drawn):
            reason = "the sampling parameters leave no token that can be drawn from the draft's logits"
            self._refuse(sequence, Status.INVALID_ARGUMENT, reason)
            return
        result = sequence.take(drawn)
        if isinstance(result, OutcomeTable):
            self._mail.anticipate(sequence.stream, sequence.number, result, sequence.target)
            now = self._tracer.now()
            self._tracer.instant("tables", "publish", now, sequence=sequence.number, base=result.base_len)
        else:
            self._answer(sequence, result)

    # What peers send

    def handle(self, stream: int, request: draft_pb2.DraftServiceServeRequest) -> None:
        """Take in one message of a stream; never raises for anything a peer can send."""
        # What ends makes room for what begins.
        for number in request.closes:
            self._close(stream, number)
        for opened in request.opens:
            self._open(stream, opened)
        for advance in request.advances:
            self._advance(stream, advance)
        for resync in request.resyncs:
            self._resync(stream, resync)
        for plane in request.plane_closes:
            self.planes.close(stream, plane)
        for order in request.planes:
            self.planes.order(stream, order)

    def close_stream(self, stream: int) -> None:
        """Drop everything that was opened on a stream."""
        for sequence in self.live.end(stream):
            sequence.close()
        self.planes.close_stream(stream)
        self._mail.discard(stream)

    def _open(self, stream: int, message: draft_pb2.DraftOpen) -> None:
        number, most = message.sequence, self._config.engine.max_sequences
        if self.live.seen(stream, number):
            self._dropped += 1
            return
        try:
            terms = terms_of(message, self.limits)
            statistics = self.experience.of_sequence(rejection=terms.rejection)
            policy = policy_of(message, self.limits, statistics)
        except FieldError as error:
            self._mail.refuse(stream, number, Status.INVALID_ARGUMENT, str(error))
            return
        if len(self.live) >= most:
            self._mail.refuse(stream, number, Status.RESOURCE_EXHAUSTED, f"{most} sequences are drafted for already")
            return
        ids = list(message.ids)
        trunk = Trunk(self._pool, ids)
        sequence = DraftSequence(stream, number, terms, policy, ids, trunk, statistics, message.target)
        self.live.add(sequence)
        self._answer(sequence, sequence.begin(next(self._tickets), need_proposal=message.need_proposal))
        self._check_context(sequence)

    def _advance(self, stream: int, message: draft_pb2.Advance) -> None:
        sequence = self.live.get(stream, message.sequence)
        if sequence is None:
            self._dropped += 1
            return
        ids, known = list(message.ids), sequence.base_len - message.base_len
        in_step = known <= 0 or len(ids) > known
        changed = in_step and self._take_policy(sequence, message)
        if message.target and message.target != sequence.target:
            sequence.target, changed = message.target, True
        if not self.live.get(stream, message.sequence):
            return
        if known < 0 or sequence.ids[message.base_len : message.base_len + len(ids)] != ids[:known]:
            self._mail.ask_resync(stream, sequence.number, sequence.base_len)
        elif len(ids) > known:
            self._commit(sequence, ids[known:], message.need_proposal, self._flight(message))
        elif known == 0 and message.need_proposal:
            self._answer(sequence, sequence.remind(next(self._tickets)))
        elif known == 0 and message.in_flight:
            sequence.redirect(next(self._tickets), self._flight(message))
        elif not changed:
            self._dropped += 1

    def _take_policy(self, sequence: DraftSequence, message: draft_pb2.Advance) -> bool:
        """The governor's plan and this draft's part, if the message brings them."""
        policy = sequence.policy
        if message.HasField("plan"):
            policy = planned_policy(sequence.opened, policy, message.plan, self.limits, sequence.statistics)
        if message.parts:
            try:
                part, parts = parts_of(message.part, message.parts)
            except FieldError as error:
                self._refuse(sequence, Status.INVALID_ARGUMENT, str(error))
                return True
            policy = replace(policy, part=part, parts=parts)
        if policy is sequence.policy:
            return False
        self._answer(sequence, sequence.follow_policy(policy))
        return True

    def _flight(self, message: draft_pb2.Advance) -> Flight:
        """The proposal in flight, up to the first id that this model does not know and to its longest."""
        ids = itertools.takewhile(lambda token: token < self.limits.vocab_size, message.in_flight[: self.limits.max_k])
        return Flight(message.next_depth, tuple(ids), _SOURCES.get(message.next_source, Source.TABLE))

    def _resync(self, stream: int, message: draft_pb2.Resync) -> None:
        sequence = self.live.get(stream, message.sequence)
        if sequence is None:
            self._dropped += 1
            return
        ids, held = list(message.ids), sequence.base_len
        if ids == sequence.ids:
            if message.need_proposal:
                self._answer(sequence, sequence.remind(next(self._tickets)))
        elif ids == sequence.ids[: len(ids)]:
            self._dropped += 1
        elif ids[:held] == sequence.ids:
            self._commit(sequence, ids[held:], message.need_proposal, Flight())
        elif len(ids) < sequence.terms.prompt_len:
            self._refuse(sequence, Status.INVALID_ARGUMENT, "ids: contradict the prompt")
        elif self._ids_known(sequence, ids):
            self._answer(sequence, sequence.replace(next(self._tickets), ids, need_proposal=message.need_proposal))
            self._check_context(sequence)

    def _close(self, stream: int, number: int) -> None:
        sequence = self.live.close(stream, number)
        if sequence is not None:
            sequence.close()
            self._mail.to(stream).closed.append(number)

    def _commit(self, sequence: DraftSequence, ids: Sequence[int], need_proposal: bool, flight: Flight) -> None:
        if self._ids_known(sequence, ids):
            ticket = next(self._tickets)
            self._answer(sequence, sequence.commit(ticket, ids, need_proposal=need_proposal, flight=flight))
            self._check_context(sequence)

    def _answer(self, sequence: DraftSequence, proposal: Proposal | None) -> None:
        if proposal is not None:
            now = self._tracer.now()
            self._tracer.instant("proposals", "publish", now, sequence=sequence.number, ids=len(proposal.ids))
            self._mail.propose(sequence.stream, sequence.number, proposal, sequence.target)

    # Sequences that are given up

    def _ids_known(self, sequence: DraftSequence, ids: Sequence[int]) -> bool:
        try:
            check_ids(ids, self.limits.vocab_size)
        except FieldError as error:
            self._refuse(sequence, Status.INVALID_ARGUMENT, str(error))
            return False
        return True

    def _check_context(self, sequence: DraftSequence) -> None:
        context = self.limits.context
        if sequence.base_len + 1 >= context:
            reason = f"{sequence.base_len} tokens leave nothing to draft within the draft's context of {context}"
            self._refuse(sequence, Status.OUT_OF_RANGE, reason)

    def _refuse(self, sequence: DraftSequence, status: Status, reason: str) -> None:
        """Give a sequence up, with all its blocks, and say so."""
        self.live.remove(sequence)
        sequence.close()
        self._mail.refuse(sequence.stream, sequence.number, status, reason)
        log.info("refused", stream=sequence.stream, sequence=sequence.number, status=status.name, reason=reason)
