"""Greedy ids are those of transformers, token for token, in float32."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ssd.models.builtin import INSTALL, PACKAGE, resolve_model
from tests.ssd.engine import Engine, random_ids
from tests.toy import LLAMA3_ROPE, make_toy

TEXTS = [
    "The capital of France is Paris, and the capital of Italy is Rome. The capital of Spain, as everybody knows, is",
    'def reverse(text):\n    """Return the text in reverse order, last character first."""\n    return text',
    "Once upon a time there was a small robot that lived in a lighthouse by the sea. Every evening it would",
    "To make a cup of tea, first boil the water. Then put the leaves into the pot, pour the water over them and",
    "Natalia sold 48 clips to her friends in April, and then she sold half as many clips in May. How many did she",
]


def transformers_greedy(directory, prompts, count):
    """Continuations by transformers; prompts of one length run as one batch, so that nothing is padded."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    result = [None] * len(prompts)
    for length in sorted({len(prompt) for prompt in prompts}):
        members = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        batch = torch.tensor([prompts[i] for i in members])
        out = model.generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=count, pad_token_id=0
        )
        for i, row in zip(members, out.tolist(), strict=True):
            result[i] = row[length:]
    return result


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"rope": LLAMA3_ROPE}),
        ("llama", {"tie": True, "rope": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_tiny_models_continue_20_prompts_by_128_tokens_as_transformers_does(tmp_path, family, options):
    path = make_toy(tmp_path / family, family, seed=11, **options)
    prompts = [random_ids((3, 18, 40, 75)[i % 4], seed=i) for i in range(20)]
    engine = Engine.load(path, dtype="float32", blocks=400, block_size=16)
    assert engine.generate(prompts, 128, chunk=24) == transformers_greedy(path, prompts, 128)
    engine.pool.check([])
    assert engine.pool.in_use == 0


@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"SmolLM2 is not installed: {INSTALL}")
def test_smollm2_continues_5_prompts_by_64_tokens_as_transformers_does():
    directory = resolve_model("smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompts = [tokenizer(text)["input_ids"][:20] for text in TEXTS]
    assert {len(prompt) for prompt in prompts} == {20}
    engine = Engine.load(directory, dtype="float32")
    assert engine.generate(prompts, 64) == transformers_greedy(directory, prompts, 64)
