"""A model over 2 and 4 ranks generates the ids of the model in one process, in every mode."""

import pytest

from tests.ssd.parallel.playing import Models, play_alone, play_over_ranks
from tests.toy import HIDDEN, LAYERS, make_noisy_draft, make_toy

HEADS, KV_HEADS = 4, 2
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Toys of each family: 4 heads of 2 key/value heads, which are split over 2 ranks and replicated on 4."""
    folder = tmp_path_factory.mktemp("ranks")
    found = {}
    for family in FAMILIES:
        target = make_toy(folder / family, family, heads=HEADS, kv_heads=KV_HEADS)
        found[family] = Models(target, make_noisy_draft(target, folder / f"{family}-draft", 0.02))
    return found


@pytest.fixture(scope="module")
def alone(made):
    return {family: play_alone(models) for family, models in made.items()}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_logprobs_are_those_of_one_process(made, alone, family, ranks):
    expected, whole = alone[family]
    played, sizes = play_over_ranks(made[family], ranks)
    assert played.ids == expected.ids
    for found, logprobs in zip(played.logprobs, expected.logprobs, strict=True):
        assert found == pytest.approx(logprobs, abs=1e-5)
    assert any(played.logprobs)
    assert played.hits == expected.hits > 0
    assert sizes == [share_of(family, whole, ranks)] * ranks


def share_of(family: str, whole: int, ranks: int) -> int:
    """Bytes of one rank's parameters: of what is split its share, and norms and replicated key/value heads in full."""
    dim, word = HIDDEN // HEADS, 4
    norms = (2 * LAYERS + 1) * HIDDEN + (2 * LAYERS * dim if family == "qwen3" else 0)
    a_head = 2 * LAYERS * dim * (HIDDEN + (family == "qwen2"))  # keys and values of all layers
    split = whole // word - norms - KV_HEADS * a_head
    return word * (split // ranks + norms + max(1, KV_HEADS // ranks) * a_head)


def test_a_draft_over_two_ranks_anticipates_as_one_process_does(made, alone):
    expected, _ = alone["llama"]
    played, _ = play_over_ranks(made["llama"], 2, "draft")
    # Over ranks it drafts several tokens at a time, so its tables come at other moments.
    assert played.ids == expected.ids and played.hits > expected.hits // 2
