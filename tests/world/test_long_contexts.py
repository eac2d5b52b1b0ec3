"""Long contexts, and many lengths at once, work in all modes, with room for them and without."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from ssd.config import EngineConfig
from ssd.models.loader import load_model
from tests import toy
from tests.world.pairs import Generated, Pair, generate

COUNT, BLOCK = 48, 16


@dataclass(frozen=True)
class Place:
    """A device, how long contexts are there, and how many sequences of how many tokens are mixed."""

    device: str
    context: int
    live: int
    longest: int

    @property
    def engine(self) -> EngineConfig:
        return EngineConfig(
            device=self.device, kv_tokens=2 * self.context, max_sequences=self.live, token_budget=1024, block_size=BLOCK
        )


HERE = Place("cpu", 2048, 8, 300)
GPU = Place("cuda", 32768, 32, 4096)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(HERE, id="cpu"),
        pytest.param(
            GPU,
            id="gpu",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
            ],
        ),
    ],
)
def place(request) -> Place:
    return request.param


@pytest.fixture(scope="module")
def pair(place, tmp_path_factory) -> Pair:
    folder = tmp_path_factory.mktemp("toys")
    target = toy.make_toy(folder / "target", "llama", max_position=place.context)
    draft = toy.make_noisy_draft(target, folder / "draft", 0.03)
    # Deterministic: with a step's splits of long contexts roundings would differ between modes.
    loaded = load_model(target, dtype="float32", device=place.device, deterministic=True)
    return Pair(loaded, load_model(draft, dtype="float32", device=place.device))


def prompt(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 200) for _ in range(length)]


def made(
    pair: Pair, place: Place, mode: str, prompts: list[list[int]], engine: EngineConfig | None = None
) -> Generated:
    found = generate(pair, mode, 0.8, prompts, engine or place.engine, count=COUNT, ignore_eos=True)
    assert [len(ids) for ids in found.ids.values()] == [COUNT] * len(prompts)
    return found


@pytest.mark.timeout(300)
def test_a_context_is_filled_to_its_last_token(pair, place):
    prompts = [prompt(place.context - COUNT, 1)]
    plain, sd, ssd = (made(pair, place, mode, prompts) for mode in ("ar", "sd", "ssd"))
    assert plain.ids == sd.ids == ssd.ids
    assert any(one.hit and one.accepted for one in ssd.outcomes)


@pytest.mark.timeout(300)
def test_mixed_lengths_share_a_step_and_little_room_preempts(pair, place):
    lengths = [1, 17, place.longest // 8, place.longest] * (place.live // 4)
    prompts = [prompt(length, number) for number, length in enumerate(lengths)]
    filled = sum(-(-length // BLOCK) * BLOCK for length in lengths)
    # All of them begin at once: short ones would be gone before the long ones were there.
    roomy = replace(place.engine, kv_tokens=filled + 5 * BLOCK * place.live, token_budget=filled)
    plain, ssd = (made(pair, place, mode, prompts, roomy) for mode in ("ar", "ssd"))
    assert plain.ids == ssd.ids
    assert plain.target.load().preemptions == ssd.target.load().preemptions == 0

    # The prompts fit with one block more each, what follows them does not.
    tight = replace(roomy, kv_tokens=filled + BLOCK * place.live)
    pressed = made(pair, place, "ssd", prompts, tight)
    assert pressed.ids == plain.ids
    assert pressed.target.load().preemptions > 0
