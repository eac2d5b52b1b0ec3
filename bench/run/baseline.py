"""Plain transformers on the same prompts, in a process of its own so that its memory is free before and after.

    python -m bench.run.baseline JOB.json RESULT.json

Padded on the left to one batch, as its users do it; greedy, or sampled with transformers' own noise, so ids are not
compared. Needs a Hugging Face directory with weights.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.inflate.recipe import RECIPE
from bench.run.load import Workload
from bench.run.report import Baseline
from ssd.models.builtin import resolve_model
from ssd.models.errors import ModelError

WITHIN_S = 3600.0
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Job:
    """What to run. contents: a text, or a list of [role, text] messages, for each request of a batch of any size."""

    model: str
    device: str
    dtype: str
    threads: int
    batches: tuple[int, ...]
    temperatures: tuple[float, ...]
    repeats: int
    max_tokens: int
    ignore_eos: bool
    seed: int
    contents: tuple[Any, ...]


def measure(
    model: str, device: str, dtype: str, threads: int, workload: Workload, grid: Sequence[Sequence[Any]], repeats: int
) -> Baseline:
    """Run it; grid: (batch sizes, temperatures). Nothing is raised: what goes wrong is why it was skipped."""
    try:
        directory = resolve_model(model)
    except ModelError as error:
        return Baseline(skipped=str(error))
    if (directory / RECIPE).is_file():
        return Baseline(skipped=f"{directory} holds a recipe and no weights that transformers could read")
    batches, temperatures = grid
    job = Job(
        str(directory),
        device,
        dtype,
        threads,
        tuple(batches),
        tuple(temperatures),
        repeats,
        workload.max_tokens,
        workload.ignore_eos,
        workload.seed,
        tuple(workload.content(number) for number in range(workload.requests(max(batches)))),
    )
    with tempfile.TemporaryDirectory(prefix="ssd-") as folder:
        asked, answered = Path(folder) / "job.json", Path(folder) / "result.json"
        asked.write_text(json.dumps(dataclasses.asdict(job)))
        command = [sys.executable, "-m", "bench.run.baseline", str(asked), str(answered)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            return Baseline(skipped=f"it took longer than {WITHIN_S:.0f} s")
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"it ended with status {done.returncode}"]
            return Baseline(skipped=last[0])
        return Baseline(rows=tuple(json.loads(answered.read_text())))


def run(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Every batch size at every temperature, repeats interleaved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if job["threads"]:
        torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    dtype = getattr(torch, job["dtype"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype).to(job["device"]).eval()
    texts: list[Any] = [
        content
        if isinstance(content, str)
        else tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in content], tokenize=False, add_generation_prompt=True
        )
        for content in job["contents"]
    ]
    special = isinstance(job["contents"][0], str)

    def generate(batch: list[str], temperature: float, tokens: int, seed: int) -> int:
        """Tokens generated, padding after an end left out."""
        inputs = tokenizer(batch, return_tensors="pt", padding=True, add_special_tokens=special).to(job["device"])
        torch.manual_seed(seed)
        how: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature > 0:
            how |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        if job["ignore_eos"]:
            how |= {"min_new_tokens": tokens}
        out = model.generate(**inputs, max_new_tokens=tokens, pad_token_id=tokenizer.pad_token_id, **how)
        new = out[:, inputs["input_ids"].shape[1] :]
        if job["ignore_eos"]:
            return int(new.numel())
        ends = (new == tokenizer.eos_token_id).int().cumsum(1)
        return int((ends - (new == tokenizer.eos_token_id).int() == 0).sum())

    cases = [(batch, temperature) for batch in job["batches"] for temperature in job["temperatures"]]
    speeds: dict[tuple[int, float], list[dict[str, Any]]] = {case: [] for case in cases}
    with torch.inference_mode():
        for batch, temperature in cases:
            generate(texts[:batch], temperature, WARM_UP_TOKENS, job["seed"])
        for _ in range(job["repeats"]):
            for batch, temperature in cases:
                begun, tokens = time.monotonic(), 0
                for start in range(0, len(texts) // batch * batch, batch):
                    part = texts[start : start + batch]
                    tokens += generate(part, temperature, job["max_tokens"], job["seed"] + start)
                speeds[batch, temperature].append({"tokens": tokens, "seconds": time.monotonic() - begun})
    return [
        {
            "batch": batch,
            "temperature": temperature,
            "samples": samples,
            "tok_s": statistics.median(one["tokens"] / one["seconds"] for one in samples),
        }
        for (batch, temperature), samples in speeds.items()
    ]


def main() -> None:
    asked, answered = map(Path, sys.argv[1:3])
    answered.write_text(json.dumps(run(json.loads(asked.read_text()))))


if __name__ == "__main__":
    main()
