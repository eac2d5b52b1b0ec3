"""Ranks with a part of the vocabulary each draw the ids that one process with all of it draws."""

import random

import pytest
import torch

from ssd.runtime.draws import UNDRAWABLE, reference_ids
from ssd.runtime.sharded_draws import ranked_over_ranks
from tests.ssd.parallel.sharding import columns, over_ranks, random_logits


def same_on_all_ranks(logits, size, count, vocab=None):
    expected = reference_ids(logits[:, : vocab or logits.shape[1]], *columns(logits.device), count)
    for ids in over_ranks(ranked_over_ranks, logits, size, count, vocab):
        assert torch.equal(ids, expected)
    return expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "count"), [(5, 1), (9, 5), (320, 17), (1003, 4), (2501, 3)])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ids_are_those_of_the_whole(dtype, vocab, count, size):
    # 5 ids on 2 ranks and 9 on 4 leave ranks without any.
    same_on_all_ranks(random_logits(vocab, dtype), size, count)


@pytest.mark.parametrize("seed", range(3))
def test_equal_scores_go_to_the_lower_id(seed):
    chance = random.Random(seed)
    logits = torch.tensor([[chance.choice([0.0, 1.0, 2.0]) for _ in range(203)] for _ in range(6)])
    same_on_all_ranks(logits, 4, 6)
    same_on_all_ranks(torch.zeros(6, 203), 4, 6)


def test_impossible_tokens_come_last_by_id():
    logits = torch.full((6, 100), float("-inf"))
    logits[:, [7, 90]] = torch.tensor([1.0, 2.0])
    expected = same_on_all_ranks(logits, 4, 5)
    assert expected[0].tolist() == [90, 7, 0, 1, 2]


def test_a_row_that_is_broken_on_one_rank_is_undrawable_on_all():
    logits = random_logits(200)
    logits[1, 199] = float("nan")
    logits[2, 4] = float("inf")
    logits[3] = float("-inf")
    logits[4, 0] = float("nan")
    expected = same_on_all_ranks(logits, 4, 2)
    assert [row[0] == UNDRAWABLE for row in expected.tolist()] == [False, True, True, True, True, False]


@pytest.mark.parametrize("vocab", [3, 150, 190])
def test_padding_of_the_vocabulary_is_never_drawn(vocab):
    same_on_all_ranks(random_logits(200), 4, 3, vocab)
