"""The noise: published vectors, and the same number for a token however it is asked for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.speculation.philox import NoiseStream, gumbel, gumbel_at, gumbel_of, philox4x32, seed_pattern, uniform_words

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox_in_plain_integers(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = x0 * 0xD2511F53, x2 * 0xCD9E8D57
        x0, x1, x2, x3 = (p1 >> 32) ^ x1 ^ k0, p1 & ONES, (p0 >> 32) ^ x3 ^ k1, p0 & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return x0, x1, x2, x3


def philox_of(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    return tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1)))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter, key, expected):
    assert philox_of(counter, key) == expected


word = st.integers(0, ONES)


@given(st.tuples(word, word, word, word), st.tuples(word, word))
def test_philox_equals_plain_integer_arithmetic(counter, key):
    assert philox_of(counter, key) == philox_in_plain_integers(counter, key)


@settings(deadline=None)
@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**31), token=st.integers(0, 199))
def test_noise_of_a_token_follows_its_definition(seed, position, token):
    words = philox_in_plain_integers((position, token // 4, 0, 0), (seed & ONES, seed >> 32))
    u = (words[token % 4] + 0.5) / 2**32
    noise = gumbel(torch.tensor([seed_pattern(seed)]), torch.tensor([position]), 200)
    assert noise[0, token].item() == pytest.approx(-math.log(-math.log(u)), rel=1e-13)


@pytest.mark.parametrize("vocab", [1, 3, 8, 321, 49152, 151936])
def test_noise_is_the_same_alone_in_a_batch_and_for_chosen_ids(vocab):
    generator = torch.Generator().manual_seed(vocab)
    seeds = torch.randint(-(2**63), 2**63 - 1, (3,), generator=generator)
    positions = torch.randint(0, 100_000, (3,), generator=generator)
    together = gumbel(seeds, positions, vocab)
    assert together.shape == (3, vocab) and together.dtype == torch.float64
    for i in range(3):
        assert torch.equal(gumbel(seeds[i : i + 1], positions[i : i + 1], vocab)[0], together[i])
    ids = torch.randint(0, vocab, (3, 17), generator=generator)
    assert torch.equal(gumbel_at(seeds, positions, ids), together.gather(1, ids))


def test_a_smaller_vocabulary_sees_the_same_noise():
    seeds, positions = torch.tensor([5]), torch.tensor([9])
    assert torch.equal(gumbel(seeds, positions, 1000)[:, :30], gumbel(seeds, positions, 30))


def test_streams_positions_and_both_halves_of_the_seed_matter():
    def words(seed: int, position: int, stream: int) -> tuple[int, ...]:
        got = uniform_words(torch.tensor([seed_pattern(seed)]), torch.tensor([position]), 16, stream=stream)
        return tuple(got[0].tolist())

    different = {words(s, p, n) for s in (1, 2, 1 + 2**32, 2**63) for p in (0, 1) for n in (NoiseStream.TARGET, 1)}
    assert len(different) == 16


def test_the_extreme_words_give_finite_noise():
    low, high = gumbel_of(torch.tensor([0, ONES])).tolist()
    assert low == pytest.approx(-math.log(33 * math.log(2)))
    assert high == pytest.approx(33 * math.log(2))


def test_noise_has_the_moments_of_a_gumbel_law():
    noise = gumbel(torch.arange(50), torch.zeros(50, dtype=torch.int64), 10_000)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)


def test_noise_comes_in_the_asked_dtype():
    assert gumbel(torch.tensor([1]), torch.tensor([1]), 4, dtype=torch.float32, device="cpu").dtype == torch.float32


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_outside_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match="64-bit"):
        seed_pattern(seed)


def test_seed_patterns_keep_all_bits():
    assert [seed_pattern(s) for s in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_words_are_the_same_on_the_gpu():
    seeds, positions = torch.tensor([3, -4]), torch.tensor([7, 8])
    assert torch.equal(uniform_words(seeds.cuda(), positions.cuda(), 5000).cpu(), uniform_words(seeds, positions, 5000))
