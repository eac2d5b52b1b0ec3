"""A command of the project in a process of its own, watched line by line."""

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 90.0


class Command:
    """`ssd ARGUMENTS`; as a context manager it leaves no process behind, its children included."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ssd.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._family: list[psutil.Process] = []
        self._readers = [self._follow(self.process.stdout, self.out), self._follow(self.process.stderr, self.err)]

    def _follow(self, pipe: IO[str] | None, into: list[str]) -> threading.Thread:
        assert pipe is not None

        def read() -> None:
            for line in pipe:
                into.append(line.rstrip("\n"))
                if into is self.out:
                    self._lines.put(line.rstrip("\n"))
            if into is self.out:
                self._lines.put(None)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.children(), *self._family):
            if process.is_running():
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(10)

    def wait_line(self, pattern: str, within_s: float = WITHIN_S) -> re.Match[str]:
        """The first further line on standard output that matches; AssertionError with everything said if none comes."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r} within {within_s} s\n{self.transcript()}") from None
            if line is None:
                raise AssertionError(f"ended without a line like {pattern!r}\n{self.transcript()}")
            if (match := re.search(pattern, line)) is not None:
                return match

    def wait_end(self, within_s: float = WITHIN_S) -> int:
        """The exit status, with everything printed read."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s} s\n{self.transcript()}") from None
        for reader in self._readers:
            reader.join(10)
        return status

    def children(self) -> list[psutil.Process]:
        """Its child processes now; remembered, so that those of a dead command are ended too."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._family.extend(process for process in found if process not in self._family)
        return found

    def child(self, name: str) -> psutil.Process:
        """The child that runs `ssd NAME`."""
        return next(p for p in self.children() if p.cmdline()[2:4] == ["ssd.cli", name])

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def transcript(self) -> str:
        """Everything printed so far."""
        return "\n".join(["stdout:", *self.out, "stderr:", *self.err])


def all_gone(processes: list[psutil.Process], within_s: float = 10.0) -> bool:
    """Whether all of these end in time."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not alive
