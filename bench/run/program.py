"""A run from beginning to end: services, warm-up, interleaved repeats, comparison of ids, baseline, files."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from bench import timeline
from bench.datasets import Prompt
from bench.run import baseline, plots, report
from bench.run.cases import Case, Grid, schedule
from bench.run.counters import CounterReader
from bench.run.facts import facts, model_facts, plane_facts
from bench.run.identity import GapReader, Identity
from bench.run.load import Driver, Workload
from bench.run.report import Baseline, Report
from bench.run.sample import Result, Sample
from bench.run.services import Endpoint, ServiceOptions, services
from protos.ssd.v1 import admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from protos.ssd.v1.admin_pb2 import GetServerInfoRequest
from ssd.cli.client import Client
from ssd.cli.errors import CliError
from ssd.rpc.options import CHANNEL_OPTIONS
from ssd.simulator.plot import PlotUnavailable
from ssd.telemetry.trace import PartError, Tracer, merge, open_tracer, parts_of

TOKENS_OF_A_CHARACTER = 0.5
"""More than English text and code have; for KV room before anything is tokenized."""
TEMPLATE_TOKENS = 128
"""Room for a chat template around a prompt."""
WITHIN_S = 30.0
POLL_S = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True)
class RunOptions:
    """A whole run. router: a running router instead of services of our own, with its metrics' address if there is one.

    warm_up_tokens: length of the unmeasured answers at the start of every case; 0 = none.
    """

    grid: Grid
    prompts: tuple[Prompt, ...]
    datasets: tuple[str, ...]
    services: ServiceOptions
    router: str | None = None
    metrics: str = ""
    max_tokens: int = 128
    seed: int = 1234
    repeats: int = 3
    warm_up_tokens: int = 32
    ignore_eos: bool = True
    raw: bool = False
    transformers: bool = False
    plots: bool = True
    trace: Path | None = None
    out: Path | None = None
    timeout_s: float = 600.0
    say: Say = field(default=lambda line: print(line, file=sys.stderr, flush=True))

    @property
    def workload(self) -> Workload:
        return Workload(self.prompts, self.max_tokens, self.seed, self.ignore_eos, self.raw)


def run(options: RunOptions) -> Report:
    """Measure everything and write what was asked for. Raises CliError, FieldError, OSError."""
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    if options.trace is not None:
        for stale in parts_of(options.trace):
            stale.unlink()
    tracer = open_tracer("" if options.trace is None else str(options.trace.absolute()), "client")
    try:
        found = _measured(options, tracer)
    finally:
        tracer.close()
    if options.transformers:
        found = dataclasses.replace(found, baseline=_baseline(options, found))
    notes = [*found.notes, *_merged(options.trace), *_plotted(options, found.results)]
    found = dataclasses.replace(found, notes=notes)
    if options.out is not None:
        report.write(found, options.out)
    return found


def _measured(options: RunOptions, tracer: Tracer) -> Report:
    if options.router is not None:
        return _measure(options, Endpoint(options.router, options.metrics), tracer)
    with services(fitted(options)) as endpoint:
        return _measure(options, endpoint, tracer)


def fitted(options: RunOptions) -> ServiceOptions:
    """The services' options with room for the largest batch."""
    grid, workload = options.grid, options.workload
    most = max(grid.batches)
    longest = int(TOKENS_OF_A_CHARACTER * max(len(prompt.text) for prompt in options.prompts)) + TEMPLATE_TOKENS
    ks = (*grid.ks, *grid.ssd_ks)
    branches = max([16, *grid.budgets, *(f * (max(ks) + 1) for f in grid.fan_outs)])
    # Every branch of a table holds KV of its own until the table is done.
    tables = branches * (max(ks, default=1) + 1)
    return dataclasses.replace(
        options.services,
        room=most * (longest + workload.max_tokens + tables),
        most_live=most,
        most_tokens=most * (longest + workload.max_tokens),
        most_k=max(ks, default=1),
        most_branches=branches,
        most_fan_out=max(grid.fan_outs, default=1),
        trace="" if options.trace is None else str(options.trace.absolute()),
    )


def _measure(options: RunOptions, endpoint: Endpoint, tracer: Tracer) -> Report:
    cases = options.grid.cases()
    with (
        Client(endpoint.router, options.timeout_s) as client,
        grpc.insecure_channel(endpoint.router, options=CHANNEL_OPTIONS) as channel,
    ):
        setup = _setup(options, endpoint, channel)
        reader = CounterReader(channel, endpoint.metrics or None)
        driver = Driver(client, reader, options.workload, tracer)
        try:
            samples, identity = _samples(options, cases, driver, endpoint.check)
            info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=WITHIN_S)
            setup["tensor planes"] = [plane_facts(plane) for plane in info.planes]
        except (grpc.RpcError, OSError) as error:
            raise CliError(f"the router's counters cannot be read: {error}") from None
        _read_gaps(identity, GapReader(channel, options.workload))
    results = [Result(case, tuple(samples[case])) for case in cases]
    return Report(facts(), setup, results, identity, None, [endpoint.note] if endpoint.note else [])


def _samples(
    options: RunOptions, cases: Sequence[Case], driver: Driver, check: Callable[[], None]
) -> tuple[dict[Case, list[Sample]], Identity]:
    if options.warm_up_tokens:
        for number, case in enumerate(cases, start=1):
            options.say(f"warm-up {number}/{len(cases)}: batch {case.batch}, T={case.temperature:g}, {case.label}")
            driver.warm_up(case, min(options.warm_up_tokens, options.max_tokens))
    samples: dict[Case, list[Sample]] = defaultdict(list)
    identity = Identity()
    for repeat, case in schedule(cases, options.repeats):
        sample, answers = driver.sample(case)
        check()
        samples[case].append(sample)
        identity.take(case, answers)
        where = f"repeat {repeat + 1}/{options.repeats}: batch {case.batch}, T={case.temperature:g}, {case.label}"
        options.say(f"{where}: {sample.tok_s:.1f} tok/s")
    return samples, identity


def _read_gaps(identity: Identity, gaps: GapReader) -> None:
    identity.differences = [
        dataclasses.replace(one, gap=gaps.gap(one, identity.before(one))) for one in identity.differences
    ]


def _setup(options: RunOptions, endpoint: Endpoint, channel: grpc.Channel) -> dict[str, Any]:
    """What was run, as plain data. Raises CliError if the router cannot say what it serves."""
    drafted = set(options.grid.modes) != {"ar"}
    info = served(inference_pb2_grpc.InferenceServiceStub(channel), endpoint.router, drafted)
    stack = endpoint.stack
    requests = {str(batch): options.workload.requests(batch) for batch in options.grid.batches}
    return {
        "target": model_facts(info.model),
        "draft": model_facts(info.draft) if info.HasField("draft") else None,
        "devices": None
        if stack is None
        else {name: one.engine.device for name, one in (("target", stack.target), ("draft", stack.draft)) if one},
        "threads": None if stack is None else stack.target.engine.threads or None,
        "sharing": endpoint.sharing,
        "prompts": f"{len(options.prompts)} of {', '.join(options.datasets)}",
        "requests of a sample, by batch": requests,
        "max_tokens": options.max_tokens,
        "ignore_eos": options.ignore_eos,
        "repeats": options.repeats,
        "seed": options.seed,
    }


def served(
    stub: inference_pb2_grpc.InferenceServiceStub, address: str, drafted: bool, within_s: float = WITHIN_S
) -> inference_pb2.GetModelInfoResponse:
    """What a router serves; where a draft is needed, once one is connected. Raises CliError."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            info = stub.GetModelInfo(inference_pb2.GetModelInfoRequest(), timeout=WITHIN_S)
        except grpc.RpcError as error:
            raise CliError(f"the router at {address} does not say what it serves: {error.details()}") from None
        if info.HasField("draft") or not drafted:
            return info
        if time.monotonic() > deadline:
            raise CliError(f"the router at {address} has no draft; without one only --modes ar can be measured")
        time.sleep(POLL_S)


def _baseline(options: RunOptions, found: Report) -> Baseline:
    """After the services have ended, so that the memory is free."""
    if options.router is not None:
        return Baseline(skipped="the models belong to a running router")
    target, devices = found.setup["target"], found.setup["devices"]
    grid = options.grid.batches, options.grid.temperatures
    options.say("transformers ...")
    threads = int(found.setup["threads"] or 0)
    return baseline.measure(
        target["source"], devices["target"], target["dtype"], threads, options.workload, grid, options.repeats
    )


def _merged(trace: Path | None) -> list[str]:
    """Join the parts of the timeline; they are removed when that has worked."""
    if trace is None:
        return []
    parts = parts_of(trace)
    try:
        count = merge(trace, parts)
        gaps = [line for line in timeline.summary(parts) if "gaps" in line]
    except (PartError, OSError) as error:
        return [f"trace: {error}"]
    for part in parts:
        part.unlink()
    services_ = sorted({part.name.removeprefix(f"{trace.name}.").rpartition("-")[0] for part in parts})
    return [f"trace: {count} events of {', '.join(services_)} in {trace}", *gaps]


def _plotted(options: RunOptions, results: Sequence[Result]) -> list[str]:
    if options.out is None or not options.plots:
        return []
    try:
        return [f"plot: {path.name}" for path in plots.plot(results, options.out)]
    except PlotUnavailable as error:
        return [str(error)]
