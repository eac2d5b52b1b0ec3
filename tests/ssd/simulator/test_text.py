"""Texts and processes of ranks."""

from __future__ import annotations

import json

import pytest

from ssd.simulator.text import GeometricProcess, Text, TraceProcess


def test_the_same_sequence_and_seed_say_the_same():
    process = GeometricProcess(0.7)
    one, other = Text(3, process, 5), Text(3, process, 5)
    other.rank(500)
    assert [one.rank(i) for i in range(500)] == [other.rank(i) for i in range(500)]
    assert [Text(4, process, 5).rank(i) for i in range(50)] != [one.rank(i) for i in range(50)]


@pytest.mark.parametrize(("acceptance", "exponent"), [(0.5, 0.8), (0.8, 1.6)])
def test_ranks_follow_acceptance_and_power_law(acceptance, exponent):
    process = GeometricProcess(acceptance, exponent)
    text, count = Text(0, process, 1), 20_000
    ranks = [text.rank(i) for i in range(count)]
    others = [rank - 1 for rank in ranks if rank > 1]
    for fan_out in (1, 2, 5):
        bonus = sum(rank <= fan_out for rank in ranks) / count
        rejected = sum(place <= fan_out for place in others) / len(others)
        assert bonus == pytest.approx(process.covered(fan_out, bonus=True), abs=0.02)
        assert rejected == pytest.approx(process.covered(fan_out, bonus=False), abs=0.02)


def test_the_draft_is_right_up_to_its_first_mistake():
    text = Text(0, TraceProcess(((1, 1, 3, 1),)), 0)
    drafted = text.drafted(0, 4)
    assert drafted[:2] == text.ids(0, 2) and text.accepted(0, drafted) == 2
    assert text.drafted(3, 3) == (*text.ids(3, 6),)
    # The refused token is not among the candidates for its place; after full acceptance all are.
    assert text.place(0, drafted, 2) == 2
    assert text.place(0, drafted[:2], 2) == 3
    assert text.place(0, (), 0) == 1


def test_prompt_lookup_has_its_own_acceptance():
    text = Text(0, GeometricProcess(0.0), 0, ngram_acceptance=1.0)
    assert text.looked_up(7, 3) == text.ids(7, 10)
    assert Text(0, GeometricProcess(0.5), 0).looked_up(7, 3) == ()


def test_a_trace_is_read_and_used_again_from_its_start(tmp_path):
    path = tmp_path / "ranks.jsonl"
    path.write_text(json.dumps([1, 2, 0]) + "\n\n" + json.dumps({"ranks": [5]}) + "\n")
    process = TraceProcess.read(path)
    text = Text(0, process, 0)
    assert [text.rank(i) for i in range(4)] == [1, 2, 1_000_000_000, 1]
    assert Text(1, process, 0).rank(9) == 5


@pytest.mark.parametrize("line", ["[1, x]", '{"rank": [1]}', "[1, 2.5]", "[]", "[-1]", "[true]"])
def test_a_trace_that_is_none_is_refused(tmp_path, line):
    path = tmp_path / "ranks.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match="ranks|trace|JSON"):
        TraceProcess.read(path)


@pytest.mark.parametrize(("acceptance", "exponent"), [(-0.1, 1.0), (1.1, 1.0), (0.5, 0.0)])
def test_impossible_processes_are_refused(acceptance, exponent):
    with pytest.raises(ValueError, match="acceptance"):
        GeometricProcess(acceptance, exponent)
