"""Whatever peers do, and whenever they go: every stream is the truth, without gap or repetition, and everything is
closed once."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.coordinator import Coordinator, Emitted
from router.plan import Plan, uniform

MODES = [types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO]
VERIFICATIONS = [types_pb2.VERIFICATION_COUPLED, types_pb2.VERIFICATION_REJECTION]
FALLBACKS = [
    types_pb2.FALLBACK_AUTO,
    types_pb2.FALLBACK_JIT,
    types_pb2.FALLBACK_JIT,
    types_pb2.FALLBACK_NGRAM,
    types_pb2.FALLBACK_NONE,
]
SOURCES = [types_pb2.PROPOSAL_SOURCE_TABLE, types_pb2.PROPOSAL_SOURCE_JIT, types_pb2.PROPOSAL_SOURCE_NGRAM]
MOST_DRAFTS = 5


def truth(sequence, index):
    """What any target draws at an index: a pure function, as with coupled draws."""
    return random.Random(sequence * 1000 + index).randrange(5)


@dataclass
class Target:
    """Draws the truth for what is open on its connection."""

    key: str
    length: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    drafting: dict[int, bool] = field(default_factory=dict)
    ever: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)

    def take(self, message):
        for opened in message.opens:
            assert opened.sequence not in self.ever
            self.ever.add(opened.sequence)
            assert list(opened.ids) == [truth(opened.sequence, i) for i in range(len(opened.ids))]
            self.length[opened.sequence] = len(opened.ids)
            self.end[opened.sequence] = opened.prompt_len + opened.limits.max_tokens
            self.drafting[opened.sequence] = opened.drafting
        for change in message.drafting:
            self.drafting[change.sequence] = change.drafting
        for sequence in message.closes:
            # It may have ended by itself while the close was on its way, but is never closed twice.
            assert sequence in self.ever - self.closed
            self.closed.add(sequence)
            self.drafting.pop(sequence, None)
            self.length.pop(sequence, None)

    def step(self, rng):
        response = target_pb2.TargetServiceServeResponse()
        if rng.random() < 0.3:
            response.timing.rows, response.timing.tokens, response.timing.step_ms = 2, 8, rng.uniform(-1, 50)
        for sequence in [s for s in self.length if rng.random() < 0.7]:
            base_len = self.length[sequence]
            ids = [truth(sequence, i) for i in range(base_len, min(base_len + rng.randint(1, 4), self.end[sequence]))]
            over = base_len + len(ids) == self.end[sequence]
            response.outcomes.add(
                sequence=sequence,
                base_len=base_len,
                ids=ids,
                accepted=len(ids) - 1,
                proposed=len(ids) - 1,
                hit=rng.random() < 0.5,
                next_depth=0 if over else rng.randint(0, 3),
                source=rng.choice(SOURCES),
                next_source=rng.choice(SOURCES),
                hit_rank=rng.randint(0, 4),
                finish=types_pb2.FINISH_REASON_LENGTH if over else 0,
            )
            self.length[sequence] += len(ids)
            if over:
                del self.length[sequence]
        return response


@dataclass
class Draft:
    """Follows what it is told, strictly: a gap would show. Sometimes it forgets, and says all kinds of things."""

    key: str
    ids: dict[int, list[int]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)  # length at which a proposal was asked for last
    ever: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)

    def take(self, message):
        for opened in message.opens:
            assert opened.sequence not in self.ever
            assert opened.mode != types_pb2.MODE_AR
            assert opened.part < opened.parts <= 4
            self.ever.add(opened.sequence)
            self.ids[opened.sequence] = list(opened.ids)
        for advance in message.advances:
            if advance.sequence in self.ids and self.ids[advance.sequence] is not None:
                assert advance.base_len == len(self.ids[advance.sequence])
                assert advance.ids or advance.need_proposal or advance.in_flight or advance.target
                assert not (advance.need_proposal and advance.next_depth)
                assert not advance.in_flight or len(advance.in_flight) <= advance.next_depth
                assert not advance.parts or advance.part < advance.parts <= 4
                self.ids[advance.sequence] += advance.ids
                if advance.need_proposal:
                    length = len(self.ids[advance.sequence])
                    assert self.asked.get(advance.sequence) != length, "asked twice"
                    self.asked[advance.sequence] = length
        for resync in message.resyncs:
            self.ids[resync.sequence] = list(resync.ids)
        for sequence, ids in self.ids.items():
            assert ids is None or ids == [truth(sequence, i) for i in range(len(ids))]
        for sequence in message.closes:
            # It may have been refused while the close was on its way, but is never closed twice.
            assert sequence in self.ever - self.closed
            self.closed.add(sequence)
            self.ids.pop(sequence, None)

    def babble(self, rng):
        response = draft_pb2.DraftServiceServeResponse()
        if rng.random() < 0.3:
            response.timing.rows, response.timing.tokens, response.timing.step_ms = 1, 3, rng.uniform(-1, 50)
        for _ in range(rng.randint(0, 3)):
            sequence, base_len = rng.randint(1, 6), rng.randint(0, 30)
            honest = [truth(sequence, i) for i in range(base_len, base_len + 4)]
            noise = [rng.randrange(5) for _ in range(rng.randrange(5))]
            ids = rng.choice([honest, noise, honest[:2] + noise])
            if rng.random() < 0.5:
                response.proposals.add(sequence=sequence, base_len=base_len, ids=ids)
            else:
                table = response.tables.add(sequence=sequence, base_len=base_len, proposal=ids[: rng.randrange(4)])
                table.branches.add(accepted=rng.randrange(4), id=rng.randrange(5), ids=noise)
        for sequence in [s for s, ids in self.ids.items() if ids is not None and rng.random() < 0.1]:
            self.ids[sequence] = None
            response.need_resync.add(sequence=sequence)
        for sequence in [s for s in self.ids if rng.random() < 0.03]:
            del self.ids[sequence]
            response.refused.add(sequence=sequence, status=rng.choice([8, 11]))
        return response


class World:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.coordinator = Coordinator()
        self.targets: dict[str, Target] = {}
        self.drafts: dict[str, Draft] = {}
        self.gone: list[tuple[str, target_pb2.TargetServiceServeResponse]] = []
        self.emitted: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.plans: dict[int, Plan] = {}
        self.names = iter(range(10_000))

    def flush(self):
        for key, message in self.coordinator.flush().items():
            (self.targets.get(key) or self.drafts[key]).take(message)
        if self.coordinator.govern():
            self.flush()

    def open(self):
        sequence = len(self.plans) + 1
        prompt = [truth(sequence, i) for i in range(self.rng.randint(1, 6))]
        limits = types_pb2.TokenLimits(max_tokens=self.rng.randint(1, 20))
        mode = self.rng.choice(MODES)
        sampling = types_pb2.SamplingParameters(seed=1)
        self.plans[sequence] = Plan(
            prompt,
            sampling,
            limits,
            -1,
            mode,
            self.rng.randint(1, 4),
            uniform(2),
            fallback=self.rng.choice(FALLBACKS),
            drafts=self.rng.randint(1, 4),
            max_budget=4,
            verification=self.rng.choice(VERIFICATIONS),
        )
        self.emitted[sequence] = []
        self.coordinator.open(sequence, self.plans[sequence])

    def close(self):
        live = [sequence for sequence in self.plans if sequence not in self.ended]
        if live:
            sequence = self.rng.choice(live)
            assert self.coordinator.close(sequence)
            self.ended.add(sequence)

    def hear_target(self, key, response):
        for event in self.coordinator.on_target(key, response):
            assert isinstance(event, Emitted)
            assert event.sequence not in self.ended
            assert event.outcome.base_len == len(self.plans[event.sequence].prompt) + len(self.emitted[event.sequence])
            self.emitted[event.sequence] += event.outcome.ids
            if event.outcome.finish:
                self.ended.add(event.sequence)

    def step_target(self):
        if self.targets:
            target = self.rng.choice(list(self.targets.values()))
            response = target.step(self.rng)
            self.hear_target(target.key, response)
            if self.rng.random() < 0.3:
                self.hear_target(target.key, response)
            self.gone.append((target.key, response))

    def old_news(self):
        if self.gone:
            key, response = self.rng.choice(self.gone)
            self.hear_target(key, response)

    def step_draft(self):
        if self.drafts:
            draft = self.rng.choice(list(self.drafts.values()))
            response = draft.babble(self.rng)
            for _ in range(self.rng.randint(1, 2)):
                self.coordinator.on_draft(draft.key, response)

    def come(self):
        key = f"T{next(self.names)}"
        if len(self.targets) < 3:
            self.targets[key] = Target(key)
            self.coordinator.target_ready(key, self.rng.randint(1, 8))

    def go(self):
        if self.targets:
            key = self.rng.choice(list(self.targets))
            del self.targets[key]
            self.coordinator.target_lost(key)

    def come_draft(self):
        key = f"D{next(self.names)}"
        if len(self.drafts) < MOST_DRAFTS:
            self.drafts[key] = Draft(key)
            self.coordinator.draft_ready(key, self.rng.randint(1, 8))

    def go_draft(self):
        if self.drafts:
            key = self.rng.choice(list(self.drafts))
            del self.drafts[key]
            self.coordinator.draft_lost(key)

    def finish(self):
        """With one more target and no more accidents, everything that is still open runs to its end."""
        self.flush()
        if not self.targets:
            self.come()
        for _ in range(1000):
            self.flush()
            if len(self.ended) == len(self.plans):
                return
            for target in list(self.targets.values()):
                self.hear_target(target.key, target.step(self.rng))
        raise AssertionError("sequences do not end")


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_every_stream_is_the_truth_and_everything_is_closed(seed):
    world = World(seed)
    actions = [world.open, world.step_target, world.step_target, world.step_target, world.step_draft, world.step_draft]
    actions += [world.flush, world.flush, world.old_news]
    rare = [world.close, world.come, world.go, world.come_draft, world.go_draft]
    world.come()
    for _ in range(world.rng.randint(1, MOST_DRAFTS)):
        world.come_draft()
    for _ in range(120):
        world.rng.choice(rare if world.rng.random() < 0.15 else actions)()
    live = [sequence for sequence in world.plans if sequence not in world.ended]
    world.flush()
    for sequence in live:
        state = world.coordinator.of(sequence)
        keys = [link.key for link in state.links]
        assert len(set(keys)) == len(keys) <= state.plan.drafts_wanted
        free = set(world.drafts) - set(keys) - state.refused_by
        assert len(keys) == state.plan.drafts_wanted or not free
        for key in keys:
            held = world.drafts[key].ids.get(sequence)
            assert held is None or len(held) == state.length, "not told of everything"
        for target in world.targets.values():
            if state.target == target.key:
                assert target.drafting[sequence] == state.drafting
    world.finish()
    for sequence, plan in world.plans.items():
        ids = world.emitted[sequence]
        start = len(plan.prompt)
        assert ids == [truth(sequence, i) for i in range(start, start + len(ids))]
    world.flush()
    assert len(world.coordinator) == 0
    assert world.coordinator.cached_tables == 0
    assert all(not target.length for target in world.targets.values())
    assert all(not draft.ids for draft in world.drafts.values())
