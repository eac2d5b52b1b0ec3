"""The first invariant: AR, SD and SSD give the same output, whatever the draft, the company, the room and the network.

Everything runs in float64, where no two ways to compute a logit differ enough to turn a draw.
"""

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.tokenizer import load_tokenizer
from tests.world import build
from tests.world.cases import AR, BLOCK, SD, SSD, Case, Request, Settings, cases
from tests.world.network import CALM, Chaos
from tests.world.world import Result, World

CASES_PER_FAMILY = 100
CONTEXT = 1024


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build.Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def tokenizer(models):
    models.target("llama")
    return load_tokenizer(models.folder / "llama-0.0")


def blocks_for(request: Request) -> int:
    """KV blocks that the request takes at its longest."""
    return math.ceil((len(request.prompt) + request.limits.max_tokens) / BLOCK)


def alone(models, tokenizer, case: Case, request: Request) -> Result:
    """The reference: plain decoding, nobody else there, all prompt in one chunk."""
    config = TargetConfig(engine=EngineConfig(block_size=BLOCK, kv_tokens=CONTEXT, token_budget=CONTEXT))
    target, pool = build.target_engine(models.target(case.family), config)
    world = World(target, pool, None, None, tokenizer, random.Random(0))
    world.submit(0, request.plan(AR), request.stops)
    result = world.run()[0]
    world.settle()
    return result


def together(models, tokenizer, case: Case, mode, setup: Settings, chaos: Chaos) -> dict[int, Result]:
    """All requests of the case in one system, in one mode."""
    room = (max(map(blocks_for, case.requests)) + setup.spare_blocks) * BLOCK
    engine = EngineConfig(block_size=BLOCK, kv_tokens=room, token_budget=setup.token_budget)
    target, target_pool = build.target_engine(models.target(case.family), TargetConfig(engine=engine))
    engine = EngineConfig(block_size=BLOCK, kv_tokens=setup.draft_blocks * BLOCK, token_budget=setup.token_budget)
    draft, draft_pool = build.draft_engine(models.draft(case.family, case.noise), DraftConfig(engine=engine))
    rng = random.Random(case.seed)
    world = World(target, target_pool, draft, draft_pool, tokenizer, rng, chaos, setup.draft_step_s)
    for number, request in enumerate(case.requests):
        world.submit(number, request.plan(mode), request.stops)
        world.advance(setup.arrivals[number])
    results = world.run()
    world.settle()
    return results


def assert_same(result: Result, reference: Result) -> None:
    """Ids, text, logprobs, finish and counted tokens."""
    assert result.failure == reference.failure == ""
    assert result.ids == reference.ids
    assert result.text == reference.text
    assert result.finish == reference.finish
    assert result.usage is not None and reference.usage is not None
    assert result.usage.completion_tokens == reference.usage.completion_tokens == len(result.ids)
    assert result.usage.prompt_tokens == reference.usage.prompt_tokens
    assert len(result.logprobs) == len(reference.logprobs)
    for mine, theirs in zip(result.logprobs, reference.logprobs, strict=True):
        assert (mine.id, mine.rank) == (theirs.id, theirs.rank)
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-9)
        assert [top.id for top in mine.top] == [top.id for top in theirs.top]
        assert [top.logprob for top in mine.top] == pytest.approx([top.logprob for top in theirs.top], abs=1e-9)


@settings(
    max_examples=CASES_PER_FAMILY,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_ar_sd_and_ssd_give_the_same_output(models, tokenizer, family, data):
    case = data.draw(cases(family))
    references = [alone(models, tokenizer, case, request) for request in case.requests]
    for mode, setup, chaos in zip((SD, SSD, SSD), case.settings, (CALM, CALM, case.chaos), strict=True):
        results = together(models, tokenizer, case, mode, setup, chaos)
        for number, reference in enumerate(references):
            assert_same(results[number], reference)
