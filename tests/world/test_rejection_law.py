"""Rejection verification from end to end: the draft's own laws, over the wire's messages, leave the target's law."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from bench import lockstep
from draft_service.engine import DraftEngine
from protos.ssd.v1 import types_pb2
from router.plan import Plan, uniform
from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.models.loader import load_model
from ssd.runtime.assembly import make_runner
from ssd.runtime.blocks import BlockTable
from ssd.runtime.runner import RunRow
from ssd.speculation.sampling import SamplingParams, TokenHistory, row_after
from ssd.speculation.sparse_law import filtered_laws
from target_service.engine import TargetEngine
from tests.toy import make_noisy_draft, make_toy

COUNT = 1500
# The first token comes from plain decoding, the second from a just-in-time proposal, the rest from a table's.
TOKENS = 5
COMPARED = 4
PROMPT = [3, 1, 4]
SAMPLING = {"temperature": 1.0, "top_k": 2}
SIZES = EngineConfig(kv_tokens=400_000, max_sequences=2 * COUNT, token_budget=20 * COUNT, block_size=4)


class Models:
    """Target and draft in float32, and the law of every continuation."""

    def __init__(self, folder: Path) -> None:
        target = make_toy(folder / "toy", "llama", eos=300)
        self.target = load_model(target, dtype="float32")
        self.draft = load_model(make_noisy_draft(target, folder / "draft", 0.1), dtype="float32")
        self.info = types_pb2.ModelInfo(vocab_size=self.target.config.vocab_size, eos_ids=self.target.config.eos_ids)

    def run(self, **options: object) -> tuple[Counter[tuple[int, ...]], int, int]:
        """How often each continuation came out, hits, and draft tokens accepted."""
        runner, pool = make_runner(self.target, SIZES)
        target = TargetEngine(runner, pool, self.target.config, TargetConfig(engine=SIZES), self.info)
        runner, pool = make_runner(self.draft, SIZES)
        draft = DraftEngine(runner, pool, self.draft.config, DraftConfig(engine=SIZES), self.info)
        plans = {seed: self.plan(seed, **options) for seed in range(COUNT)}
        hits = accepted = 0

        def count(outcome: object) -> None:
            nonlocal hits, accepted
            hits += outcome.hit  # type: ignore[attr-defined]
            accepted += outcome.accepted  # type: ignore[attr-defined]

        output = lockstep.run(target, draft, plans, count)
        return Counter(tuple(ids[:COMPARED]) for ids in output.values()), hits, accepted

    def plan(self, seed: int, **options: object) -> Plan:
        return Plan(
            prompt=PROMPT,
            sampling=types_pb2.SamplingParameters(**SAMPLING, seed=seed),
            limits=types_pb2.TokenLimits(max_tokens=TOKENS, ignore_eos=True),
            logprobs=-1,
            mode=types_pb2.MODE_SSD,
            k=2,
            fan_out=uniform(2),
            verification=types_pb2.VERIFICATION_REJECTION,
            **options,  # type: ignore[arg-type]
        )

    def chances(self) -> dict[tuple[int, ...], float]:
        """The target's law of the first COMPARED tokens."""
        known: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(COMPARED):
            laws = self._laws(list(known))
            known = {
                (*text, token): chance * float(one[token])
                for (text, chance), one in zip(known.items(), laws, strict=True)
                for token in one.nonzero()[:, 0].tolist()
            }
        return known

    def _laws(self, texts: list[tuple[int, ...]]) -> torch.Tensor:
        runner, pool = make_runner(self.target, EngineConfig(kv_tokens=4096, block_size=16))
        rows = []
        for text in texts:
            table = BlockTable(pool)
            table.ensure(len(PROMPT) + len(text))
            rows.append(RunRow([*PROMPT, *text], 0, table))
        histories = [row_after(SamplingParams(**SAMPLING), TokenHistory((*PROMPT, *text))) for text in texts]
        return filtered_laws(runner.run(rows), histories)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("rejection"))


def distance(seen: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """Total variation between what was seen and the law."""
    assert set(seen) <= set(chances)
    return sum(abs(seen[text] / COUNT - chance) for text, chance in chances.items()) / 2


def noise_floor(chances: dict[tuple[int, ...], float]) -> float:
    """Expected distance of COUNT draws from their own law."""
    generator = torch.Generator().manual_seed(0)
    texts = list(chances)
    weights = torch.tensor([chances[text] for text in texts], dtype=torch.float64)
    draws = torch.multinomial(weights, 20 * COUNT, replacement=True, generator=generator).split(COUNT)
    distances = [distance(Counter(texts[i] for i in part.tolist()), chances) for part in draws]
    return sum(distances) / len(distances)


@pytest.mark.parametrize("scale", [1.0, pytest.param(0.2, marks=pytest.mark.slow)])
def test_output_follows_the_targets_law(models: Models, scale: float) -> None:
    chances = models.chances()
    seen, hits, accepted = models.run(saguaro_c=scale)
    assert hits > 0.2 * COUNT and accepted > 0.2 * COUNT, (hits, accepted)
    assert distance(seen, chances) < 1.6 * noise_floor(chances)


def test_laws_that_are_not_the_drafts_own_are_noticed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    import draft_service.drawing as drawing

    right = drawing.draw_from_sparse_laws

    def likeliest(laws, *others):
        drawn = right(laws, *others)
        return [one.ids[one.weights.index(max(one.weights))] for one, _ in zip(laws, drawn, strict=True)]

    monkeypatch.setattr(drawing, "draw_from_sparse_laws", likeliest)
    chances = models.chances()
    seen, _, _ = models.run()
    assert distance(seen, chances) > 1.6 * noise_floor(chances)
