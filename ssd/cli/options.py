"""Command-line options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with the tables [target], [draft], [router].")
]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
Deterministic = Annotated[
    bool | None,
    typer.Option(
        "--deterministic/--no-deterministic",
        help="Results that do not depend on batch composition, bit for bit; slower. Default: in 16 bits on the CPU.",
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="torch threads of each model process; default: half of the cores on a CPU.")
]
Tp = Annotated[
    int | None, typer.Option("--tp", help="GPUs (on a CPU: processes) that share the model; 1 to 8, of a draft 1 or 2.")
]
DefaultMode = Annotated[str | None, typer.Option("--mode", help="ar, sd, ssd or auto, for requests that name none.")]
DefaultK = Annotated[int | None, typer.Option("--k", help="Proposal length of requests that name none.")]
DefaultFanOut = Annotated[int | None, typer.Option("--fan-out", help="Fan-out of requests that name none.")]
DefaultVerification = Annotated[
    str | None, typer.Option("--verification", help="coupled or rejection, for requests that name none.")
]
DefaultSaguaroC = Annotated[
    float | None, typer.Option("--saguaro-c", help="Rejection: C of requests that name none, 0 to 1.")
]
DefaultFanOutRule = Annotated[
    str | None, typer.Option("--fan-out-rule", help="uniform, geometric or measured, for requests that name none.")
]
DefaultBudget = Annotated[
    int | None, typer.Option("--budget", help="Branches of a table (geometric, measured) of requests that name none.")
]
DefaultFallback = Annotated[
    str | None, typer.Option("--fallback", help="auto, jit, ngram or none, for requests that name none.")
]
MetricsListen = Annotated[
    str | None, typer.Option("--metrics-listen", help="host:port of Prometheus metrics over HTTP; default: none.")
]
Trace = Annotated[Path | None, typer.Option(help="Timeline for chrome://tracing; see `ssd bench trace merge`.")]
TargetModel = Annotated[str | None, typer.Option(help="A built-in name, a Hugging Face directory or a GGUF file.")]
DraftModel = Annotated[str | None, typer.Option(help="The draft: a built-in name or a directory.")]

Address = Annotated[str, typer.Option(envvar="SSD_ADDRESS", help="host:port of the router.")]
Mode = Annotated[
    str | None,
    typer.Option(
        help="ar, sd, ssd, or auto: whichever is fastest now. With coupled verification the ids are the same in each."
    ),
]
K = Annotated[int | None, typer.Option("--k", help="Proposal length.")]
FanOut = Annotated[int | None, typer.Option(help="Tokens anticipated for each acceptance length (ssd).")]
FanOutRule = Annotated[
    str | None,
    typer.Option(help="How tables are shared out: uniform (--fan-out), geometric or measured (--budget)."),
]
Budget = Annotated[int | None, typer.Option(help="Branches of one table; alone it means the rule measured.")]
Verification = Annotated[
    str | None, typer.Option(help="coupled, or rejection: exact in distribution, but the ids depend on the draft.")
]
SaguaroC = Annotated[float | None, typer.Option("--saguaro-c", help="Rejection: C of the scaled law, 0 to 1.")]
Fallback = Annotated[
    str | None, typer.Option(help="After a miss: auto, jit (ask the draft), ngram (prompt lookup) or none.")
]
Drafts = Annotated[int | None, typer.Option(help="Drafts that share this sequence's fan-out, 1 to 4.")]
Temperature = Annotated[float | None, typer.Option(help="0 takes the most likely token; the default is 1.")]
TopP = Annotated[float | None, typer.Option(help="Nucleus size, (0, 1].")]
TopK = Annotated[int | None, typer.Option(help="Number of tokens kept; 0 = all.")]
MinP = Annotated[float | None, typer.Option(help="Keep tokens with p >= min_p times the largest p.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="0.01 to 10, over prompt and output; 1 = none.")]
PresencePenalty = Annotated[float | None, typer.Option(help="-2 to 2, over the output.")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="-2 to 2, over the output, for each occurrence.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same tokens, in every mode.")]
MaxTokens = Annotated[int | None, typer.Option(help="Longest output, tokens.")]
MinTokens = Annotated[int | None, typer.Option(help="No end before this many tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be given several times.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Deadline of one answer, seconds.")]

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT_S = 600.0


def switch(given: bool | None) -> str | None:
    """A three-way setting from a flag that may be absent."""
    return None if given is None else ("on" if given else "off")
