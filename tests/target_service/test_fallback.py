"""After a miss: wait, look the text up, or go on; and nobody else's step is held up."""

import itertools

import pytest

from protos.ssd.v1 import types_pb2
from ssd.speculation.ngram import NGramIndex
from ssd.speculation.proposal import Source
from target_service.fallback import Fallback
from tests.target_service.rig import AR, AUTO, SD, SSD, Rig, opening, plain_ids
from tests.target_service.test_rounds import wrong

AUTO_FALLBACK, JIT, NGRAM, NONE = (
    types_pb2.FALLBACK_AUTO,
    types_pb2.FALLBACK_JIT,
    types_pb2.FALLBACK_NGRAM,
    types_pb2.FALLBACK_NONE,
)
FROM_JIT, FROM_TEXT = types_pb2.PROPOSAL_SOURCE_JIT, types_pb2.PROPOSAL_SOURCE_NGRAM
WAIT_S = 1.0
PROMPT = [3, 1, 4, 1, 5]


def begun(prompt, fallback: int, *, drafting: bool = True, mode: int = SSD, **limits) -> tuple[Rig, list[int]]:
    rig = Rig(wait_s=WAIT_S)
    message = opening(1, prompt, mode=mode, drafting=drafting, fallback=fallback, **limits)
    rig.open(message)
    rig.step()
    return rig, plain_ids(message)


def lookup(prompt: list[int]) -> list[int]:
    """What stands behind the last occurrence of the end of the text; the end is known to occur."""
    text = prompt + plain_ids(opening(1, prompt))[:1]
    for size in (3, 2, 1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                copied = text[start + size :]
                return (copied * 4)[:4]
    raise AssertionError("nothing to be found")


def repeating(size: int) -> list[int]:
    """A prompt after whose first output token the last `size` ids, and no more, have stood before."""
    for prompt in itertools.product(range(23), range(23), [12], [13], range(23)):
        (first,) = plain_ids(opening(1, prompt, max_tokens=1))
        if NGramIndex([*prompt, first]).matched == size:
            return list(prompt)
    raise AssertionError("no such prompt")


STRONG, WEAK, NEW = repeating(2), repeating(1), [0, 1]


@pytest.mark.parametrize("drafting", [True, False])
@pytest.mark.parametrize("mode", [SD, SSD, AUTO])
@pytest.mark.parametrize(
    ("fallback", "prompt", "source", "waits"),
    [
        (JIT, STRONG, 0, True),
        (NGRAM, STRONG, FROM_TEXT, False),
        (NGRAM, WEAK, FROM_TEXT, False),
        (NGRAM, NEW, 0, False),
        (NONE, STRONG, 0, False),
        (AUTO_FALLBACK, STRONG, FROM_TEXT, False),
        (AUTO_FALLBACK, WEAK, 0, True),
        (AUTO_FALLBACK, NEW, 0, True),
    ],
)
def test_what_follows_a_miss(fallback, prompt, source, waits, mode, drafting):
    rig, truth = begun(prompt, fallback, mode=mode, drafting=drafting)
    if fallback == AUTO_FALLBACK and prompt is WEAK and not drafting:
        source = FROM_TEXT  # rather than nothing
    (first,) = rig.outcomes[1]
    assert (first.hit, first.next_source, first.next_depth) == (False, source, 4 if source else 0)
    steps = rig.step()
    assert (steps == []) == (waits and drafting)
    if steps:
        assert (steps[0].proposed, steps[0].source) == (4 if source else 0, source)
    rig.run()
    assert rig.ids(1) == truth


def test_the_lookup_is_what_followed_the_same_words_before():
    rig, _ = begun(STRONG, NGRAM)
    held = rig.engine.roster.live[1, 1].proposal
    assert list(held.ids) == lookup(STRONG)
    assert held.source is Source.NGRAM


def test_a_waiting_row_that_may_look_up_does_so_when_another_runs_anyway():
    rig = Rig(wait_s=WAIT_S)
    rig.open(opening(1, WEAK, fallback=AUTO_FALLBACK), opening(2, [9, 9], mode=AR))
    outcomes = {outcome.sequence: outcome for outcome in rig.step()}
    assert outcomes[1].next_source == FROM_TEXT
    rig.run()
    assert rig.ids(1) == plain_ids(opening(1, WEAK))


def test_rows_that_miss_together_and_have_nothing_to_verify_wait_together():
    rig = Rig(wait_s=WAIT_S)
    rig.open(opening(1, WEAK, fallback=AUTO_FALLBACK), opening(2, [9, 9], fallback=JIT))
    assert {outcome.next_source for outcome in rig.step()} == {0}
    assert rig.step() == []


def test_the_fallback_may_be_changed_while_a_row_waits():
    for fallback in (NGRAM, NONE):
        rig, _ = begun(STRONG, JIT)
        assert rig.step() == []
        rig.send(drafting=[{"sequence": 1, "drafting": True}])
        assert rig.step() == []
        rig.send(drafting=[{"sequence": 1, "drafting": True, "fallback": fallback}])
        (outcome,) = rig.step()
        assert outcome.proposed == 0
        assert rig.step() != []


def test_a_late_proposal_is_rebased_over_a_lookup():
    rig, truth = begun(STRONG, NGRAM)
    rig.propose(1, len(STRONG) + 1, truth[1:5])
    (outcome,) = rig.step()
    assert outcome.source == FROM_TEXT
    taken = len(outcome.ids)
    assert (outcome.next_source, outcome.next_depth) == (FROM_JIT, 4 - taken)
    assert rig.ids(1) == truth[: 1 + taken]


def test_a_slow_draft_never_holds_up_the_rows_that_hit():
    """Row 1 always hits; row 2 always misses, and its proposals come five steps late, right or wrong."""
    rig = Rig(wait_s=WAIT_S)
    hitting = opening(1, PROMPT, k=2, max_tokens=60)
    missing = opening(2, [9, 8], k=4, max_tokens=60, fallback=JIT)
    truths = {1: plain_ids(hitting), 2: plain_ids(missing)}
    rig.open(hitting, missing)
    rig.table(1, 5, [], (0, truths[1][0], truths[1][1:3]))
    late: list[tuple[int, list[int]]] = []
    start = rig.now
    for number in range(19):
        done = len(rig.ids(1))
        if number:
            in_flight = truths[1][done : done + 2]
            rig.table(1, 5 + done, in_flight, (2, truths[1][done + 2], truths[1][done + 3 : done + 5]))
            base = len(rig.ids(2))
            guess = truths[2][base : base + 4]
            late.append((2 + base, guess if number % 2 else [wrong(guess[0]), *guess[1:]]))
        if number >= 5:
            rig.propose(2, *late[number - 5])
        outcomes = {outcome.sequence: outcome for outcome in rig.step()}
        assert set(outcomes) == {1, 2}  # row 2 rides along
        assert outcomes[1].hit and len(outcomes[1].ids) == (3 if number else 1)
    assert rig.now == start
    assert len(rig.ids(1)) == 55
    rig.run()
    assert {number: rig.ids(number) for number in truths} == truths


def test_lookups_that_fail_make_room_for_the_draft_and_are_tried_again_some_day():
    text, choices = [1, 2, 3] * 4, []
    fallback = Fallback(AUTO_FALLBACK)
    for _ in range(120):
        found = fallback.look_up(text, 4, draft=True, busy=False)
        choices.append(found is not None)
        source = Source.PROPOSAL if found is None else Source.NGRAM
        fallback.observe(source, 3 if found is None else 0, 4)
    assert choices[0]
    assert sum(choices[:60]) < 15
    assert any(choices[60:])


def test_lookups_that_succeed_are_kept_up_and_a_dear_draft_is_avoided():
    fallback = Fallback(AUTO_FALLBACK)
    text = [7, 1, 8, 2, 9, 1]
    assert fallback.look_up(text, 4, draft=True, busy=False) is None
    for _ in range(20):
        fallback.waited(6.0)
    assert fallback.look_up(text, 4, draft=True, busy=False) is not None


def test_rounds_after_hits_say_nothing_about_fallbacks():
    one, two = Fallback(AUTO_FALLBACK), Fallback(AUTO_FALLBACK)
    for _ in range(50):
        one.observe(Source.TABLE, 0, 4)
    for text in ([1, 2, 3, 1, 2], [1, 2, 3, 1, 2, 4, 2]):
        assert one.look_up(text, 4, draft=True, busy=False) == two.look_up(text, 4, draft=True, busy=False)


def test_the_engine_learns_what_a_wait_costs():
    rig, truth = begun(NEW, AUTO_FALLBACK, max_tokens=40)
    sequence = rig.engine.roster.live[1, 1]
    before = sequence.fallback._wait_steps
    for _ in range(4):
        assert rig.step() == []
        rig.now += 0.8
        done = len(rig.ids(1))
        rig.propose(1, len(NEW) + done, [wrong(truth[done])])
        rig.engine.begin(rig.now)
        rig.finish(0.1)
    assert before < sequence.fallback._wait_steps < 8.0
