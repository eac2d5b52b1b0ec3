"""Acceptance, hit rate and tokens a round of a real pair, over temperature, verification and fan-out rule.

    python -m bench.acceptance --device cuda --jobs 8 --json acceptance.json

Prompts are the project's own (bench/prompts), rendered as chat turns. One row of the table is one setting; hits are
split into those after a refused token (k < K) and those after full acceptance (k = K).
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import torch

from bench import lockstep
from draft_service.engine import DraftEngine
from draft_service.main import Sources
from protos.ssd.v1 import inference_pb2, target_pb2, types_pb2
from router.plan import Plan
from router.tokenization import load_tokenization
from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.models.builtin import resolve_model
from ssd.models.loader import LoadedModel, load_model
from ssd.rpc.engine_process import LoadProgress
from ssd.runtime.assembly import make_runner
from target_service.engine import TargetEngine

PROMPTS = Path(__file__).parent / "prompts" / "mixed.jsonl"
K, BUDGET, SEED = 6, 21, 1234
TEMPERATURES = (0.0, 0.7, 1.0, 1.3)
SCALES = (0.75, 0.5, 0.25)
"""Values of Saguaro's C that the best is looked for among, besides 1."""
RULES = ("uniform", "geometric", "measured")


@dataclass
class Counts:
    """What happened in one setting. Rounds without a proposal in flight are left out of acceptance."""

    temperature: float
    verification: str
    scale: float
    rule: str
    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    hits: list[int] = field(default_factory=lambda: [0, 0])  # after a refused token, after full acceptance
    chances: list[int] = field(default_factory=lambda: [0, 0])
    seconds: float = 0.0

    def take(self, outcome: target_pb2.StepOutcome) -> None:
        self.tokens += len(outcome.ids)
        self.rounds += 1
        self.proposed += outcome.proposed
        self.accepted += outcome.accepted
        if outcome.proposed and not outcome.finish:
            kind = int(outcome.accepted == outcome.proposed)
            self.hits[kind] += outcome.hit
            self.chances[kind] += 1

    @property
    def key(self) -> tuple[object, ...]:
        """Which setting this is."""
        return self.temperature, self.verification, self.scale, self.rule

    @property
    def hit_rate(self) -> float:
        return sum(self.hits) / max(1, sum(self.chances))

    def row(self) -> tuple[str, ...]:
        split = [f"{h / c:.3f}" if c else "-" for h, c in zip(self.hits, self.chances, strict=True)]
        name = self.verification if self.verification == "coupled" else f"rejection C={self.scale:g}"
        return (
            f"{self.temperature:g}",
            name,
            self.rule,
            f"{self.accepted / max(1, self.proposed):.3f}",
            f"{self.hit_rate:.3f}",
            *split,
            f"{self.tokens / max(1, self.rounds):.2f}",
            str(self.rounds),
        )


HEADER = ("T", "verification", "fan-out", "acceptance", "hit rate", "hit, k<K", "hit, k=K", "tokens/round", "rounds")


@dataclass(frozen=True)
class Pair:
    """A loaded pair and its prompts as ids."""

    target: LoadedModel
    draft: LoadedModel
    info: types_pb2.ModelInfo
    prompts: list[list[int]]


def load_pair(device: str, dtype: str, target: str, draft: str) -> Pair:
    """Models on `device`, and the prompts in the target's chat template."""
    directory = resolve_model(target)
    sources = Sources.find(DraftConfig(model=draft, target_model=target), LoadProgress())
    big = load_model(directory, dtype=dtype, device=device)
    small = load_model(sources.model, dtype=dtype, device=device, embedding_from=sources.embedding)
    tokenization = load_tokenization(directory)
    asked = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    prompts = [asyncio.run(tokenization.of_chat(_chat(text))) for text in asked]
    info = types_pb2.ModelInfo(vocab_size=big.config.vocab_size, eos_ids=big.config.eos_ids)
    return Pair(big, small, info, prompts)


def _chat(text: str) -> inference_pb2.ChatInput:
    return inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content=text)])


def measure(pair: Pair, counts: Counts, max_tokens: int) -> Counts:
    """All prompts at once in the setting that `counts` names."""
    engine = EngineConfig(kv_tokens=64 * 1024, max_sequences=256, token_budget=4096)
    runner, pool = make_runner(pair.target, engine)
    target = TargetEngine(runner, pool, pair.target.config, TargetConfig(engine=engine), pair.info)
    runner, pool = make_runner(pair.draft, engine)
    draft = DraftEngine(runner, pool, pair.draft.config, DraftConfig(engine=engine), pair.info)
    begun = time.monotonic()
    plans = {number: _plan(ids, counts, max_tokens, number) for number, ids in enumerate(pair.prompts)}
    lockstep.run(target, draft, plans, counts.take)
    counts.seconds = round(time.monotonic() - begun, 1)
    return counts


def _plan(ids: list[int], counts: Counts, max_tokens: int, number: int) -> Plan:
    rules = {
        "uniform": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_UNIFORM, fan_out=BUDGET // (K + 1)),
        "geometric": types_pb2.FanOut(
            rule=types_pb2.FAN_OUT_RULE_GEOMETRIC, budget=BUDGET, acceptance=0.8, exponent=1.0
        ),
        "measured": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_MEASURED, budget=BUDGET),
    }
    coupled = counts.verification == "coupled"
    return Plan(
        prompt=ids,
        sampling=types_pb2.SamplingParameters(temperature=counts.temperature, seed=SEED + number),
        limits=types_pb2.TokenLimits(max_tokens=max_tokens),
        logprobs=-1,
        mode=types_pb2.MODE_SSD,
        k=K,
        fan_out=rules[counts.rule],
        verification=types_pb2.VERIFICATION_COUPLED if coupled else types_pb2.VERIFICATION_REJECTION,
        saguaro_c=counts.scale,
        fallback=types_pb2.FALLBACK_JIT,
    )


def settings(temperatures: Sequence[float] = TEMPERATURES) -> Iterator[Counts]:
    """Every row of the table; candidates for the best C are rows of their own."""
    for temperature in temperatures:
        for rule in RULES:
            yield Counts(temperature, "coupled", 1.0, rule)
            for scale in (1.0, *SCALES):
                # At temperature 0 every law is a point mass and C changes nothing.
                if temperature or scale == 1.0:
                    yield Counts(temperature, "rejection", scale, rule)


def table(results: list[Counts]) -> str:
    """Markdown; of the values of C below 1 only the one with the most tokens a round that hit."""
    rows = [HEADER, tuple("---" for _ in HEADER)]
    for temperature in TEMPERATURES:
        for rule in RULES:
            here = [one for one in results if (one.temperature, one.rule) == (temperature, rule)]
            rows += [one.row() for one in here if one.scale == 1.0]
            scaled = [one for one in here if one.scale < 1.0]
            if scaled:
                rows.append(max(scaled, key=lambda one: one.hit_rate * one.tokens / max(1, one.rounds)).row())
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


@dataclass(frozen=True)
class Job:
    """What a process needs to know to measure a setting."""

    device: str
    dtype: str
    target: str
    draft: str
    max_tokens: int
    prompts: int  # 0 = all
    threads: int  # of torch, in each process; 0 = torch's own choice

    def run(self, counts: Counts) -> Counts:
        """Measure one setting with a pair that is loaded once in each process."""
        pair = _pair_of(self)
        return measure(pair, counts, self.max_tokens)


@cache
def _pair_of(job: Job) -> Pair:
    if job.threads:
        torch.set_num_threads(job.threads)
    pair = load_pair(job.device, job.dtype, job.target, job.draft)
    return Pair(pair.target, pair.draft, pair.info, pair.prompts[: job.prompts or None])


def measured(job: Job, wanted: Sequence[Counts], jobs: int, limit_s: float) -> Iterator[Counts]:
    """Every wanted setting as it is finished; after limit_s seconds those that have not begun are left out."""
    if jobs == 1:
        until = time.monotonic() + limit_s
        yield from (job.run(counts) for counts in wanted if time.monotonic() < until)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(job.run, counts) for counts in wanted]
        try:
            for done in as_completed(waiting, timeout=limit_s):
                yield done.result()
        except TimeoutError:
            pool.shutdown(wait=True, cancel_futures=True)
            yield from (one.result() for one in waiting if one.done() and not one.cancelled())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=0, help="use the first N only; 0 = all")
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a pair of its own")
    parser.add_argument("--threads", type=int, default=0, help="torch threads of each process; 0 = torch's own choice")
    parser.add_argument("--limit-s", type=float, default=1e6, help="begin no further setting after so many seconds")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    job = Job(given.device, given.dtype, given.target, given.draft, given.max_tokens, given.prompts, given.threads)
    wanted = list(settings(given.temperatures))
    results: dict[tuple[object, ...], Counts] = {}
    for counts in measured(job, wanted, given.jobs, given.limit_s):
        if counts.key not in results:
            results[counts.key] = counts
            print("\t".join((*counts.row(), f"{counts.seconds} s")), file=sys.stderr, flush=True)
    if len(results) < len(wanted):
        print("time is up; the table is incomplete", file=sys.stderr)
    rows = [results[counts.key] for counts in wanted if counts.key in results]
    device = torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.processor() or "CPU"
    command = "python -m bench.acceptance " + " ".join(sys.argv[1:])
    facts = {"device": device, "torch": torch.__version__, "dtype": given.dtype, "command": command}
    if given.json:
        given.json.write_text(json.dumps({**facts, "rows": [asdict(one) for one in rows]}, indent=1))
    print(f"{facts}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
