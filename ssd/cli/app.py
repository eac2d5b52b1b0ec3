"""The `ssd` command line."""

import sys
from importlib import metadata
from typing import Annotated

import typer

from ssd.cli import bench, chat, demo, generate, services, simulate, up
from ssd.cli.errors import BAD_INPUT, CliError
from ssd.errors import FieldError

app = typer.Typer(
    name="ssd",
    help="Serve a large language model at its own exact output, faster, with a small draft model beside it.",
    no_args_is_help=True,
    add_completion=False,
    # Plain text and plain errors: one line that says what to do.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (up.up, services.target, services.draft, services.router, generate.generate, chat.chat, demo.demo):
    app.command()(_command)
app.add_typer(simulate.app)
app.add_typer(bench.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ssd {metadata.version('ssd-serve')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; user errors become one line on standard error."""
    try:
        app(prog_name="ssd")
    except CliError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(error.status)
    except FieldError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
