"""`ssd demo`: the whole system at work in two minutes, with proof that speculation does not change the output."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import ssd.cli.stack as stacks
from protos.ssd.v1 import inference_pb2, types_pb2
from ssd.cli.client import Answer, Client
from ssd.cli.errors import FAILED, INTERRUPTED
from ssd.cli.generate import show
from ssd.cli.options import DEFAULT_TIMEOUT_S, Deterministic, DraftModel, Dtype, TargetModel, Threads
from ssd.cli.report import Totals, table
from ssd.cli.request import GenerateOptions, build_request
from ssd.cli.running import run_folder, running
from ssd.cli.signals import StopRequested, stop_on_signals
from ssd.cli.stack import Stack, StackOptions
from ssd.config import MODES

# Code, arithmetic and general knowledge: a draft is not equally good at each.
PROMPTS = (
    "Write a Python function that reverses a string.",
    "Tom has 12 apples and buys 3 bags with 5 apples each. How many apples does he have now?",
    "Name three planets and one fact about each.",
)
SEED = 1234
# Small, because a CPU core drafts only a few times faster than another one verifies: longer proposals and wider tables
# would not be ready in time.
K = 2
FAN_OUT = 2


@dataclass(frozen=True)
class Setting:
    """How the tokens of one comparison are drawn."""

    name: str
    temperature: float
    seed: int


SETTINGS = (Setting("0", 0.0, SEED), Setting("0.8", 0.8, SEED))
Results = dict[tuple[str, str], list[Answer]]
"""(setting name, mode) → one answer for each prompt."""


def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of each answer, tokens.")] = 48,
    target_model: TargetModel = None,
    draft_model: DraftModel = None,
    dtype: Dtype = None,
    deterministic: Deterministic = None,
    threads: Threads = None,
    k: Annotated[int, typer.Option("--k", help="Proposal length.")] = K,
    fan_out: Annotated[int, typer.Option(help="Tokens anticipated for each acceptance length.")] = FAN_OUT,
    log_dir: Annotated[Path | None, typer.Option(help="Keep configuration and logs here.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Copy the services' logs to standard error.")
    ] = False,
) -> None:
    """Start everything on this machine, answer three prompts in every mode, compare the ids, and stop."""
    options = StackOptions(
        port=0,
        target_model=target_model,
        draft_model=draft_model,
        dtype=dtype,
        deterministic=deterministic,
        threads=threads,
        k=k,
        fan_out=fan_out,
    )
    stack = stacks.build(options)
    print(f"Starting target, draft and router on the CPU: {describe(stack)}", flush=True)
    try:
        with (
            stop_on_signals(),
            run_folder(log_dir) as folder,
            running(stack, folder, verbose=verbose) as run,
            Client(stack.router.listen, DEFAULT_TIMEOUT_S) as client,
        ):
            print(f"\n{arithmetic(client.model())}")
            stream_answers(client, max_tokens)
            run.supervisor.check_alive()
            results = compare_modes(client, max_tokens)
            run.supervisor.check_alive()
    except StopRequested:
        print("\nstopped")
        raise typer.Exit(INTERRUPTED) from None
    print(f"\n{summary(results)}\n")
    differing = [setting.name for setting in SETTINGS if not report_identity(results, setting)]
    print("All services have stopped.")
    if differing:
        raise typer.Exit(FAILED)


def describe(stack: Stack) -> str:
    """Models, threads and speculation in one line."""
    draft = f", draft {stack.draft.model}" if stack.draft else ""
    speculation = f"K = {stack.router.k}, F = {stack.router.fan_out}"
    return f"target {stack.target.model}{draft}, {stack.target.engine.threads} thread(s) each, {speculation}"


def arithmetic(target: types_pb2.ModelInfo) -> str:
    """What the identity below is stated for."""
    kind = "deterministic: no result depends on the batch around it" if target.deterministic else "as torch computes it"
    return f"The target computes in {target.dtype}, {kind}."


def stream_answers(client: Client, max_tokens: int) -> None:
    """Show each answer as it comes, by speculative speculative decoding at temperature 0."""
    for prompt in PROMPTS:
        print(f"\n> {prompt}")
        client.generate(_request(prompt, "ssd", SETTINGS[0], max_tokens), show)
        print(flush=True)


def compare_modes(client: Client, max_tokens: int) -> Results:
    """Every prompt in every mode and setting, one at a time."""
    results: Results = {}
    print(f"\nEach prompt again in each mode, {max_tokens} tokens at most: ", end="", flush=True)
    for setting, mode in _cases():
        results[setting.name, mode] = [client.generate(_request(p, mode, setting, max_tokens)) for p in PROMPTS]
        show(".")
    print()
    return results


def _cases() -> Iterator[tuple[Setting, str]]:
    return ((setting, mode) for setting in SETTINGS for mode in MODES)


def _request(prompt: str, mode: str, setting: Setting, max_tokens: int) -> inference_pb2.GenerateRequest:
    options = GenerateOptions(mode=mode, temperature=setting.temperature, seed=setting.seed, max_tokens=max_tokens)
    return build_request([("user", prompt)], options)


def summary(results: Results) -> str:
    """The table; each row is the sum over the prompts."""
    rows = []
    for setting, mode in _cases():
        totals = Totals.of(results[setting.name, mode])
        counts = (str(totals.tokens), str(totals.rounds), totals.acceptance, totals.hit_rate, totals.tokens_per_second)
        rows.append((mode.upper(), setting.name, *counts))
    return table(("mode", "temperature", "tokens", "rounds", "acceptance", "hit rate", "tok/s"), rows)


def report_identity(results: Results, setting: Setting) -> bool:
    """Say whether all modes gave the same ids for every prompt."""
    by_prompt = zip(*(results[setting.name, mode] for mode in MODES), strict=True)
    same = [all(answer.ids == answers[0].ids for answer in answers) for answers in by_prompt]
    seed = f" with seed {setting.seed}" if setting.temperature else ""
    where = f"at temperature {setting.name}{seed}"
    if all(same):
        print(f"Token ids {where}: identical in AR, SD and SSD for {len(same)} of {len(same)} prompts.")
        return True
    print(f"Token ids {where}: DIFFERENT for {same.count(False)} of {len(same)} prompts.", file=sys.stderr)
    return False
