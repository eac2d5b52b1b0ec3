"""What a scrape shows after real calls, and that the documentation speaks of the same metrics."""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protos.ssd.v1 import inference_pb2, types_pb2
from router.hub import Hub
from router.metrics import HubCollector
from router.totals import Totals
from ssd.config import RouterConfig
from ssd.rpc.server import StartupError
from ssd.telemetry.endpoint import metrics_endpoint
from ssd.telemetry.metrics import Metrics, RequestTimes
from ssd.tensor_plane.choice import Ability, Kind
from ssd.tokenizer import load_tokenizer
from tests.router.coordination import outcome
from tests.router.fakes import HOST, FakeDraft, FakeTarget, free_port
from tests.router.running import request, running
from tests.router.test_refusals import refusal

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


async def fetch(address, head="GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
    """Status line and body of one answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body.decode()


async def scrape(address):
    """(name, labels) → value."""
    status, body = await fetch(address)
    assert status == "HTTP/1.1 200 OK"
    families = text_string_to_metric_families(body)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(samples, name, **labels):
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


async def test_a_scrape_shows_what_has_happened(model):
    target, draft = FakeTarget(), FakeDraft()
    address = f"{HOST}:{free_port()}"
    async with running(model, [target], [draft], metrics_listen=address) as router:
        before = await scrape(address)
        whole = await router.inference.Generate(request(max_tokens=9))
        await refusal(router.inference.Generate(request(max_tokens=0)))
        target.say(target.response(timing={"rows": 1, "tokens": 4, "step_ms": 30.0}))
        draft.say(draft.response(timing={"rows": 1, "tokens": 4, "step_ms": 3.0, "prefill": True}))
        draft.say(draft.response(proposals=[types_pb2.Proposal(sequence=99)]))
        samples = before
        while not value(samples, "ssd_stale_drops_total", reason="sequence closed"):
            samples = await scrape(address)
            await asyncio.sleep(0)

    def more(name, **labels):
        return value(samples, name, **labels) - value(before, name, **labels)

    assert len(whole.token_ids) == 9
    assert more("ssd_tokens_total", mode="ssd") == 9
    assert more("ssd_proposed_tokens_total", mode="ssd") == more("ssd_accepted_tokens_total", mode="ssd") == 6
    assert [more("ssd_accepted_at_total", mode="ssd", position=p) for p in "123"] == [3, 3, 0]
    assert more("ssd_requests_total", status="OK") == 1
    assert more("ssd_requests_total", status="INVALID_ARGUMENT") == 1
    assert more("ssd_finished_total", reason="LENGTH") == 1
    for name in ("ssd_time_to_first_token_seconds", "ssd_request_seconds"):
        assert more(f"{name}_count", mode="ssd") == 1
    assert more("ssd_inter_token_seconds_count", mode="ssd") == 2
    assert more("ssd_queue_seconds_count") == 1
    assert more("ssd_verify_seconds_sum", prefill="no") == pytest.approx(0.03)
    assert more("ssd_draft_seconds_sum", prefill="yes") == pytest.approx(0.003)
    assert more("ssd_misses_total", accepted="2") == 2, "the last round needs no prediction"
    assert (value(samples, "ssd_running"), value(samples, "ssd_waiting"), value(samples, "ssd_degraded")) == (0, 0, 0)
    for role, peer in (("target", target), ("draft", draft)):
        assert value(samples, "ssd_peer_up", role=role, address=peer.address) == 1


async def test_only_get_of_metrics_is_answered_and_nonsense_does_no_harm():
    metrics = Metrics()
    metrics.requests.labels("OK").inc()
    async with metrics_endpoint("127.0.0.1:0", metrics.registry) as address:
        assert (await fetch(address, "GET / HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 404 Not Found"
        assert (await fetch(address, "POST /metrics HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 405 Method Not Allowed"
        assert await fetch(address, "HEAD /metrics HTTP/1.1\r\n\r\n") == ("HTTP/1.1 200 OK", "")
        assert await fetch(address, "x" * 100_000) == ("", "")
        assert value(await scrape(address), "ssd_requests_total", status="OK") == 1


async def test_a_port_in_use_ends_the_start_with_its_reason(model):
    async with metrics_endpoint("127.0.0.1:0", Metrics().registry) as taken:
        with pytest.raises(StartupError, match=f"metrics_listen: cannot listen on {taken}"):
            async with running(model, [FakeTarget()], metrics_listen=taken, wait=False) as router:
                await router.task


def test_routers_do_not_share_metrics():
    one, other = Metrics(), Metrics()
    one.requests.labels("OK").inc()
    assert other.registry.get_sample_value("ssd_requests_total", {"status": "OK"}) is None


def test_times_of_a_request_are_noted_once_each():
    metrics = Metrics()
    times = RequestTimes(metrics, "sd", 10.0)
    times.placed(10.5)
    times.placed(12.0)
    times.tokens(11.0, 0)
    times.tokens(12.0, 1)
    times.tokens(15.0, 3)
    times.ended(16.0, None)
    found = metrics.registry.get_sample_value
    assert (found("ssd_queue_seconds_sum"), found("ssd_queue_seconds_count")) == (0.5, 1)
    assert found("ssd_time_to_first_token_seconds_sum", {"mode": "sd"}) == 2.0
    assert found("ssd_inter_token_seconds_sum", {"mode": "sd"}) == 1.0
    assert found("ssd_request_seconds_sum", {"mode": "sd"}) == 6.0


GLOO = Ability("host", (), frozenset({Kind.GLOO}))


@pytest.fixture
def families(model):
    """Every metric family of a router: name → labels."""
    hub = Hub(RouterConfig(tensor_plane="gloo"), load_tokenizer(model), 1)
    hub.metrics.add(HubCollector(hub))
    tally = hub.coordinator.tally
    tally.count(types_pb2.MODE_SSD, outcome(3, [1, 2], proposed=2, accepted=1, hit_rank=20), True)
    tally.count(types_pb2.MODE_SSD, outcome(3, [1, 2], proposed=2, accepted=1), False)
    hub.coordinator.governing.decisions["ssd", "jit", False] += 1
    hub.coordinator.governing.rounds["ssd"] += 1
    for histogram in (hub.metrics.first_token, hub.metrics.inter_token, hub.metrics.request):
        histogram.labels("ssd")
    for histogram in (hub.metrics.verify, hub.metrics.draft):
        histogram.labels("no")
    hub.metrics.requests.labels("OK")
    hub.metrics.finished.labels("STOP")
    hub.targets[0].state = 2  # READY
    hub.targets[0].load.law_drops["late"] = 1
    planes = hub.coordinator.planes
    planes.target_ready("target", 1, GLOO)
    planes.draft_ready("draft", GLOO)
    for pair in planes.pairs:
        pair.latency_us, pair.bandwidth = 50.0, 1e9
    return list(hub.metrics.registry.collect())


def exposed(families):
    """Sample name → names of its labels."""
    found = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_documentation_has_every_metric_with_its_labels(families):
    rows = re.findall(r"^\| `(ssd_\w+)` \| (\w+) \|([^|]*)\| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    actual = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        actual[name] = (family.type, labels)
    assert documented == actual


def test_every_query_of_the_documentation_is_about_metrics_and_labels_that_exist(families):
    known = exposed(families)
    queries = re.findall(r"```promql\n(.+?)\n```", DOCS.read_text(), re.DOTALL)
    assert len(queries) > 15
    used = set()
    for query in queries:
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
        names = re.findall(r"\bssd_\w+", query)
        assert names
        for name in names:
            assert name in known, (name, query)
        labels = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query))
        labels |= {label for by in re.findall(r"by \(([^)]*)\)", query) for label in re.findall(r"\w+", by)}
        assert labels <= set().union(*(known[name] for name in names)), query
        used.update(re.sub(r"_(bucket|sum|count)$", "", name) for name in names)
    assert {"ssd_accepted_tokens_total", "ssd_hits_total", "ssd_tokens_total"} <= used


def test_rare_ranks_are_one_label(families):
    hits = next(family for family in families if family.name == "ssd_hits")
    assert [sample.labels for sample in hits.samples] == [{"accepted": "1", "rank": ">16"}]


def test_usage_counts_rounds_by_source_and_acceptance_by_position():
    totals = Totals()
    jit, ngram = types_pb2.PROPOSAL_SOURCE_JIT, types_pb2.PROPOSAL_SOURCE_NGRAM
    table = types_pb2.PROPOSAL_SOURCE_TABLE
    for source, proposed, accepted in ((0, 0, 0), (jit, 3, 0), (table, 4, 4), (ngram, 2, 1), (table, 4, 1)):
        totals.count(outcome(3, [1], source=source, proposed=proposed, accepted=accepted), None)
    assert (totals.rounds, totals.table_rounds, totals.jit_rounds, totals.ngram_rounds, totals.plain_rounds) == (
        5,
        2,
        1,
        1,
        1,
    )
    assert totals.accepted_at == [3, 1, 1, 1]
    assert sum(totals.accepted_at) == totals.accepted == 6


async def test_usage_of_a_real_call_has_them(model):
    async with running(model, [FakeTarget()]) as router:
        asked = request(max_tokens=9, speculation=inference_pb2.SpeculationParameters(mode=types_pb2.MODE_AUTO))
        usage = (await router.inference.Generate(asked)).usage
    assert (usage.mode, list(usage.accepted_at)) == (types_pb2.MODE_AUTO, [3, 3])
    assert (usage.rounds, usage.plain_rounds) == (3, 0)
