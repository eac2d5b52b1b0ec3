"""`ssd generate`: one answer."""

import json
import sys
from typing import Annotated

import typer

from ssd.cli import options as opt
from ssd.cli.client import Client
from ssd.cli.errors import BAD_INPUT, INTERRUPTED, CliError
from ssd.cli.report import as_json, metrics_line
from ssd.cli.request import GenerateOptions, build_request


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    address: opt.Address = opt.DEFAULT_ADDRESS,
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
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    seed: opt.Seed = None,
    max_tokens: opt.MaxTokens = None,
    min_tokens: opt.MinTokens = None,
    stop: opt.Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Do not end at the model's own end tokens.")] = False,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Render the prompt as a user's turn, or send it as it is.")
    ] = True,
    as_one_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end instead of a stream.")
    ] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Print speed and acceptance to standard error afterwards.")
    ] = False,
    timeout: opt.Timeout = opt.DEFAULT_TIMEOUT_S,
) -> None:
    """Generate from a prompt and stream the text."""
    text = sys.stdin.read() if prompt == "-" else prompt
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
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    if chat and not text:
        raise CliError("the prompt is empty", BAD_INPUT)
    request = build_request([("user", text)] if chat else text, chosen)
    try:
        with Client(address, timeout) as client:
            answer = client.generate(request, (lambda _: None) if as_one_json else show)
    except KeyboardInterrupt:
        print()
        raise typer.Exit(INTERRUPTED) from None
    print(json.dumps(as_json(answer), ensure_ascii=False) if as_one_json else "")
    if metrics:
        print(metrics_line(answer), file=sys.stderr)


def show(text: str) -> None:
    """Write a piece of streamed text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
