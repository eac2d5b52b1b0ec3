"""`ssd bench`: measuring. Without a verb it is `ssd bench run`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ssd.cli.bench_inflate import inflate
from ssd.cli.bench_run import datasets, run
from ssd.cli.errors import BAD_INPUT, CliError
from ssd.telemetry.trace import PartError, merge, parts_of

DEFAULT = "run"


class DefaultVerb(TyperGroup):
    """Takes options without a verb for those of the default one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names and args[0][:1] == "-"):
            args = [DEFAULT, *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


app = typer.Typer(
    name="bench",
    cls=DefaultVerb,
    help="Measure: the whole system (run, the default), its parts, and what it takes to be believed.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run)
app.command("datasets")(datasets)
app.command("inflate")(inflate)

trace = typer.Typer(
    name="trace",
    help="Timelines that services wrote.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(trace)

# Everything behind the verb belongs to the program, its --help too.
_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command("kernels", context_settings=_PASS_ON, add_help_option=False)
def kernels(ctx: typer.Context) -> None:
    """Time the kernels against their floors (needs a GPU)."""
    _hand_on("kernels", ctx)


@app.command("step", context_settings=_PASS_ON, add_help_option=False)
def step(ctx: typer.Context) -> None:
    """Time whole steps of target and draft against their floors."""
    _hand_on("step", ctx)


@app.command("acceptance", context_settings=_PASS_ON, add_help_option=False)
def acceptance(ctx: typer.Context) -> None:
    """Acceptance and hit rate of a pair, over fan-out rule and temperature, without clocks."""
    _hand_on("acceptance", ctx)


@trace.command("merge")
def merge_parts(
    file: Annotated[Path, typer.Argument(help="What --trace named; its parts lie beside it.")],
    keep: Annotated[bool, typer.Option("--keep", help="Leave the parts where they are.")] = False,
) -> None:
    """Join the parts that the services wrote into FILE, and say how long steps and the gaps between them were."""
    from bench.timeline import summary

    parts = parts_of(file)
    if not parts:
        raise CliError(f"{file} has no parts beside it ({file.name}.SERVICE-PID.part)", BAD_INPUT)
    try:
        count = merge(file, parts)
        for line in summary(parts):
            print(line)
    except (PartError, OSError) as error:
        raise CliError(str(error), BAD_INPUT) from None
    if not keep:
        for part in parts:
            part.unlink()
    print(f"{count} events of {len(parts)} processes in {file}")


def _hand_on(name: str, ctx: typer.Context) -> None:
    """Run bench.NAME with the rest of the command line as its own."""
    program = _program(f"bench.{name}")
    before = sys.argv
    sys.argv = [f"ssd bench {name}", *ctx.args]
    try:
        program()
    finally:
        sys.argv = before


def _program(name: str) -> Callable[[], Any]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise CliError(f"this installation has no {name}", BAD_INPUT) from None
        raise CliError(f"{name} needs the package {error.name}; run: pip install {error.name}", BAD_INPUT) from None
    program: Callable[[], Any] = module.main
    return program
