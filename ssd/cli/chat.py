"""`ssd chat`: a conversation in the terminal."""

import contextlib
import sys
from typing import Annotated

import typer

from ssd.cli import options as opt
from ssd.cli.client import Client
from ssd.cli.errors import FAILED, CliError
from ssd.cli.generate import show
from ssd.cli.report import metrics_line
from ssd.cli.request import GenerateOptions, build_request


def chat(
    address: opt.Address = opt.DEFAULT_ADDRESS,
    system: Annotated[str | None, typer.Option(help="A system message before the conversation.")] = None,
    mode: opt.Mode = None,
    k: opt.K = None,
    fan_out: opt.FanOut = None,
    fan_out_rule: opt.FanOutRule = None,
    budget: opt.Budget = None,
    verification: opt.Verification = None,
    saguaro_c: opt.SaguaroC = None,
    fallback: opt.Fallback = None,
    drafts: opt.Drafts = None,
    temperature: opt.Temperature = None,
    top_p: opt.TopP = None,
    top_k: opt.TopK = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    seed: opt.Seed = None,
    max_tokens: opt.MaxTokens = None,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics", help="After each answer: tokens, tok/s, time to the first token, acceptance, hit rate."
        ),
    ] = False,
    timeout: opt.Timeout = opt.DEFAULT_TIMEOUT_S,
) -> None:
    """Talk to the model. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    chosen = GenerateOptions(
        mode=mode,
        k=k,
        fan_out=fan_out,
        fan_out_rule=fan_out_rule,
        budget=budget,
        verification=verification,
        saguaro_c=saguaro_c,
        fallback=fallback,
        drafts=drafts,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_tokens=max_tokens,
    )
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - its import gives input() line editing
    with Client(address, timeout) as client:
        conversation = Conversation(client, chosen, system, metrics)
        conversation.run()
    if conversation.failed and not sys.stdin.isatty():
        # A script that pipes its lines in sees only the status.
        raise typer.Exit(FAILED)


class Conversation:
    """The turns so far, and the loop that adds to them. `failed`: some turn got no answer."""

    def __init__(self, client: Client, options: GenerateOptions, system: str | None, metrics: bool) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self.failed = False
        self.messages: list[tuple[str, str]] = [("system", system)] if system else []

    def run(self) -> None:
        """Ask and answer until the input ends."""
        while (line := self._ask()) is not None:
            if line.strip():
                self._answer(line)

    def _ask(self) -> str | None:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return None
        except KeyboardInterrupt:
            print("\n(Ctrl-D ends the conversation)")
            return ""

    def _answer(self, line: str) -> None:
        said: list[str] = []

        def hear(text: str) -> None:
            said.append(text)
            show(text)

        turn = ("user", line)
        try:
            answer = self._client.generate(build_request([*self.messages, turn], self._options), hear)
        except KeyboardInterrupt:
            print(" (stopped)")
        except CliError as error:
            # The conversation outlives a refused turn; what was said before an error is not kept as the model's word.
            print(f"error: {error.message}", file=sys.stderr)
            self.failed = True
            return
        else:
            print()
            if self._metrics:
                print(metrics_line(answer))
        self.messages += [turn, ("assistant", "".join(said))]
