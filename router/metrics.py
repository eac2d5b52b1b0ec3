"""What the router counts anyway, as Prometheus metrics: read when scraped, which costs nothing until then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protos.ssd.v1 import types_pb2
from router.hub import Hub
from router.peer import Peer
from router.planes import OPEN, address_of

# Ranks beyond are one label: tables may be wide, and nobody looks at rank 37.
RANKS = 16


class HubCollector(Collector):
    """Reads a hub; on the hub's own event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._rounds()
        yield from self._outcomes()
        yield from self._governor()
        yield from self._peers()
        yield from self._planes()

    def _requests(self) -> Iterator[Metric]:
        waiting = len(self._hub.coordinator.waiting())
        yield _gauge("ssd_running", "Live requests on a target.", self._hub.live - waiting)
        yield _gauge("ssd_waiting", "Live requests that wait for a target.", waiting)
        yield _gauge("ssd_degraded", "1 while no draft is connected.", int(not self._hub.draft_ready))

    def _rounds(self) -> Iterator[Metric]:
        tally = self._hub.coordinator.tally
        rounds = CounterMetricFamily("ssd_rounds", "Verifications.", labels=["mode", "source"])
        proposed = CounterMetricFamily("ssd_proposed_tokens", "Draft tokens verified.", labels=["mode"])
        accepted = CounterMetricFamily("ssd_accepted_tokens", "Draft tokens accepted.", labels=["mode"])
        at = CounterMetricFamily("ssd_accepted_at", "Rounds that accepted this position.", labels=["mode", "position"])
        emitted = CounterMetricFamily("ssd_tokens", "Tokens emitted.", labels=["mode"])
        for mode, totals in tally.by_mode.items():
            name = mode_name(mode)
            sources = ("table", totals.table_rounds), ("jit", totals.jit_rounds), ("ngram", totals.ngram_rounds)
            for source, count in (*sources, ("none", totals.plain_rounds)):
                rounds.add_metric([name, source], count)
            proposed.add_metric([name], totals.proposed)
            accepted.add_metric([name], totals.accepted)
            emitted.add_metric([name], tally.tokens[mode])
            for position, count in enumerate(totals.accepted_at, start=1):
                at.add_metric([name, str(position)], count)
        yield from (rounds, proposed, accepted, at, emitted)

    def _outcomes(self) -> Iterator[Metric]:
        coordinator = self._hub.coordinator
        hits = CounterMetricFamily("ssd_hits", "Outcomes found in the cache.", labels=["accepted", "rank"])
        by_rank: dict[tuple[str, str], int] = {}
        for (accepted, rank), count in coordinator.tally.hits.items():
            key = str(accepted), "unknown" if not rank else str(rank) if rank <= RANKS else f">{RANKS}"
            by_rank[key] = by_rank.get(key, 0) + count
        for (length, place), count in by_rank.items():
            hits.add_metric([length, place], count)
        yield hits
        tally = coordinator.tally
        yield _counter("ssd_misses", "Outcomes that were not.", "accepted", tally.misses.items())
        yield _counter("ssd_depth_used", "Rounds by draft tokens verified.", "depth", tally.lengths.items())
        drops = coordinator.stale_by_reason.items()
        yield _counter("ssd_stale_drops", "Messages of peers that were of no use.", "reason", drops)

    def _governor(self) -> Iterator[Metric]:
        governing = self._hub.coordinator.governing
        made = CounterMetricFamily(
            "ssd_governor_decisions", "New decisions in mode AUTO.", labels=["mode", "fallback", "probe"]
        )
        for (mode, fallback, probe), count in governing.decisions.items():
            made.add_metric([mode, fallback, str(probe).lower()], count)
        yield made
        rounds = governing.rounds.items()
        yield _counter("ssd_governor_rounds", "Rounds in mode AUTO, by the mode decided for.", "mode", rounds)

    def _peers(self) -> Iterator[Metric]:
        peers = (*self._hub.targets, *self._hub.drafts)
        yield _by_peer("ssd_peer_up", "1 while connected and of use.", ((p, float(p.ready)) for p in peers))
        there = [peer for peer in peers if peer.ready]
        yield _by_peer("ssd_peer_rtt_seconds", "Last heartbeat, there and back.", ((p, p.rtt_ms / 1e3) for p in there))
        for name, what in (
            ("running", "Sequences that hold KV blocks."),
            ("waiting", "Sequences queued."),
            ("kv_blocks_used", "KV blocks of live sequences."),
            ("kv_blocks_total", "KV blocks in all."),
        ):
            yield _by_peer(f"ssd_peer_{name}", what, ((p, float(getattr(p.load, name))) for p in there))

    def _planes(self) -> Iterator[Metric]:
        labels = ["target", "draft"]
        up = GaugeMetricFamily("ssd_plane_open", "1 for the kind that laws take now.", labels=[*labels, "kind"])
        latency = GaugeMetricFamily("ssd_plane_latency_seconds", "One way, when it was opened.", labels=labels)
        bandwidth = GaugeMetricFamily(
            "ssd_plane_bandwidth_bytes_per_second", "When it was opened; inline is not measured.", labels=labels
        )
        fallbacks = CounterMetricFamily("ssd_plane_fallbacks", "Planes that broke.", labels=labels)
        for pair in self._hub.coordinator.planes.pairs:
            names = [address_of(pair.target), address_of(pair.draft)]
            up.add_metric([*names, pair.kind.value], float(pair.state == OPEN))
            fallbacks.add_metric(names, pair.fallbacks)
            if pair.bandwidth:
                latency.add_metric(names, pair.latency_us / 1e6)
                bandwidth.add_metric(names, pair.bandwidth)
        drops = CounterMetricFamily(
            "ssd_law_drops", "Predictions whose laws were not there when wanted.", labels=["target", "reason"]
        )
        for peer in self._hub.targets:
            for reason, count in peer.load.law_drops.items():
                drops.add_metric([peer.address, reason], count)
        yield from (up, latency, bandwidth, fallbacks, drops)


def mode_name(mode: int) -> str:
    """ar, sd, ssd or auto."""
    return types_pb2.Mode.Name(mode).removeprefix("MODE_").lower()


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _counter(name: str, what: str, label: str, values: Iterable[tuple[object, int]]) -> Metric:
    family = CounterMetricFamily(name, what, labels=[label])
    for key, count in values:
        family.add_metric([str(key)], count)
    return family


def _by_peer(name: str, what: str, values: Iterable[tuple[Peer, float]]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=["role", "address"])
    for peer, value in values:
        family.add_metric([peer.role.name, peer.address], value)
    return family
