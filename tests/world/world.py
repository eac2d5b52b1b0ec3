"""One target, one draft and one router's coordinator, driven in virtual time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draft_service.engine import DraftEngine
from protos.ssd.v1 import inference_pb2, target_pb2, types_pb2
from router.coordinator import Coordinator, Emitted, Failed
from router.detokenizer import Detokenizers
from router.plan import Plan
from router.session import Session
from router.stops import StopTexts
from ssd.runtime.blocks import BlockPool
from ssd.tensor_plane.choice import ability_of
from ssd.tokenizer import Tokenizer
from target_service.engine import TargetEngine
from tests.world.network import CALM, Chaos, Network

STREAM = 1
TARGET_STEP_S = 0.02
MAX_EVENTS = 200_000


@dataclass
class Result:
    """What a client saw of one sequence."""

    session: Session
    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[types_pb2.TokenLogprob] = field(default_factory=list)
    finish: inference_pb2.Finish | None = None
    usage: inference_pb2.Usage | None = None
    failure: str = ""

    def take(self) -> None:
        message = self.session.take()
        if message is None:
            return
        self.ids.extend(message.token_ids)
        self.text += message.text
        self.logprobs.extend(message.logprobs)
        if message.HasField("finish"):
            self.finish, self.usage = message.finish, message.usage

    @property
    def done(self) -> bool:
        return bool(self.failure) or self.finish is not None


@dataclass
class World:
    """`chaos` befalls every message to and from the draft, and every table and proposal on its way to the target."""

    target: TargetEngine
    target_pool: BlockPool
    draft: DraftEngine | None
    draft_pool: BlockPool | None
    tokenizer: Tokenizer
    rng: random.Random
    chaos: Chaos = CALM
    draft_step_s: float = 0.004
    now: float = 0.0
    tensor_plane: str = "auto"

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(tensor_plane=self.tensor_plane)
        self.network = Network(self.rng)
        self.results: dict[int, Result] = {}
        self._detokenizers = Detokenizers(self.tokenizer)
        self._target_busy = self._draft_busy = False
        self._target_free_at = self._draft_free_at = 0.0
        self.coordinator.target_ready("target", 16, ability_of(self.target.planes.ability))
        if self.draft is not None:
            self.regain_draft()

    def submit(self, sequence: int, plan: Plan, stops: Sequence[str] = ()) -> None:
        """Open a sequence. `stops` are stop texts."""
        session = Session(
            start=inference_pb2.GenerationStart(prompt_tokens=len(plan.prompt)),
            mode=plan.mode,
            detokenizer=self._detokenizers.new(special_tokens=False),
            stops=StopTexts(stops),
            min_tokens=plan.limits.min_tokens,
        )
        self.results[sequence] = Result(session)
        self.coordinator.open(sequence, plan)

    def run(self) -> dict[int, Result]:
        """Until every sequence is done. AssertionError if the system stands still or never ends."""
        self.advance(MAX_EVENTS)
        assert self.done, f"no end after {MAX_EVENTS} events"
        return self.results

    @property
    def done(self) -> bool:
        return all(result.done for result in self.results.values())

    def advance(self, events: int) -> None:
        """Let `events` things happen, or fewer if everything is done before."""
        for _ in range(events):
            self._flush()
            for to, message in self.network.due(self.now):
                self._deliver(to, message)
            self._flush()
            if self.done:
                return
            self._step()
            self._pass_time()

    def lose_draft(self) -> None:
        """The draft's process is gone, and with it everything it held."""
        assert self.draft is not None
        self.draft.close_stream(STREAM)
        self.coordinator.draft_lost("draft")

    def regain_draft(self) -> None:
        assert self.draft is not None
        self.coordinator.draft_ready("draft", 16, ability_of(self.draft.planes.ability))

    def settle(self) -> None:
        """Let everything that is on its way arrive, then end all streams: nothing may be held afterwards."""
        while (arrival := self.network.next_arrival()) is not None:
            self.now = max(self.now, arrival)
            for to, message in self.network.due(self.now):
                self._deliver(to, message)
            self._flush()
        assert self.target_pool.in_use == 0, "the target holds blocks of ended sequences"
        self.target.close_stream(STREAM)
        self.target_pool.check([])
        if self.draft is not None and self.draft_pool is not None:
            if self.chaos.quiet:
                assert self.draft_pool.in_use == 0, "the draft holds blocks of ended sequences"
            self.draft.close_stream(STREAM)
            assert self.draft_pool.in_use == 0
            self.draft.check()

    def _flush(self) -> None:
        for peer, message in self.coordinator.flush().items():
            if peer == "draft":
                self.network.send(self.now, "draft", message, self.chaos)
            else:
                self._send_to_target(message)
        if self.coordinator.govern():
            self._flush()

    def _send_to_target(self, message: target_pb2.TargetServiceServeRequest) -> None:
        """Opens and closes travel safely, in order; predictions each at their own risk."""
        if self.chaos.quiet:
            self.network.send(self.now, "target", message)
            return
        for table in message.tables:
            self.network.send(self.now, "target", target_pb2.TargetServiceServeRequest(tables=[table]), self.chaos)
        for made in message.proposals:
            self.network.send(self.now, "target", target_pb2.TargetServiceServeRequest(proposals=[made]), self.chaos)
        message.ClearField("tables")
        message.ClearField("proposals")
        self.network.send(self.now, "target", message)

    def _deliver(self, to: str, message: Any) -> None:
        if to == "target":
            self.target.handle(STREAM, message)
        elif to == "draft" and self.draft is not None:
            self.draft.handle(STREAM, message)
        elif to == "router from target":
            for event in self.coordinator.on_target("target", message):
                self._take(event)
        elif to == "router from draft":
            self.coordinator.on_draft("draft", message)

    def _take(self, event: Emitted | Failed) -> None:
        result = self.results[event.sequence]
        if isinstance(event, Failed):
            result.failure = event.failure.message
            return
        if result.session.feed(event.outcome, event.totals):
            self.coordinator.close(event.sequence)
        result.take()

    def _step(self) -> None:
        """A step takes in what has arrived at its beginning, and commits with all that has arrived by its end."""
        if self._target_busy and self.now >= self._target_free_at:
            self._target_busy = False
            for response in self.target.finish().values():
                self.network.send(self.now, "router from target", response)
        if not self._target_busy and _due(self.target.wake_at(self.now), self.now):
            self.target.begin(self.now)
            self._target_busy, self._target_free_at = True, self.now + TARGET_STEP_S
        if self.draft is None:
            return
        if self._draft_busy and self.now >= self._draft_free_at:
            self._draft_busy = False
            for answer in self.draft.finish().values():
                self.network.send(self.now, "router from draft", answer, self.chaos)
        if not self._draft_busy and _due(self.draft.wake_at(self.now), self.now):
            self.draft.begin(self.now)
            self._draft_busy, self._draft_free_at = True, self.now + self.draft_step_s

    def _pass_time(self) -> None:
        """Jump to the next thing that happens."""
        self.coordinator.planes.tick(self.now)
        moments = [self.network.next_arrival()]
        moments.append(self._target_free_at if self._target_busy else self.target.wake_at(self.now))
        if self.draft is not None:
            moments.append(self._draft_free_at if self._draft_busy else self.draft.wake_at(self.now))
        coming = [moment for moment in moments if moment is not None]
        assert coming, "nothing will ever happen again, and sequences are not done"
        self.now = max(self.now, min(coming))


def _due(wake_at: float | None, now: float) -> bool:
    return wake_at is not None and wake_at <= now
