"""Tables hold what the rule of their sequence says, within what the process allows."""

from collections import Counter

import pytest

from draft_service.rules import Capped, Refreshed
from protos.ssd.v1.types_pb2 import FAN_OUT_RULE_EXPLICIT, FAN_OUT_RULE_GEOMETRIC, FAN_OUT_RULE_MEASURED, FanOut
from ssd.models.loader import LoadedModel
from ssd.speculation import fan_out as rules
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.ranks import AcceptanceStatistics, StatisticsSettings
from tests.draft_service.harness import Reference, Request, Wire, make_engine, uniform

PROMPT = (44, 3, 19, 200, 3)
BASE = len(PROMPT)
K = 4


def measured_afresh(budget: int) -> rules.MeasuredFanOut:
    return rules.MeasuredFanOut(AcceptanceStatistics(StatisticsSettings(ranks=32)), budget)


RULES = {
    "uniform": (uniform(2), rules.UniformFanOut(2, K)),
    "explicit": (
        FanOut(rule=FAN_OUT_RULE_EXPLICIT, after_hit=[3, 0, 1, 2, 5], after_miss=[6, 1, 0, 0, 2]),
        rules.ExplicitFanOut((3, 0, 1, 2, 5), (6, 1, 0, 0, 2)),
    ),
    "geometric": (
        FanOut(rule=FAN_OUT_RULE_GEOMETRIC, budget=13, acceptance=0.6, exponent=0.5),
        rules.GeometricFanOut(0.6, 0.5, 13),
    ),
    "geometric by default": (FanOut(rule=FAN_OUT_RULE_GEOMETRIC, budget=13), rules.GeometricFanOut(0.8, 1.0, 13)),
    "measured": (FanOut(rule=FAN_OUT_RULE_MEASURED, budget=12), measured_afresh(12)),
}


def shape(table: OutcomeTable) -> tuple[int, ...]:
    counts = Counter(branch.accepted for branch in table.branches)
    return tuple(counts[k] for k in range(len(table.proposal) + 1))


def surprise(table: OutcomeTable) -> int:
    """A token that the table does not anticipate as the first one."""
    return next(i for i in range(320) if all(i != b.token for b in table.branches if b.accepted == 0))


@pytest.mark.parametrize("name", RULES)
def test_branches_are_shared_out_by_the_rule_after_hits_and_after_misses(
    wire: Wire, reference: Reference, name: str
) -> None:
    message, rule = RULES[name]
    request = Request(PROMPT, {"temperature": 1.0}, k=K, fan_out=message)
    wire.open(request)
    wire.run()
    first = wire.tables[-1]
    assert shape(first) == rule.allocate(0)
    assert [b.rank for b in first.branches] == list(range(1, len(first.branches) + 1))
    assert [b.token for b in first.branches] == reference.candidates(request, PROMPT, len(first.branches))
    hit = first.branches[0]
    wire.advance(BASE, (hit.token,), depth=K)
    wire.run()
    assert shape(wire.tables[-1]) == rule.allocate(K, True)
    wire.advance(BASE + 1, (missed := surprise(wire.tables[-1]),), need=True)
    wire.run()
    table = wire.tables[-1]
    assert table.base_len == BASE + 2
    if name != "measured":
        assert shape(table) == rule.allocate(K, False)
    assert sum(shape(table)) == sum(rule.allocate(K, False))
    text = (*PROMPT, hit.token, missed)
    for branch in table.branches:
        before = (*text, *table.proposal[: branch.accepted])
        ranked = reference.candidates(request, before, branch.rank + 1)
        possible = [token for token in ranked if token not in table.proposal[branch.accepted : branch.accepted + 1]]
        assert possible[branch.rank - 1] == branch.token


@pytest.mark.parametrize("name", RULES)
def test_no_rule_exceeds_what_the_process_allows(loaded: LoadedModel, name: str) -> None:
    wire = Wire(make_engine(loaded, max_branches=7))
    message = FanOut()
    message.CopyFrom(RULES[name][0])
    if message.HasField("budget"):
        message.budget = 1 << 31
    wire.open(Request(PROMPT, k=K, fan_out=message), need=True)
    wire.run()
    assert sum(shape(wire.tables[-1])) == 7
    wire.advance(BASE, wire.proposals[-1].ids[:1], depth=12, in_flight=range(12), next_source=3)
    wire.run()
    assert wire.tables[-1].proposal == tuple(range(12)) and sum(shape(wire.tables[-1])) <= 7


def test_an_allocation_above_the_limit_shrinks_in_proportion() -> None:
    assert Capped(rules.ExplicitFanOut((10, 0, 4, 6)), 10).allocate(3) == (5, 0, 2, 3)
    assert Capped(rules.ExplicitFanOut((3, 3, 3)), 4).allocate(2) == (2, 1, 1)
    assert Capped(rules.ExplicitFanOut((3, 3, 3)), 9).allocate(2) == (3, 3, 3)


def test_a_refreshed_rule_is_asked_anew_after_some_rounds() -> None:
    class Counting:
        asked = 0

        def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
            self.asked += 1
            return (self.asked,)

    rule = Refreshed(Counting(), 3)
    assert [rule.allocate(1) for _ in range(7)] == [(1,), (1,), (1,), (2,), (2,), (2,), (3,)]
    assert rule.allocate(1, False) == (4,)


def rounds(wire: Wire, request: Request, reference: Reference, count: int, *, accepted: int, rank: int) -> None:
    """Rounds after misses that end with `accepted` tokens and then the candidate of this rank."""
    text = request.prompt
    for _ in range(count):
        wire.run()
        proposal = tuple(wire.proposals[-1].ids)
        before = (*text, *proposal[:accepted])
        ranked = reference.candidates(request, before, rank + 1)
        possible = [token for token in ranked if token not in proposal[accepted : accepted + 1]]
        ids = (*proposal[:accepted], possible[rank - 1])
        wire.advance(len(text), ids, need=True)
        text += ids
    wire.run()


def test_measured_fan_out_goes_where_the_true_tokens_are(loaded: LoadedModel, reference: Reference) -> None:
    message = FanOut(rule=FAN_OUT_RULE_MEASURED, budget=12)
    request = Request(PROMPT, {"temperature": 1.0}, k=2, fan_out=message)
    wire = Wire(make_engine(loaded))
    wire.open(request, need=True)
    wire.run()
    before = shape(wire.tables[-1])
    assert min(before) > 0
    rounds(wire, request, reference, 40, accepted=0, rank=10)
    far = shape(wire.tables[-1])
    assert far[0] >= 10, "ranks beyond the fan-out are measured, and worth a wide one"
    other = Request((7, 8, 9, 10), {"temperature": 1.0}, k=2, fan_out=message)
    wire.open(other, 2, need=True)
    wire.run()
    assert shape(wire.tables[-1])[0] > before[0], "another sequence begins with what this one has shown"
    wire = Wire(make_engine(loaded))
    wire.open(request, need=True)
    rounds(wire, request, reference, 40, accepted=2, rank=3)
    assert shape(wire.tables[-1])[2] > before[2] > 0


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("name", ["uniform", "explicit", "geometric", "measured"])
def test_parts_partition_the_candidates(loaded: LoadedModel, reference: Reference, name: str, parts: int) -> None:
    message = RULES[name][0]
    tables = []
    for part in range(parts):
        wire = Wire(make_engine(loaded))
        request = Request(PROMPT, {"temperature": 0.7}, k=K, fan_out=message, more={"part": part, "parts": parts})
        wire.open(request, need=True)
        wire.run()
        tables.append(wire.tables[-1])
    assert len({table.proposal for table in tables}) == 1 and len({shape(table) for table in tables}) == 1
    branches = [branch for table in tables for branch in table.branches]
    assert len({branch.key for branch in branches}) == len(branches)
    merged = tables[0]
    for table in tables[1:]:
        merged = merged.merged_with(table)
    for k, count in enumerate(shape(tables[0])):
        by_rank = {branch.rank: branch.token for branch in merged.branches if branch.accepted == k}
        assert sorted(by_rank) == list(range(1, count * parts + 1))
        ranked = reference.candidates(request, (*PROMPT, *merged.proposal[:k]), count * parts + 1)
        possible = [token for token in ranked if token not in merged.proposal[k : k + 1]]
        assert [by_rank[rank] for rank in sorted(by_rank)] == possible[: count * parts]


def test_a_part_changes_with_an_advance(wire: Wire) -> None:
    wire.open(Request(PROMPT, k=2))
    wire.run()
    wire.advance(BASE, (5,), part=1, parts=2)
    wire.run()
    assert [branch.rank for branch in wire.tables[-1].branches] == [2, 4, 6, 8, 10, 12]
    wire.advance(BASE + 1, (5,), part=0, parts=1)
    wire.run()
    assert [branch.rank for branch in wire.tables[-1].branches] == [1, 2, 3, 4, 5, 6]
    wire.advance(BASE + 2, (5,), part=3, parts=3)
    wire.run()
    assert [refused.sequence for refused in wire.refused] == [1]
