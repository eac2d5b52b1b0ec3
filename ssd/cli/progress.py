"""What the services are doing, while somebody waits for them."""

import sys
import time
from typing import TextIO

from ssd.cli.logtail import describe, loading
from ssd.cli.supervisor import Child, Supervisor

REPEAT_S = 2.0
WIDTH = 110


class Progress:
    """Prints one line for each service that became ready, and meanwhile how far the others are.

    Ready lines go to `out`; everything else to `err`: on a terminal as one line that is rewritten, else as a line for
    each piece of news, at most every REPEAT_S seconds for a service. `verbose` copies the logs instead.
    """

    def __init__(
        self, supervisor: Supervisor, *, verbose: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self._supervisor = supervisor
        self._verbose = verbose
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._announced: set[str] = set()
        self._news: dict[str, str] = {}
        self._told: dict[str, tuple[float, str]] = {}
        self._status = ""

    def tick(self) -> None:
        """Look at every child once and print what is new."""
        for name, child in self._supervisor.children.items():
            for line in child.tail.read():
                if self._verbose:
                    print(f"{name:<6} | {describe(line)}", file=self._err, flush=True)
                self._news[name] = loading(line) or self._news.get(name, "starting")
            if child.ready and name not in self._announced:
                self._announced.add(name)
                self._clear()
                print(f"{name:<6}  ready at {child.spec.address}", file=self._out, flush=True)
        if not self._verbose:
            self._show([child for child in self._supervisor.children.values() if not child.ready])

    def _show(self, waiting: list[Child]) -> None:
        news = {c.spec.name: self._news[c.spec.name] for c in waiting if c.spec.name in self._news}
        if self._err.isatty():
            status = "  ".join(f"{name}: {text}" for name, text in news.items())[:WIDTH]
            if status != self._status:
                self._clear()
                self._err.write(status)
                self._err.flush()
                self._status = status
            return
        now = time.monotonic()
        for name, text in news.items():
            at, told = self._told.get(name, (0.0, ""))
            if text != told and now - at >= REPEAT_S:
                self._told[name] = (now, text)
                print(f"{name:<6}  {text[:WIDTH]}", file=self._err, flush=True)

    def _clear(self) -> None:
        if self._status:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._status = ""
