"""Mode AUTO at the coordinator: scripted step times and outcomes in, decisions out."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.coordinator import Coordinator
from router.governing import REVIEWS_SAVED, Governing
from ssd.speculation.prediction import Fallback, Mode, Setting
from ssd.telemetry.trace import FileTracer, read_part
from tests.router.coordination import outcome, plan, said
from tests.router.shared_gpu import SharedGpu, fixed_settings
from tests.ssd.speculation.governed import TrueStatistics

AR, SD, SSD, AUTO = types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO
TABLE = types_pb2.PROPOSAL_SOURCE_TABLE
VERIFY_MS = 20.0


@dataclass
class Script:
    """One target and one draft; `draft_ms` is what a forward pass of the draft takes now."""

    draft_ms: float = 2.0
    rows: int = 1
    coordinator: Coordinator = field(default_factory=Coordinator)
    plans: dict[int, draft_pb2.DraftPlan] = field(default_factory=dict)
    drafting: dict[int, target_pb2.SetDrafting] = field(default_factory=dict)
    advances: int = 0
    told: int = 0  # advances with a plan

    def __post_init__(self):
        self.coordinator.target_ready("T", 16)
        self.coordinator.draft_ready("D", 16)
        for sequence in range(1, self.rows + 1):
            self.coordinator.open(sequence, plan(AUTO, max_tokens=100_000, k=6, max_budget=24))
        self.coordinator.flush()

    def round(self):
        """One step of the target, and what the draft does beside it if it has been told to do anything."""
        outcomes = []
        for sequence in range(1, self.rows + 1):
            mode = self.plans[sequence].mode if sequence in self.plans else SSD
            base_len = self.coordinator.of(sequence).length
            if mode == AR:
                outcomes.append(outcome(base_len, [5], sequence=sequence))
            else:
                hit = mode == SSD
                fields = {"hit": hit, "hit_rank": int(hit), "next_depth": 4 * hit, "next_source": TABLE * hit}
                ids = [5, 5, 5, 6]
                outcomes.append(
                    outcome(base_len, ids, sequence=sequence, proposed=4, accepted=3, source=TABLE, **fields)
                )
                timing = draft_pb2.DraftTiming(rows=1, tokens=8, step_ms=self.draft_ms, asked=not hit)
                for _ in range(4):
                    self.coordinator.on_draft("D", draft_pb2.DraftServiceServeResponse(timing=timing))
        response = said(*outcomes)
        response.timing.rows, response.timing.tokens, response.timing.step_ms = self.rows, 5 * self.rows, VERIFY_MS
        self.coordinator.on_target("T", response)
        self.coordinator.govern()
        for peer, message in self.coordinator.flush().items():
            if peer == "T":
                self.drafting |= {change.sequence: change for change in message.drafting}
                continue
            for advance in message.advances:
                self.advances += 1
                if advance.HasField("plan"):
                    self.told += 1
                    self.plans[advance.sequence] = advance.plan

    def run(self, rounds):
        for _ in range(rounds):
            self.round()

    def modes(self, rounds):
        """How often each mode was in force."""
        found = []
        for _ in range(rounds):
            self.round()
            found.append(self.plans[1].mode)
        return {mode: found.count(mode) / rounds for mode in set(found)}


def test_a_fast_draft_is_used_and_the_plan_is_said_once():
    script = Script()
    script.run(60)
    chosen = script.plans[1]
    assert chosen.mode == SSD
    assert (len(chosen.fan_out), len(chosen.fan_out) <= 7) == (chosen.depth + 1, True)
    assert 1 <= sum(chosen.fan_out) <= 24
    assert script.drafting[1].drafting
    told = script.told
    script.run(100)
    assert script.advances == 160
    # Twice for each variation of the depth, of which there may be three in a hundred rounds.
    assert script.told - told <= 6, "a plan is only sent when it has changed"


def test_auto_turns_to_plain_decoding_when_the_draft_is_far_too_slow_and_comes_back():
    script = Script()
    script.run(60)
    assert script.plans[1].mode == SSD
    script.draft_ms = 25.0
    script.run(100)
    assert script.modes(100).get(AR, 0) > 0.8
    assert not script.drafting[1].drafting or script.plans[1].mode != AR
    script.draft_ms = 2.0
    script.run(1500)
    assert script.modes(100).get(SSD, 0) > 0.9
    assert script.drafting[1].drafting


def test_nobody_waits_for_a_decision():
    """Advances go out before it, and the plan that it makes goes with the next ones."""
    coordinator = Script().coordinator
    coordinator.on_target("T", said(outcome(3, [5])))
    (first,) = coordinator.flush()["D"].advances
    assert list(first.ids) == [5] and not first.HasField("plan")
    assert coordinator.governing.decision(1) is None
    assert coordinator.govern() and not coordinator.govern()
    assert coordinator.governing.decision(1) is not None
    assert "D" not in coordinator.flush()
    coordinator.on_target("T", said(outcome(4, [6])))
    (second,) = coordinator.flush()["D"].advances
    assert list(second.ids) == [6] and second.HasField("plan")
    coordinator.close(1)
    coordinator.govern()
    assert coordinator.governing.decision(1) is None, "what has ended is not decided about"


def test_plain_decoding_asks_no_draft_for_anything():
    script = Script(draft_ms=500.0)
    script.run(150)
    while script.plans[1].mode != AR:
        script.round()
    state = script.coordinator.of(1)
    assert (state.need_proposal, state.anticipates, state.draftable) == (False, False, False)
    assert script.drafting[1] == target_pb2.SetDrafting(sequence=1, drafting=False, fallback=types_pb2.FALLBACK_NONE)


def test_a_decision_explains_itself_and_is_counted():
    script = Script()
    script.run(60)
    governing = script.coordinator.governing
    decision = governing.decision(1)
    assert (decision.mode, decision.k, decision.depth) == (SSD, script.plans[1].k, script.plans[1].depth)
    assert list(decision.fan_out) == list(script.plans[1].fan_out)
    assert set(decision.predicted_tokens_per_s) == {"ar", "sd", "ssd"}
    assert decision.predicted_tokens_per_s["ar"] == pytest.approx(1000 / VERIFY_MS, rel=0.3)
    assert decision.reason.startswith("ssd")
    assert decision.t_primary > 0
    statistics = governing.statistics(script.coordinator.of(1))
    assert statistics.acceptance == pytest.approx(0.75, abs=0.1)
    assert statistics.observations > 50
    assert list(statistics.coverage) == sorted(statistics.coverage)
    assert sum(governing.rounds.values()) == 60
    assert sum(governing.decisions.values()) >= 1
    assert governing.decision(99) is None


def test_the_fallback_of_the_request_bounds_the_governor():
    coordinator = Coordinator()
    coordinator.target_ready("T", 16)
    coordinator.draft_ready("D", 16)
    coordinator.open(1, plan(AUTO, max_tokens=1000, k=4, fallback=types_pb2.FALLBACK_NONE))
    assert coordinator.flush()["T"].opens[0].fallback == types_pb2.FALLBACK_NONE
    coordinator.on_target("T", said(outcome(3, [5])))
    coordinator.govern()
    assert coordinator.governing.decision(1).fallback == types_pb2.FALLBACK_NONE
    assert not coordinator.flush()["D"].advances[0].need_proposal


def test_without_a_draft_auto_decodes_plainly():
    coordinator = Coordinator()
    coordinator.target_ready("T", 16)
    coordinator.open(1, plan(AUTO))
    assert not coordinator.flush()["T"].opens[0].drafting
    coordinator.on_target("T", said(outcome(3, [5])))
    coordinator.govern()
    assert coordinator.governing.decision(1).mode == AR


def test_many_sequences_take_turns_at_being_looked_at():
    script = Script(rows=30)
    script.round()
    governing = script.coordinator.governing
    assert sum(looked_at(governing, sequence) for sequence in range(1, 31)) == REVIEWS_SAVED
    script.run(110)
    assert all(looked_at(governing, sequence) for sequence in range(1, 31))


def looked_at(governing, sequence):
    """Whether a sequence has a decision of its own."""
    decision = governing.decision(sequence)
    return decision is not None and "of others" not in decision.reason


def test_a_new_sequence_begins_as_others_of_its_kind_run():
    """Else each would have tables made, for a round or for as long as it waits for its turn."""
    script = Script(draft_ms=500.0)
    script.run(150)
    while script.plans[1].mode != AR:
        script.round()
    coordinator, governing = script.coordinator, script.coordinator.governing
    coordinator.flush()
    coordinator.open(2, plan(AUTO, max_tokens=1000, k=6, max_budget=24))
    assert governing.decision(2).mode in (AR, SD) and not looked_at(governing, 2)
    sent = coordinator.flush()
    assert sent["D"].opens[0].mode == SD, "no tables"
    assert not sent["T"].opens[0].drafting
    coordinator.open(3, plan(AUTO, max_tokens=1000, k=7))
    assert governing.decision(3) is None, "it may do more than the others"
    assert coordinator.flush()["D"].opens[0].mode == AUTO


def test_decisions_leave_room_for_messages():
    script = Script(rows=8)
    coordinator = script.coordinator
    coordinator.on_target("T", said(*(outcome(3, [5], sequence=n) for n in range(1, 9))))
    coordinator.flush()
    turns = 0
    while coordinator.govern(lambda: True):
        turns += 1
    assert turns == 8


def test_the_way_of_messages_counts():
    near, far = Script(), Script()
    for script, seconds in ((near, 0.0), (far, 0.5)):
        script.coordinator.round_trip("T", seconds)
        script.coordinator.round_trip("D", seconds)
        script.run(60)
    assert near.plans[1].mode == SSD
    assert far.plans[1].mode == AR


def test_nothing_of_an_ended_sequence_is_kept():
    script = Script()
    script.run(20)
    script.coordinator.close(1)
    assert script.coordinator.governing.decision(1) is None
    assert script.coordinator.cached_tables == 0


@pytest.mark.parametrize("step_ms", [-1.0, 0.0, float("nan"), float("inf")])
def test_nonsense_of_peers_is_not_learnt_from(step_ms):
    script = Script()
    timing = draft_pb2.DraftTiming(rows=1, tokens=8, step_ms=step_ms)
    script.run(1)
    before = script.coordinator.governing.draft.observations
    script.coordinator.on_draft("D", draft_pb2.DraftServiceServeResponse(timing=timing))
    script.coordinator.on_target("T", said(outcome(7, [5], proposed=1, accepted=9)))
    script.coordinator.govern()
    assert script.coordinator.governing.draft.observations == before


def test_a_draft_that_is_slow_only_beside_the_target_is_asked_just_in_time():
    slow_beside, always_slow = Script(draft_ms=12.0), Script(draft_ms=12.0)
    for script, asked_ms in ((slow_beside, 1.0), (always_slow, 12.0)):
        script.run(10)
        timing = draft_pb2.DraftTiming(rows=1, tokens=1, step_ms=asked_ms, asked=True)
        for _ in range(90):
            script.coordinator.on_draft("D", draft_pb2.DraftServiceServeResponse(timing=timing))
            script.round()
    predicted = [
        script.coordinator.governing.decision(1).predicted_tokens_per_s for script in (slow_beside, always_slow)
    ]
    assert predicted[0]["sd"] > 1.5 * predicted[1]["sd"]
    assert predicted[0]["ar"] == pytest.approx(predicted[1]["ar"], rel=0.05)
    assert slow_beside.modes(100).get(SD, 0) > 0.8
    assert always_slow.modes(100).get(SD, 0) < 0.2
    assert slow_beside.coordinator.governing.draft.model(1, 8) > 0.008, "what was asked for says nothing about tables"


def test_before_any_table_proposals_tell_how_fast_a_draft_is():
    fast, slow = SharedGpu(TrueStatistics(0.8)), SharedGpu(TrueStatistics(0.8))
    for gpu, step_ms in ((fast, 1.0), (slow, 8.0)):
        for _ in range(200):
            gpu.governing.draft_stepped(draft_pb2.DraftTiming(rows=1, tokens=1, step_ms=step_ms, asked=True))
        gpu.decide()
    rates = [gpu.governing.decision(1).predicted_tokens_per_s["ssd"] for gpu in (fast, slow)]
    assert rates[0] > 1.5 * rates[1]


# Target and draft on one GPU

SSD_IS_BEST = {"truth": TrueStatistics(0.9), "table_ms": 2.5}
SD_IS_BEST = {"truth": TrueStatistics(0.8, 0.3), "table_ms": 8.0}
AR_IS_BEST = {"truth": TrueStatistics(0.02)}


def mostly(gpu, rounds):
    """The mode and the fallback in force in most of the last rounds."""
    (found, count), *_ = Counter((one.mode, one.fallback) for one in gpu.found[-rounds:]).most_common()
    assert count > 0.6 * rounds
    return found


@pytest.mark.parametrize(
    ("world", "best"),
    [
        (SSD_IS_BEST, (Mode.SSD, Fallback.JIT)),
        (SD_IS_BEST, (Mode.SD, Fallback.NONE)),
        (AR_IS_BEST, (Mode.AR, Fallback.NONE)),
    ],
)
def test_all_four_times_become_known_and_what_is_best_is_chosen(world, best):
    gpu = SharedGpu(**world)
    gpu.run(300)
    reached = gpu.run(1200)
    assert mostly(gpu, 1000) == best
    assert reached >= 0.95 * max(SharedGpu(fixed=setting, **world).run(1200) for setting in fixed_settings())
    governing = gpu.governing
    assert governing.alone.model(1, 3) * 1e3 == pytest.approx(gpu.alone_ms, rel=0.03)
    assert governing.target.model(1, 6) * 1e3 == pytest.approx(gpu.beside_tables_ms, rel=0.03)
    assert governing.asked.model(1, 1) * 1e3 == pytest.approx(gpu.asked_ms, rel=0.03)
    assert governing.draft.model(1, 32) * 1e3 == pytest.approx(gpu.table_ms, rel=0.1)


@pytest.mark.parametrize("unseen_ms", [0.0, 2.0, 4.5, 8.0])
def test_tables_that_come_later_than_anybody_measured_are_reckoned_with(unseen_ms):
    world = {**SSD_IS_BEST, "unseen_ms": unseen_ms}
    gpu = SharedGpu(**world)
    gpu.run(300)
    reached = gpu.run(1500)
    settings = [*fixed_settings(), *(Setting(Mode.SSD, 6, 12, depth, Fallback.JIT) for depth in range(1, 8))]
    assert reached >= 0.95 * max(SharedGpu(fixed=setting, **world).run(1500) for setting in settings)


def test_a_new_sequence_begins_with_proposals_until_their_time_is_known():
    gpu = SharedGpu(**SSD_IS_BEST)
    gpu.run(200)
    start = "sd K=4 for a start, to learn what a proposal costs that the target waits for"
    assert gpu.trials[:8] == [start] * 8 and start not in gpu.trials[8:]
    gpu.begin()
    assert gpu.found[-1].mode is Mode.SSD
    refusing = SharedGpu(**SSD_IS_BEST)
    refusing.begin(fallback=types_pb2.FALLBACK_NGRAM)
    assert refusing.found[-1].mode is Mode.SSD, "its request wants no waiting"


def test_steps_in_flight_when_tables_begin_or_end_are_not_learnt_from():
    gpu, seen = SharedGpu(**SSD_IS_BEST), []
    for _ in range(12):
        gpu.round()
        seen.append((round(gpu.governing.alone.observations), round(gpu.governing.target.observations)))
    assert seen[6:] == [(7, 0), (8, 0), (8, 0), (8, 0), (8, 1), (8, 2)]


def test_tables_for_a_neighbour_that_is_not_governed_count_too():
    gpu = SharedGpu(**SSD_IS_BEST)
    gpu.coordinator.open(99, plan(SSD))
    gpu.governing.observe(gpu.coordinator.of(99), outcome(3, [5]), None, None)
    gpu.run(4)
    assert not gpu.governing.alone.observations and round(gpu.governing.target.observations) == 2
    gpu.coordinator.close(99)
    gpu.run(2)
    assert not gpu.governing.alone.observations
    gpu.run(1)
    assert gpu.governing.alone.observations


@pytest.mark.parametrize("asked_ms", [25.0, 50.0, 200.0, 1000.0])
def test_a_slow_draft_is_waited_for_a_few_times_at_most(asked_ms):
    gpu = SharedGpu(TrueStatistics(0.6), asked_ms=asked_ms, table_ms=asked_ms)
    for _ in range(20):
        gpu.run(50)
        gpu.begin()
    assert gpu.waits <= 8
    assert sum("for a start" in reason for reason in gpu.trials) <= 2
    # The start, and the first tables, cost about a second of twenty.
    assert gpu.tokens / gpu.ms >= 0.9 / gpu.alone_ms


def test_what_has_changed_is_learnt_again_by_trials():
    gpu = SharedGpu(TrueStatistics(0.7), asked_ms=9.0, table_ms=2.5)
    gpu.run(400)
    assert mostly(gpu, 200)[0] is Mode.SSD
    gpu.asked_ms, gpu.alone_ms, gpu.beside_tables_ms = 0.4, 12.0, 24.0
    gpu.run(1500)
    assert mostly(gpu, 200) == (Mode.SD, Fallback.NONE)
    gpu.asked_ms, gpu.alone_ms, gpu.beside_tables_ms = 4.0, 18.5, 19.0
    gpu.run(1500)
    assert mostly(gpu, 200)[0] is Mode.SSD


def test_trials_of_proposals_cost_little():
    known = SharedGpu(**SSD_IS_BEST, asked_ms=9.0)
    known.run(300)
    reached = known.run(3000)
    trials = sum(reason.startswith("sd") for reason in known.trials[300:])
    assert 0 < trials < 0.1 * 3000
    best = max(SharedGpu(fixed=setting, **SSD_IS_BEST, asked_ms=9.0).run(3000) for setting in fixed_settings())
    assert reached >= 0.95 * best


def test_decisions_stand_in_the_timeline(tmp_path):
    tracer = FileTracer(tmp_path / "t.json", "router", flush_every_s=60.0)
    script = Script(coordinator=Coordinator(governing=Governing(tracer=tracer)))
    script.run(20)
    tracer.close()
    _, _, events = read_part(tracer.path)
    noted = [values for lane, _, _, ended, values in events if lane == "governor" and ended is None]
    assert len(noted) == script.coordinator.governing.decisions.total() > 0
    assert noted[0]["sequence"] == 1 and noted[0]["reason"].startswith("sd K=4 for a start")
    assert any("tok/s" in values["reason"] for values in noted)
    assert noted[-1]["target_ms"] > 0.0
