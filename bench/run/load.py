"""Sending prompts to a router, a fixed number of them at a time."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.datasets import Prompt
from bench.run.cases import Case
from bench.run.counters import CounterReader
from bench.run.sample import Sample
from ssd.cli.client import Answer, Client
from ssd.cli.request import GenerateOptions, build_request
from ssd.telemetry.trace import Tracer


@dataclass(frozen=True)
class Workload:
    """What every case is given. Request number i has prompt i (in turns where there are more requests than prompts)
    and the seed `seed` + i, in every mode and repeat.

    raw: prompts are continued as text instead of answered as a chat turn.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    seed: int
    ignore_eos: bool = True
    raw: bool = False

    def requests(self, batch: int) -> int:
        """How many requests a sample has: a multiple of the batch, with every prompt at least once."""
        return -(-len(self.prompts) // batch) * batch

    def prompt(self, number: int) -> Prompt:
        return self.prompts[number % len(self.prompts)]

    def content(self, number: int) -> str | list[tuple[str, str]]:
        """Text or chat messages of a request."""
        text = self.prompt(number).text
        return text if self.raw else [("user", text)]

    def options(self, case: Case, number: int, max_tokens: int | None = None) -> GenerateOptions:
        return case.options(self.seed + number, max_tokens or self.max_tokens, self.ignore_eos)


@dataclass(frozen=True)
class Driver:
    """A router under load."""

    client: Client
    reader: CounterReader
    workload: Workload
    tracer: Tracer

    def sample(self, case: Case) -> tuple[Sample, list[Answer]]:
        """Run all requests of `case`, `case.batch` at a time. Raises CliError if one fails."""
        before = self.reader.read()
        begun = time.monotonic()
        answers = self._run(case, self.workload.requests(case.batch), None)
        ended = time.monotonic()
        self.tracer.span("cases", case.label, begun, ended, batch=case.batch, temperature=case.temperature)
        return Sample.of(answers, ended - begun, self.reader.read().since(before)), answers

    def warm_up(self, case: Case, max_tokens: int) -> None:
        """One batch of short answers, unmeasured."""
        self._run(case, case.batch, max_tokens)

    def _run(self, case: Case, count: int, max_tokens: int | None) -> list[Answer]:
        def answer(number: int) -> Answer:
            request = build_request(self.workload.content(number), self.workload.options(case, number, max_tokens))
            begun = time.monotonic()
            given = self.client.generate(request)
            lane = f"client {number % case.batch}"
            self.tracer.span(lane, "request", begun, time.monotonic(), number=number, tokens=len(given.ids))
            return given

        pool = ThreadPoolExecutor(case.batch)
        try:
            return list(pool.map(answer, range(count)))
        finally:
            # After a failure or Ctrl-C nobody waits for the others: their streams end with the services.
            pool.shutdown(wait=False, cancel_futures=True)
