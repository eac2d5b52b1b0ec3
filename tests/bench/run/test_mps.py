"""The MPS daemon is started in its own folders and always ended; a fake one stands in for it."""

import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from bench.run.mps import DEFAULT_SHARE, PROGRAM, MpsUnavailable, mps
from ssd.runtime.device import MPS_SHARE

FAKE = """#!{python}
import os, pathlib, sys, time
pipe = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    {start}
    (pipe / "ready").touch()
    pathlib.Path({record!r}).write_text(f"{{os.getpid()}} {{pipe}}")
    while not (pipe / "quit").exists():
        time.sleep(0.02)
else:
    command = sys.stdin.read().strip()
    if not (pipe / "ready").exists():
        sys.exit(1)
    if command == "quit":
        {stop}
"""


def install(folder: Path, *, start="pass", stop='(pipe / "quit").touch()') -> tuple[dict[str, str], Path]:
    import sys

    record, program = folder / "record", folder / PROGRAM
    program.write_text(FAKE.format(python=sys.executable, record=str(record), start=start, stop=stop))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": str(folder)}, record


def gone(record: Path) -> bool:
    """Whether the daemon has ended and its folder with it."""
    pid, pipe = record.read_text().split(" ", 1)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not psutil.pid_exists(int(pid)) and not Path(pipe).exists()


def test_the_daemon_lives_as_long_as_it_is_needed(tmp_path):
    environment, record = install(tmp_path)
    with mps(environment) as variables:
        assert set(variables) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", MPS_SHARE}
        assert variables[MPS_SHARE] == DEFAULT_SHARE
        assert psutil.pid_exists(int(record.read_text().split()[0]))
    assert gone(record)
    with mps({**environment, MPS_SHARE: "60"}) as variables:
        assert variables[MPS_SHARE] == "60"


def test_it_is_ended_after_a_failure_and_when_it_does_not_listen(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.run.mps.QUIT_WITHIN_S", 0.2)
    environment, record = install(tmp_path, stop="pass")
    with pytest.raises(RuntimeError, match="mine"), mps(environment):
        raise RuntimeError("mine")
    assert gone(record)


def test_a_daemon_that_does_not_start_says_why(tmp_path):
    environment, _ = install(tmp_path, start='sys.exit("no permission")')
    with pytest.raises(MpsUnavailable, match=r"ended with status 1: no permission"), mps(environment):
        pass


def test_without_the_program_there_is_no_mps(tmp_path):
    with pytest.raises(MpsUnavailable, match="not installed"), mps({"PATH": str(tmp_path)}):
        pass
