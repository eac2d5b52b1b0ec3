"""Pairs of drafts and targets: what is ordered, when laws may go over a plane, and what follows when one breaks."""

from collections import defaultdict
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from protos.ssd.v1 import types_pb2
from router.planes import BROKEN, OPEN, OPENING, RETRY_FIRST_S, RETRY_MOST_S, Pair, Planes
from ssd.speculation.law import LawRef, SparseLaw
from ssd.tensor_plane.choice import Ability, Kind

CPU = Ability("a", (), frozenset({Kind.GLOO}))
GPU = Ability("a", ("GPU-1",), frozenset(Kind) - {Kind.INLINE})


@dataclass(frozen=True)
class Key:
    address: str
    number: int = 1


TARGET, DRAFT = Key("t:1"), Key("d:1")


class Boxes:
    """Keeps what would be sent."""

    def __init__(self):
        self.orders = defaultdict(list)
        self.closes = defaultdict(list)

    def order_plane(self, key, order):
        self.orders[key].append(order)

    def close_plane(self, key, plane):
        self.closes[key].append(plane)


class Router:
    def __init__(self, wanted="gloo", ability=CPU):
        self.boxes = Boxes()
        self.planes = Planes(self.boxes, wanted, limit_s=2.0, name="feed")
        self.ability = ability

    def connect(self, *, target=TARGET, draft=DRAFT, number=1):
        self.planes.target_ready(target, number, self.ability)
        self.planes.draft_ready(draft, self.ability)
        return self

    def report(self, key, state, plane=None, **fields):
        plane = self.pair.epoch if plane is None else plane
        self.planes.report(key, types_pb2.PlaneReport(plane=plane, state=state, **fields))

    def open(self):
        self.report(TARGET, OPENING, rendezvous=":77")
        for key in (TARGET, DRAFT):
            self.report(key, OPEN, latency_us=50.0, bandwidth=1e9)
        return self

    @property
    def pair(self) -> Pair:
        (pair,) = self.planes.pairs
        return pair


def test_the_target_is_told_first_and_the_draft_once_it_listens():
    router = Router().connect(number=4)
    (order,) = router.boxes.orders[TARGET]
    assert not router.boxes.orders[DRAFT]
    assert (order.kind, order.limit_s, order.name) == (types_pb2.PLANE_KIND_GLOO, 2.0, f"ssd/feed/{order.plane}")
    router.report(TARGET, OPENING, rendezvous="10.0.0.3:77")
    router.report(TARGET, OPENING, rendezvous="10.0.0.3:77")
    (told,) = router.boxes.orders[DRAFT]
    assert (told.plane, told.name, told.kind) == (order.plane, order.name, order.kind)
    assert (told.rendezvous, told.target) == ("10.0.0.3:77", 4)


@pytest.mark.parametrize(("said", "told"), [(":77", "t:77"), ("10.0.0.3:77", "10.0.0.3:77"), ("[::1]:77", "[::1]:77")])
def test_a_target_on_all_addresses_is_met_at_the_one_that_the_router_knows(said, told):
    router = Router().connect()
    router.report(TARGET, OPENING, rendezvous=said)
    assert router.boxes.orders[DRAFT][0].rendezvous == told


def test_a_pair_is_open_when_both_ends_are():
    router = Router().connect()
    router.report(TARGET, OPENING, rendezvous=":77")
    router.report(DRAFT, OPEN, latency_us=50.0, bandwidth=1e9)
    assert router.pair.state == OPENING
    router.report(TARGET, OPEN)
    pair = router.pair
    assert (pair.state, pair.kind, pair.latency_us, pair.bandwidth) == (OPEN, Kind.GLOO, 50.0, 1e9)
    assert pair.reason == "" and pair.fallbacks == 0


@pytest.mark.parametrize("who", [TARGET, DRAFT])
@pytest.mark.parametrize("when", ["opening", "open"])
def test_whoever_breaks_the_pair_goes_on_inline_in_the_next_epoch(who, when):
    router = Router().connect()
    if when == "open":
        router.open()
    epoch = router.pair.epoch
    router.report(who, BROKEN, reason="the other end is gone")
    pair = router.pair
    assert (pair.kind, pair.epoch, pair.fallbacks) == (Kind.INLINE, epoch + 1, 1)
    assert pair.reason == "gloo: the other end is gone" and not pair.latency_us and not pair.bandwidth
    assert router.boxes.closes[TARGET] == router.boxes.closes[DRAFT] == [epoch]


def test_late_news_of_an_earlier_epoch_is_no_news():
    router = Router().connect().open()
    before = router.pair.epoch
    router.report(DRAFT, BROKEN, reason="x")
    for state in (OPENING, OPEN, BROKEN):
        router.report(TARGET, state, plane=before)
        router.report(TARGET, state, plane=999)
        router.report(Key("stranger:1"), state)
    assert router.pair.epoch == before + 1 and router.pair.fallbacks == 1
    assert len(router.boxes.orders[TARGET]) == 1


def test_a_broken_plane_is_tried_again_after_pauses_that_grow_up_to_a_limit():
    router, now, pauses = Router().connect(), 0.0, []
    for _ in range(9):
        router.planes.tick(now)
        router.report(TARGET, BROKEN, reason="no")
        began = now
        orders = len(router.boxes.orders[TARGET])
        router.planes.tick(now)
        while len(router.boxes.orders[TARGET]) == orders:
            now += 0.25
            router.planes.tick(now)
        pauses.append(now - began)
    assert pauses[:4] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S, 8 * RETRY_FIRST_S]
    assert pauses[-1] == RETRY_MOST_S
    epoch = router.pair.epoch
    router.open()
    assert router.pair.state == OPEN and router.pair.epoch == epoch
    router.report(TARGET, BROKEN, reason="no")
    assert router.pair.failures == 1, "what was open begins anew"


def test_a_plane_that_nobody_reports_of_is_given_up():
    router = Router().connect()
    router.planes.tick(100.0)
    router.planes.tick(111.0)
    assert router.pair.kind is Kind.GLOO
    router.planes.tick(112.5)
    assert router.pair.kind is Kind.INLINE and "not open within 12 s" in router.pair.reason
    router.planes.tick(112.5)
    router.planes.tick(113.6)
    router.open()
    router.planes.tick(1000.0)
    assert router.pair.kind is Kind.GLOO, "an open plane may be silent"


def test_a_fallback_is_said_once_for_each_reason():
    with capture_logs() as logs:
        router = Router().connect()
        for now, reason in enumerate(["a", "a", "b", "a"]):
            router.report(TARGET, BROKEN, reason=reason)
            router.planes.tick(1000.0 * now)
            router.planes.tick(1000.0 * now + 500)
    said = [log["reason"] for log in logs if log["log_level"] == "warning"]
    assert said == ["gloo: a", "gloo: b"]


@pytest.mark.parametrize(
    ("wanted", "ability", "said"),
    [("nccl", GPU, ["nccl needs a GPU for each end, and both are on GPU-1"]), ("auto", CPU, []), ("inline", GPU, [])],
)
def test_a_kind_that_is_impossible_is_inline_by_itself_and_said_once_where_it_was_asked_for(wanted, ability, said):
    with capture_logs() as logs:
        router = Router(wanted, ability).connect()
        router.planes.lost(DRAFT)
        router.connect(draft=Key(DRAFT.address, 2))
        for now in range(0, 1000, 10):
            router.planes.tick(float(now))
    assert router.pair.kind is Kind.INLINE and router.pair.reason
    assert not router.boxes.orders[TARGET] and not router.boxes.closes[TARGET]
    assert [log["reason"] for log in logs if log["log_level"] == "warning"] == said


def test_one_gpu_gives_cuda_ipc_by_itself():
    assert Router("auto", GPU).connect().pair.kind is Kind.CUDA_IPC


@pytest.mark.parametrize(("lost", "left"), [(TARGET, DRAFT), (DRAFT, TARGET)])
def test_a_lost_peer_takes_its_planes_along_and_begins_anew(lost, left):
    router = Router().connect().open()
    epoch = router.pair.epoch
    router.planes.lost(lost)
    assert not list(router.planes.pairs)
    assert router.boxes.closes[left] == [epoch]
    router.planes.lost(lost)
    back = Key(lost.address, 2)
    if lost is TARGET:
        router.planes.target_ready(back, 2, CPU)
    else:
        router.planes.draft_ready(back, CPU)
    assert router.pair.epoch > epoch and router.pair.kind is Kind.GLOO


def test_every_draft_has_a_plane_to_every_target():
    router = Router()
    targets = [Key(f"t:{i}") for i in range(2)]
    drafts = [Key(f"d:{i}") for i in range(3)]
    for number, target in enumerate(targets, start=1):
        router.planes.target_ready(target, number, CPU)
    for draft in drafts:
        router.planes.draft_ready(draft, CPU)
    pairs = {(pair.target, pair.draft) for pair in router.planes.pairs}
    assert pairs == {(target, draft) for target in targets for draft in drafts}
    assert len({pair.epoch for pair in router.planes.pairs}) == 6
    assert [len(router.boxes.orders[target]) for target in targets] == [3, 3]


def test_laws_lead_to_the_target_of_their_plane_while_it_is_there():
    router = Router().connect().open()
    inline, far = SparseLaw((1,), (1.0,)), LawRef(router.pair.epoch, 1, 0)
    table = types_pb2.OutcomeTable(branches=[types_pb2.Branch(law_spans=[types_pb2.LawSpan(plane=far.plane, count=1)])])
    assert router.planes.carries((inline, far), TARGET) and router.planes.carries_table(table, TARGET)
    assert router.planes.carries((inline,), None)
    assert not router.planes.carries((inline, far), Key("t:2")) and not router.planes.carries_table(table, Key("t:2"))
    router.report(DRAFT, BROKEN, reason="x")
    assert not router.planes.carries((far,), TARGET)
