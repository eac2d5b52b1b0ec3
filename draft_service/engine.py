"""The draft's engine: messages in, at most one forward pass a step, messages out. No IO and no clock of its own.

Nothing here is precious. A message that does not fit what is held is dropped and counted, a gap is answered with
NeedResync, and a sequence that cannot be served is refused: the target goes on without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import structlog

from draft_service.admission import Limits, check_ids, plan_of
from draft_service.drawing import ranked
from draft_service.mail import DraftMail
from draft_service.room import Room
from draft_service.scheduler import Scheduler, TrunkJob
from draft_service.sequence import DraftSequence, Work
from draft_service.streams import Streams
from draft_service.trunk import Trunk
from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.config import DraftConfig
from ssd.errors import FieldError
from ssd.models.config import ModelConfig
from ssd.rpc.mail import Status
from ssd.runtime.blocks import BlockPool
from ssd.runtime.runner import ModelRunner
from ssd.speculation.proposal import Proposal

log = structlog.get_logger()


class DraftEngine:
    """Drafts for the sequences of any number of streams from one model; see ssd.rpc.engine_loop.Engine."""

    def __init__(
        self, runner: ModelRunner, pool: BlockPool, model: ModelConfig, config: DraftConfig, info: types_pb2.ModelInfo
    ) -> None:
        """`info` says how many ids the clients may use; the model's own vocabulary may be padded beyond that."""
        context = min(config.engine.max_context or model.max_position, model.max_position)
        vocab = min(info.vocab_size or model.vocab_size, model.vocab_size)
        self.info = info
        self.limits = Limits(vocab, context, config.max_k, config.max_branches, tuple(info.eos_ids) or model.eos_ids)
        self.live = Streams()
        self._room = Room(self.live, pool)
        self._scheduler = Scheduler(self._room, config.engine.token_budget)
        self._mail = DraftMail()
        self._runner = runner
        self._pool = pool
        self._config = config
        self._tickets = itertools.count(1)
        self._steps = 0
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
            steps=self._steps,
            stale_drops=self._dropped,
            preemptions=self._room.tables_dropped,
        )

    def check(self) -> None:
        """RuntimeError unless every block is accounted for."""
        self._pool.check(self._room.tables_held())

    # The step

    def begin(self, now: float) -> None:
        """Choose a step's work, run it and take in its results: at most one forward pass.

        Outcomes that arrive meanwhile are handled after that, so they find everything that was drafted.
        """
        jobs, trees = self._scheduler.choose(self.live)
        for sequence in self._room.take_starved():
            self._refuse(sequence, Status.RESOURCE_EXHAUSTED, "the draft has no KV room for the sequence")
        if jobs:
            self._run(jobs)
        elif trees:
            self._grow(trees)

    def finish(self) -> Mapping[int, draft_pb2.DraftServiceServeResponse]:
        """What the step and the messages since the last one have to say: one message for each stream that has news."""
        return self._mail.collect()

    def step(self, now: float) -> Mapping[int, draft_pb2.DraftServiceServeResponse]:
        """Begin and finish with nothing in between."""
        self.begin(now)
        return self.finish()

    def wake_at(self, now: float) -> float | None:
        """At once while anybody waits for a step or a message, else never."""
        return now if self._mail or any(sequence.work is not Work.NONE for sequence in self.live) else None

    def _run(self, jobs: Sequence[TrunkJob]) -> None:
        """Trunks: prefill, the next token of just-in-time proposals, the roots of tables."""
        self._steps += 1
        logits = self._runner.run([job.row for job in jobs])
        for job in jobs:
            job.sequence.trunk.wrote(job.row, job.sequence.ids)
        done = [job.sequence for job in jobs if job.row.logits]
        if not done:
            return
        rows = [sequence.draw_rows() for sequence in done]
        wanted = max(1, *(sequence.candidates_wanted for sequence in done))
        lists = iter(ranked(logits, [row for part in rows for row in part], wanted, self.limits.vocab_size))
        for sequence, part in zip(done, rows, strict=True):
            candidates = list(itertools.islice(lists, len(part)))
            if not all(candidates):
                self._refuse_undrawable(sequence)
            elif sequence.work is Work.PROPOSE:
                self._answer(sequence, sequence.propose(candidates[0][0]))
            else:
                sequence.root(candidates)

    def _grow(self, sequences: Sequence[DraftSequence]) -> None:
        """Trees: one more token for every branch, and the tables that are due."""
        self._steps += 1
        rows = [sequence.branch_rows() for sequence in sequences]
        logits = self._runner.run_branches([item for sequence in sequences for item in sequence.branch_items()])
        lists = iter(ranked(logits, [row for part in rows for row in part], 1, self.limits.vocab_size))
        for sequence, part in zip(sequences, rows, strict=True):
            drawn = list(itertools.islice(lists, len(part)))
            if not all(drawn):
                self._refuse_undrawable(sequence)
            elif (table := sequence.grow([ids[0] for ids in drawn])) is not None:
                self._mail.anticipate(sequence.stream, sequence.number, table)

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

    def close_stream(self, stream: int) -> None:
        """Drop everything that was opened on a stream."""
        for sequence in self.live.end(stream):
            sequence.close()
        self._mail.discard(stream)

    def _open(self, stream: int, message: draft_pb2.DraftOpen) -> None:
        number, most = message.sequence, self._config.engine.max_sequences
        if self.live.seen(stream, number):
            self._dropped += 1
            return
        try:
            plan = plan_of(message, self.limits)
        except FieldError as error:
            self._mail.refuse(stream, number, Status.INVALID_ARGUMENT, str(error))
            return
        if len(self.live) >= most:
            self._mail.refuse(stream, number, Status.RESOURCE_EXHAUSTED, f"{most} sequences are drafted for already")
            return
        ids = list(message.ids)
        sequence = DraftSequence(stream, number, plan, ids, Trunk(self._pool, ids))
        self.live.add(sequence)
        self._answer(sequence, sequence.begin(next(self._tickets), need_proposal=message.need_proposal))
        self._check_context(sequence)

    def _advance(self, stream: int, message: draft_pb2.Advance) -> None:
        sequence = self.live.get(stream, message.sequence)
        if sequence is None:
            self._dropped += 1
            return
        ids, known = list(message.ids), sequence.base_len - message.base_len
        if known < 0 or sequence.ids[message.base_len : message.base_len + len(ids)] != ids[:known]:
            self._mail.ask_resync(stream, sequence.number, sequence.base_len)
        elif len(ids) > known:
            self._commit(sequence, ids[known:], message.need_proposal, message.next_depth)
        elif known == 0 and message.need_proposal:
            self._answer(sequence, sequence.remind(next(self._tickets)))
        else:
            self._dropped += 1

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
            self._commit(sequence, ids[held:], message.need_proposal, 0)
        elif len(ids) < sequence.plan.prompt_len:
            self._refuse(sequence, Status.INVALID_ARGUMENT, "ids: contradict the prompt")
        elif self._ids_known(sequence, ids):
            self._answer(sequence, sequence.replace(next(self._tickets), ids, need_proposal=message.need_proposal))
            self._check_context(sequence)

    def _close(self, stream: int, number: int) -> None:
        sequence = self.live.close(stream, number)
        if sequence is not None:
            sequence.close()
            self._mail.to(stream).closed.append(number)

    def _commit(self, sequence: DraftSequence, ids: Sequence[int], need_proposal: bool, next_depth: int) -> None:
        if self._ids_known(sequence, ids):
            ticket = next(self._tickets)
            self._answer(sequence, sequence.commit(ticket, ids, need_proposal=need_proposal, next_depth=next_depth))
            self._check_context(sequence)

    def _answer(self, sequence: DraftSequence, proposal: Proposal | None) -> None:
        if proposal is not None:
            self._mail.propose(sequence.stream, sequence.number, proposal)

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

    def _refuse_undrawable(self, sequence: DraftSequence) -> None:
        reason = "the sampling parameters leave no token that can be drawn from the draft's logits"
        self._refuse(sequence, Status.INVALID_ARGUMENT, reason)

    def _refuse(self, sequence: DraftSequence, status: Status, reason: str) -> None:
        """Give a sequence up, with all its blocks, and say so."""
        self.live.remove(sequence)
        sequence.close()
        self._mail.refuse(sequence.stream, sequence.number, status, reason)
        log.info("refused", stream=sequence.stream, sequence=sequence.number, status=status.name, reason=reason)
