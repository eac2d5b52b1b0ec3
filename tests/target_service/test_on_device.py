"""A target whose device draws by itself reports what the target that asks the host reports."""

import pytest
import torch

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.config import EngineConfig, TargetConfig
from ssd.models.decoder import CausalLM
from ssd.models.loader import LoadedModel, load_model
from target_service.engine import TargetEngine
from target_service.main import make_engine
from tests import toy
from tests.ssd.runtime.standin import fast_engine
from tests.target_service.rig import SSD, opening
from tests.target_service.test_toy_model import generate

CONFIG = TargetConfig(engine=EngineConfig(block_size=4, kv_tokens=1024))
SAMPLINGS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 11},
    {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 12},
    {"temperature": 1.2, "seed": (1 << 64) - 1},
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(toy.make_toy(tmp_path_factory.mktemp("toy"), "qwen2", tokenizer=False), dtype="float64")


def device_engine(loaded: LoadedModel, config: TargetConfig = CONFIG) -> TargetEngine:
    blocks = config.engine.kv_tokens // config.engine.block_size
    made = fast_engine(loaded, blocks=blocks, block_size=config.engine.block_size, queries=17, chain=1)
    return TargetEngine(made.runner, made.pool, loaded.config, config, types_pb2.ModelInfo())


def both(loaded: LoadedModel, messages, guesses=None) -> dict[int, list]:
    host = generate(make_engine(loaded, CONFIG, types_pb2.ModelInfo()), messages, guesses)
    device = generate(device_engine(loaded), messages, guesses)
    for outcomes in (*host.values(), *device.values()):
        for one in (logprob for outcome in outcomes for logprob in outcome.logprobs):
            # Padding may round the last bit of a logit in another way.
            one.logprob = round(one.logprob, 9)
            for top in one.top:
                top.logprob = round(top.logprob, 9)
    assert device == host
    return host


def test_rows_of_all_kinds_share_steps(loaded):
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9, 99], [200], list(range(40))]
    messages = [
        opening(i, ids, sampling=sampling, max_tokens=14, mode=SSD, logprobs=2 if i == 3 else -1)
        for i, (ids, sampling) in enumerate(zip(prompts, SAMPLINGS, strict=True))
    ]
    plain = both(loaded, messages)
    truths = {number: [token for one in outcomes for token in one.ids] for number, outcomes in plain.items()}
    assert any(one.accepted == 4 for one in both(loaded, messages, truths)[0])
    spoiled = {number: [t if i % 5 else 3 for i, t in enumerate(ids)] for number, ids in truths.items()}
    for number, outcomes in both(loaded, messages, spoiled).items():
        assert [token for one in outcomes for token in one.ids] == truths[number]


def test_forbidden_ids_are_forbidden_on_the_device_too(loaded):
    stops = {"ignore_eos": False, "stop_ids": range(300), "min_tokens": 3}
    outcomes = both(loaded, [opening(1, [5, 6, 7], sampling={"temperature": 0.8}, max_tokens=9, **stops)])
    assert sum(len(one.ids) for one in outcomes[1]) >= 3


def test_a_sequence_without_a_token_to_draw_is_refused_alone(loaded, monkeypatch):
    engine = device_engine(loaded)
    messages = [opening(i, [5, 6, 7 + i], sampling={"temperature": 0.8}, mode=SSD) for i in range(2)]
    compute, calls = CausalLM.logits, []

    def broken(model, hidden):
        logits = compute(model, hidden)
        calls.append(len(logits))
        # The second row's last token once both are decoding.
        if len(calls) == 4:
            logits[1] = torch.nan
        return logits

    monkeypatch.setattr(CausalLM, "logits", broken)
    engine.handle(1, target_pb2.TargetServiceServeRequest(opens=messages))
    refused, now = [], 0.0
    while (wake_at := engine.wake_at(now)) is not None:
        now = max(now, wake_at)
        for response in engine.step(now).values():
            refused += [one.sequence for one in response.refused]
    assert refused == [1]
