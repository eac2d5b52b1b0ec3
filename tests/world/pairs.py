"""A loaded target and draft around which engines are made, to generate in lockstep."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench import lockstep
from draft_service.engine import DraftEngine
from draft_service.experience import RANKS_KEPT
from protos.ssd.v1 import target_pb2, types_pb2
from router.plan import Plan
from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.models.loader import LoadedModel
from ssd.runtime.assembly import make_runner
from ssd.runtime.step_sizes import Demand
from target_service.engine import TargetEngine

K, COUNT = 4, 48
MODES = {"ar": types_pb2.MODE_AR, "sd": types_pb2.MODE_SD, "ssd": types_pb2.MODE_SSD}
FEW = EngineConfig(device="cuda", kv_tokens=4096, max_sequences=8, token_budget=64)


@dataclass(frozen=True)
class Pair:
    target: LoadedModel
    draft: LoadedModel


@dataclass(frozen=True)
class Generated:
    """ids[n] of prompt n, every outcome of the target, and the target as it was left."""

    ids: dict[int, list[int]]
    outcomes: list[target_pb2.StepOutcome]
    target: TargetEngine


def engines(pair: Pair, engine: EngineConfig) -> tuple[TargetEngine, DraftEngine]:
    """Both with a KV cache as `engine` says."""
    info = types_pb2.ModelInfo(vocab_size=pair.target.config.vocab_size, eos_ids=pair.target.config.eos_ids)
    live = engine.max_sequences
    runner, pool = make_runner(pair.target, engine, Demand(queries=K + 1, sequences=live))
    target = TargetEngine(runner, pool, pair.target.config, TargetConfig(engine=engine), info)
    demand = Demand(2 * K + 2, live, branches=24, depth=K, candidates=RANKS_KEPT + 1, chain=K, vocab=info.vocab_size)
    runner, pool = make_runner(pair.draft, engine, demand)
    assert runner.draws == (pair.draft.device.type == "cuda")
    return target, DraftEngine(runner, pool, pair.draft.config, DraftConfig(engine=engine), info)


def generate(
    pair: Pair,
    mode: str,
    temperature: float,
    prompts: Sequence[Sequence[int]],
    engine: EngineConfig = FEW,
    *,
    count: int = COUNT,
    ignore_eos: bool = False,
    **sampling: float,
) -> Generated:
    """`count` tokens at most behind each prompt, each with a seed of its own."""
    target, draft = engines(pair, engine)
    plans = {
        number: Plan(
            prompt=list(ids),
            sampling=types_pb2.SamplingParameters(temperature=temperature, seed=11 + number, **sampling),
            limits=types_pb2.TokenLimits(max_tokens=count, ignore_eos=ignore_eos),
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
    outcomes: list[target_pb2.StepOutcome] = []
    ids = lockstep.run(target, None if mode == "ar" else draft, plans, outcomes.append)
    return Generated(ids, outcomes, target)
