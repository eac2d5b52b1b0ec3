"""Budget and blocks: everybody gets on, nothing is lost, and all blocks come back."""

import pytest

from tests.target_service.rig import AR, Rig, opening, plain_ids


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(seed * 5 + i * i + 3 * i) % 23 for i in range(length)]


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 512])
def test_prefill_in_chunks_of_any_size_gives_the_same_ids(budget):
    rig, message = Rig(budget=budget), opening(1, prompt(37), mode=AR)
    rig.open(message)
    rig.run()
    assert rig.ids(1) == plain_ids(message)
    assert rig.runner.steps[0] == [(0, min(budget, 37), int(budget >= 37))]


@pytest.mark.parametrize("budget", [1, 3, 5, 64])
def test_many_sequences_share_a_budget_of_any_size(budget):
    rig = Rig(budget=budget)
    messages = [opening(i, prompt(3 + 7 * (i % 3), i), mode=AR, max_tokens=6) for i in range(6)]
    rig.open(*messages)
    rig.run()
    assert [rig.ids(i) for i in range(6)] == [plain_ids(message) for message in messages]
    assert rig.pool.in_use == 0


def test_decoding_goes_on_while_a_long_prompt_is_prefilled():
    rig = Rig(budget=8)
    rig.open(opening(1, prompt(3), mode=AR, max_tokens=20))
    rig.step()
    rig.open(opening(2, prompt(40), mode=AR))
    for _ in range(5):
        assert [outcome.sequence for outcome in rig.step()] == [1]
    assert sorted(rig.runner.steps[-1]) == [(7, 1, 1), (28, 7, 0)]


def test_prefill_goes_on_while_proposals_would_fill_the_budget():
    rig, message = Rig(budget=9), opening(1, prompt(3), k=8, max_tokens=100)
    truth = plain_ids(message)
    rig.open(message)
    rig.step()
    rig.open(opening(2, prompt(40), mode=AR))
    for _ in range(4):
        rig.propose(1, 3 + len(rig.ids(1)), truth[len(rig.ids(1)) :][:8])
        rig.step()
    assert sum(tokens for rows in rig.runner.steps for start, tokens, logits in rows if logits == 0) >= 4 * 4
    assert rig.ids(1) == truth[: len(rig.ids(1))]
    assert len(rig.ids(1)) > 12  # and so did speculation


def test_a_tiny_budget_goes_round():
    rig = Rig(budget=1)
    rig.open(*(opening(i, [i + 1], mode=AR, max_tokens=8) for i in range(3)))
    for _ in range(15):
        rig.step()
    assert [len(rig.ids(i)) for i in range(3)] == [5, 5, 5]


def test_a_known_prefix_is_not_computed_again():
    rig = Rig(block_size=4)
    first = opening(1, prompt(14), mode=AR)
    rig.open(first)
    rig.run()
    assert rig.outcomes[1][0].cached_tokens == 0
    again, other = opening(2, prompt(14), mode=AR), opening(3, prompt(9) + [1, 1, 1], mode=AR)
    rig.open(again, other)
    rig.step()
    assert rig.runner.steps[-1] == [(12, 2, 1), (8, 4, 1)]
    assert (rig.outcomes[2][0].cached_tokens, rig.outcomes[3][0].cached_tokens) == (12, 8)
    rig.run()
    assert rig.ids(2) == rig.ids(1)
    assert rig.ids(3) == plain_ids(other)
    assert rig.outcomes[2][1].cached_tokens == 0


def test_generated_tokens_of_an_ended_sequence_are_known_too():
    rig = Rig(block_size=4)
    rig.open(opening(1, prompt(6), mode=AR, max_tokens=7))
    rig.run()
    rig.open(opening(2, prompt(6) + rig.ids(1) + [5], mode=AR))
    rig.run()
    assert rig.outcomes[2][0].cached_tokens == 12


def test_a_pool_that_is_too_small_for_all_preempts_the_youngest_and_loses_nothing():
    rig = Rig(blocks=12, block_size=2)
    messages = [opening(i, prompt(4, i), mode=AR, max_tokens=14) for i in range(4)]
    rig.open(*messages)
    rig.run()
    assert [rig.ids(i) for i in range(4)] == [plain_ids(message) for message in messages]
    assert rig.engine.load().preemptions > 0
    assert rig.closed[0] == 0  # the oldest is never set back
    assert rig.pool.in_use == 0


def test_the_oldest_progresses_in_every_step_however_small_the_pool():
    rig = Rig(blocks=10, block_size=2)
    messages = [opening(i, prompt(2, i), mode=AR, max_tokens=18) for i in range(5)]
    rig.open(*messages)
    for count in range(1, 19):
        rig.step()
        assert len(rig.ids(0)) == count
    rig.run()
    assert [rig.ids(i) for i in range(5)] == [plain_ids(message) for message in messages]


def test_proposals_are_trimmed_before_anybody_is_preempted():
    rig = Rig(blocks=6, block_size=2)
    first, second = opening(1, prompt(3), k=8, max_tokens=9), opening(2, prompt(3, 1), mode=AR, max_tokens=5)
    truth = plain_ids(first)
    rig.open(first, second)
    rig.step()
    rig.propose(1, 4, truth[1:9])
    (outcome, _) = rig.step()
    assert 0 < outcome.proposed < 8
    assert rig.engine.load().preemptions == 0
    rig.run()
    assert rig.ids(1) == truth
    assert rig.ids(2) == plain_ids(second)


def test_blocks_that_only_refused_tokens_reached_go_back_at_once():
    rig, message = Rig(block_size=1), opening(1, prompt(3), k=8)
    truth = plain_ids(message)
    rig.open(message)
    rig.step()
    rig.propose(1, 4, [(truth[1] + 1) % 23] * 8)
    rig.step()
    assert rig.pool.in_use == 5  # committed tokens


def test_a_preempted_sequence_drops_its_proposal_and_starts_again_with_all_tokens():
    rig = Rig(blocks=9, block_size=2)
    old, young = opening(1, prompt(4), mode=AR, max_tokens=13), opening(2, prompt(4, 1), max_tokens=6)
    rig.open(old, young)
    while not rig.engine.load().preemptions:
        rig.step()
        done = len(rig.ids(2))
        rig.propose(2, 4 + done, [(plain_ids(young)[done] + 1) % 23])
    held = rig.engine.roster.get(1, 2)
    assert held is not None and not held.holds_blocks
    assert held.ids == prompt(4, 1) + rig.ids(2)
    rig.run()
    assert rig.ids(1) == plain_ids(old)
    assert rig.ids(2) == plain_ids(young)


@pytest.mark.parametrize("after", range(6))
def test_a_close_gives_all_blocks_back_at_once(after):
    rig = Rig(blocks=16, block_size=2, budget=5)
    rig.open(*(opening(i, prompt(7, i)) for i in range(3)))
    for _ in range(after):
        rig.step(0.4)
    rig.send(closes=[0, 1, 2, 3])
    assert rig.pool.in_use == 0
    rig.step()
    assert sorted(rig.closed) == [0, 1, 2]
    assert rig.engine.wake_at(rig.now) is None
    assert len(rig.engine.replica) == 0


@pytest.mark.parametrize("after", range(6))
def test_the_end_of_a_stream_gives_back_what_was_opened_on_it_and_nothing_else(after):
    rig = Rig(blocks=32, block_size=2, budget=5)
    kept = opening(7, prompt(5, 3), mode=AR)
    rig.open(*(opening(i, prompt(7, i)) for i in range(3)), stream=1)
    rig.open(kept, stream=2)
    for _ in range(after):
        rig.step()
    rig.engine.close_stream(1)
    rig.engine.close_stream(1)
    assert set(rig.engine.roster.live) == {(2, 7)}
    rig.closed.clear()
    rig.run()
    assert rig.ids(7) == plain_ids(kept)
    assert rig.closed == [7]
    assert rig.pool.in_use == 0


def test_load_counts_who_runs_and_who_waits():
    rig = Rig(blocks=8, block_size=2)
    rig.open(opening(1, prompt(10), mode=AR, max_tokens=4), opening(2, prompt(9, 1), mode=AR, max_tokens=4))
    rig.step()
    load = rig.engine.load()
    assert (load.running, load.waiting, load.steps) == (1, 1, 1)
    assert (load.kv_blocks_used, load.kv_blocks_total, load.block_size) == (5, 8, 2)


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
@pytest.mark.parametrize("blocks", [9, 11, 14])
def test_few_blocks_and_a_small_budget_together_never_stop_the_oldest(blocks, budget):
    rig = Rig(blocks=blocks, block_size=2, budget=budget)
    messages = [opening(i, prompt(2 + i, i), mode=AR, max_tokens=10) for i in range(6)]
    rig.open(*messages)
    oldest, since = (0, 0), 0
    while rig.engine.wake_at(rig.now) is not None:
        rig.step()
        held = [sequence.number for sequence in rig.engine.roster.live.values() if sequence.holds_blocks]
        free = [sequence.number for sequence in rig.engine.roster.live.values() if not sequence.holds_blocks]
        assert max(held, default=0) < min(free, default=99)
        first = next(iter(rig.engine.roster.live.values()), None)
        progress = (first.number, first.computed) if first else (99, 0)
        since = since + 1 if progress == oldest else 0
        oldest = progress
        assert since <= 6  # its turn comes round
    assert [rig.ids(i) for i in range(6)] == [plain_ids(message) for message in messages]
    assert blocks > 9 or rig.engine.load().preemptions > 0


@pytest.mark.parametrize(("blocks", "block_size", "budget", "most"), [(9, 2, 2, 8), (12, 1, 2, 6), (16, 2, 4, 8)])
def test_a_row_that_is_set_back_after_it_had_its_turn_leaves_the_step(blocks, block_size, budget, most):
    rig = Rig(blocks=blocks, block_size=block_size, budget=budget)
    messages = [opening(i, prompt(2 + i % 3, i), mode=AR, max_tokens=most) for i in range(5)]
    rig.open(*messages)
    rig.run()
    assert [rig.ids(i) for i in range(5)] == [plain_ids(message) for message in messages]
    assert rig.engine.load().preemptions > 0
