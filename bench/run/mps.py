"""CUDA's multi-process service for the time of a benchmark, so that two services compute on one GPU at once.

Without it the GPU is given to the processes in turns, and a draft takes its time from the target.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ssd.runtime.device import MPS_SHARE

PROGRAM = "nvidia-cuda-mps-control"
DEFAULT_SHARE = "85"
"""Of the multiprocessors that one process may use, unless the environment or a service's gpu_share says otherwise:
bound by memory, the target should hardly miss the others, and the draft's short kernels need not wait for it there."""
READY_WITHIN_S = 10.0
ANSWER_WITHIN_S = 5.0
QUIT_WITHIN_S = 15.0
_POLL_S = 0.1


class MpsUnavailable(Exception):
    """The daemon cannot be started here; says why."""


@contextlib.contextmanager
def mps(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A control daemon of our own; yields the variables that put a process under it. Ended in every case, with the
    server that it started. Raises MpsUnavailable."""
    program = shutil.which(PROGRAM, path=environment.get("PATH"))
    if program is None:
        raise MpsUnavailable(f"{PROGRAM} is not installed")
    # Sockets lie in here, and their paths may not be long.
    folder = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for directory in own.values():
        Path(directory).mkdir()
    own[MPS_SHARE] = environment.get(MPS_SHARE, DEFAULT_SHARE)
    known = {**environment, **own}
    try:
        with (folder / "out").open("wb") as out:
            daemon = subprocess.Popen(
                # In the foreground it is our child, and so is known by its id.
                [program, "-f"],
                env=known,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            _await(program, daemon, known, folder)
            yield own
        finally:
            _end(program, daemon, known)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await(program: str, daemon: subprocess.Popen[bytes], environment: Mapping[str, str], folder: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while daemon.poll() is None and time.monotonic() < deadline:
        if _command(program, "get_server_list", environment, ANSWER_WITHIN_S):
            return
        time.sleep(_POLL_S)
    last = (folder / "out").read_text(errors="replace").strip().splitlines()
    how = "did not answer" if daemon.poll() is None else f"ended with status {daemon.returncode}"
    raise MpsUnavailable(f"{PROGRAM} {how}{': ' + last[-1] if last else ''}")


def _command(program: str, command: str, environment: Mapping[str, str], within_s: float) -> bool:
    """Whether the daemon took a command."""
    try:
        done = subprocess.run(
            [program], input=f"{command}\n".encode(), env=environment, capture_output=True, timeout=within_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _end(program: str, daemon: subprocess.Popen[bytes], environment: Mapping[str, str]) -> None:
    if daemon.poll() is None:
        _command(program, "quit", environment, ANSWER_WITHIN_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(QUIT_WITHIN_S)
    # The server that it started is of its session, and stays where the daemon was killed before it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait()
