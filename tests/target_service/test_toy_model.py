"""The engine around a real (tiny) model: the ids of a plain loop that has no cache, no batch and no speculation."""

import dataclasses

import pytest
import torch

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.config import EngineConfig, TargetConfig
from ssd.layers.attention_torch import TorchAttention
from ssd.models.loader import LoadedModel, load_model
from ssd.proto_convert import sampling_params
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.runner import ModelRunner, RunRow
from ssd.speculation.sampling import Draw, TokenHistory, draw, row_after
from target_service.engine import TargetEngine
from target_service.main import make_engine
from tests import toy
from tests.target_service.rig import AR, SSD, opening

SAMPLINGS = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 11}]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    torch.set_num_threads(1)
    path = toy.make_toy(tmp_path_factory.mktemp("toy"), "qwen2", tokenizer=False)
    return load_model(path, dtype="float64")


def plain(loaded: LoadedModel, message: target_pb2.TargetOpen) -> list[Draw]:
    params = sampling_params(message.sampling, vocab_size=toy.VOCAB, logprobs=message.logprobs)
    ids, prompt_len, drawn = list(message.ids), message.prompt_len, []
    for _ in range(message.limits.max_tokens):
        kv = KVCache.allocate(loaded, blocks=1, block_size=128)
        table = BlockTable(BlockPool(1, 128))
        table.ensure(len(ids))
        logits = ModelRunner(loaded.model, loaded.config, kv, TorchAttention()).run([RunRow(ids, 0, table)])
        drawn += draw(logits, [row_after(params, TokenHistory(ids[:prompt_len], ids[prompt_len:]))])
        ids.append(drawn[-1].id)
    return drawn


def generate(engine: TargetEngine, messages, guesses: dict[int, list[int]] | None = None) -> dict[int, list]:
    """Outcomes by sequence. Guesses are proposed after every step, from where the sequence is."""
    outcomes: dict[int, list[target_pb2.StepOutcome]] = {message.sequence: [] for message in messages}
    prompt_lens = {message.sequence: message.prompt_len for message in messages}
    engine.handle(1, target_pb2.TargetServiceServeRequest(opens=messages))
    now = 0.0
    while (wake_at := engine.wake_at(now)) is not None:
        now = max(now, wake_at)
        for response in engine.step(now).values():
            assert not response.refused
            for outcome in response.outcomes:
                outcomes[outcome.sequence].append(outcome)
        proposals = []
        for number, guess in (guesses or {}).items():
            done = sum(len(outcome.ids) for outcome in outcomes[number])
            proposals.append(
                types_pb2.Proposal(sequence=number, base_len=prompt_lens[number] + done, ids=guess[done : done + 4])
            )
        engine.handle(1, target_pb2.TargetServiceServeRequest(proposals=proposals))
    return outcomes


def config(**engine) -> TargetConfig:
    return TargetConfig(engine=EngineConfig(**({"block_size": 4, "kv_tokens": 512} | engine)))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_any_way_of_running_gives_the_ids_and_logprobs_of_the_plain_loop(loaded, sampling):
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 99], [200]]
    messages = [
        opening(i, ids, sampling=sampling, logprobs=2, max_tokens=14, mode=SSD) for i, ids in enumerate(prompts)
    ]
    wanted = {message.sequence: plain(loaded, message) for message in messages}
    truths = {number: [one.id for one in drawn] for number, drawn in wanted.items()}
    spoiled = {
        number: [t if i % 5 else (t + 1) % toy.VOCAB for i, t in enumerate(ids)] for number, ids in truths.items()
    }
    ways = [
        (config(), None),
        (config(token_budget=1), None),
        (config(token_budget=3), truths),
        (config(), truths),
        (config(), spoiled),
        (config(kv_tokens=48), spoiled),
    ]
    for way, guesses in ways:
        engine = make_engine(loaded, way, types_pb2.ModelInfo())
        outcomes = generate(engine, messages, guesses)
        for number, drawn in wanted.items():
            assert [token for outcome in outcomes[number] for token in outcome.ids] == truths[number]
            logprobs = [one for outcome in outcomes[number] for one in outcome.logprobs]
            for one, expected in zip(logprobs, drawn, strict=True):
                assert one.logprob == pytest.approx(expected.logprob, abs=1e-9)
                assert one.rank == expected.rank
                assert [top.id for top in one.top] == [token for token, _ in expected.top]
        assert engine.load().kv_blocks_used == 0
        if guesses is truths and way.engine.token_budget > 3:
            assert max(outcome.accepted for outcome in outcomes[0]) == 4


def test_a_deterministic_bfloat16_model_gives_the_same_ids_in_any_company(tmp_path):
    path = toy.make_toy(tmp_path, tokenizer=False)
    loaded = load_model(path, dtype="bfloat16", deterministic=True)
    messages = [opening(i, [i, 50, 60 + i], mode=AR, max_tokens=10) for i in range(4)]
    alone = {}
    for message in messages:
        alone |= generate(make_engine(loaded, config(), types_pb2.ModelInfo()), [message])
    together = generate(make_engine(loaded, config(token_budget=5), types_pb2.ModelInfo()), messages)
    for number, outcomes in together.items():
        ids = [token for outcome in outcomes for token in outcome.ids]
        assert ids == [token for outcome in alone[number] for token in outcome.ids]


def test_loading_limits_the_context_to_the_models(loaded):
    wide = dataclasses.replace(config(), engine=EngineConfig(max_context=10**6))
    assert make_engine(loaded, wide, types_pb2.ModelInfo()).limits.context == loaded.config.max_position
