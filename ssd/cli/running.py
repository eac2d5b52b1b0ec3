"""Running a stack for as long as a command needs it."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ssd.cli.stack as stacks
from ssd.cli.errors import BAD_INPUT, FAILED, CliError
from ssd.cli.progress import Progress
from ssd.cli.signals import deferred, uninterrupted
from ssd.cli.stack import Stack
from ssd.cli.supervisor import POLL_S, ServiceDied, StartTimeout, Supervisor

START_WITHIN_S = 600.0


@contextlib.contextmanager
def run_folder(wanted: Path | None) -> Iterator[Path]:
    """Where configuration and logs go: `wanted`, or a temporary folder that is kept only after a failure that its
    message does not explain."""
    if wanted is not None:
        try:
            wanted.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CliError(f"--log-dir {wanted}: {error.strerror}", BAD_INPUT) from None
        yield wanted
        return
    folder = Path(tempfile.mkdtemp(prefix="ssd-"))
    failed = False
    try:
        yield folder
    except Exception as error:
        failed = not (isinstance(error, CliError) and error.status == BAD_INPUT)
        raise
    finally:
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Run:
    """Services at work, and the voice that reports on them."""

    supervisor: Supervisor
    progress: Progress

    def watch(self) -> None:
        """Block until a child dies: raises ServiceDied."""
        while True:
            self.supervisor.check_alive()
            self.progress.tick()
            time.sleep(POLL_S)


@contextlib.contextmanager
def running(stack: Stack, folder: Path, *, verbose: bool = False) -> Iterator[Run]:
    """The stack's services, each serving; ended in every case. Announces on standard output which are ready.

    Raises CliError if one dies, at start or while the caller watches, or is not ready in time.
    """
    file = folder / "config.toml"
    stacks.write(stack, file)
    supervisor = Supervisor(folder, stacks.child_environment(os.environ))
    progress = Progress(supervisor, verbose=verbose)
    try:
        for spec in stacks.specs(stack, file):
            with deferred():  # a process that was started but not yet recorded could not be ended
                supervisor.start(spec)
        supervisor.wait_ready(START_WITHIN_S, progress.tick)
        yield Run(supervisor, progress)
    except ServiceDied as death:
        raise _explained(death, folder) from None
    except StartTimeout as late:
        raise CliError(str(late)) from None
    finally:
        with uninterrupted():
            for name in supervisor.stop():
                print(f"the {name} did not stop in time and was killed", file=sys.stderr)


def _explained(death: ServiceDied, folder: Path) -> CliError:
    """A service that refused its settings has said why in one line; after any other end its last lines are shown."""
    if death.starting and death.last_lines and death.last_lines[-1].startswith("error: "):
        return CliError(f"{death.name}: {death.last_lines[-1].removeprefix('error: ')}", death.returncode or FAILED)
    last = "".join(f"\n  | {line}" for line in death.last_lines)
    return CliError(f"{death}; its last lines (all in {folder / death.name}.log):{last}")
