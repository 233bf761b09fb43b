"""Counters and histograms of this process, exposed in Prometheus' text format.

prometheus-client renders them, but its own counters take a lock and about a microsecond for every step. All of
ours are touched by the event loop's thread alone, so plain numbers do, at a tenth of that; a collector turns
them into metric families when somebody scrapes. Its registry is our own, without the process and platform
collectors, so that the engine's text can be appended without a family appearing twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from proxy import __version__

# vLLM's ladders for the time to first token and between tokens, so that panels of both can be laid over one another.
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0, 640.0, 2560.0)  # fmt: skip
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
                      5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
# What we add is microseconds; the ladder is fine there and coarse where something is wrong.
ADDED_BOUNDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                0.25, 1.0)  # fmt: skip


REPLAY_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LiveStreams(Protocol):
    """What is counted of the cache of live streams."""

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...


class Histogram:
    """Counts of values by upper bound. ``observe`` costs about 0.15 us."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` (in the metric's unit), ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, as the exposition format has them."""
        seen, found = 0, []
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            seen += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
        return found


class Metrics(Collector):
    """All series of one process. Label values come from bounded sets; a request id is never one."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, str], int] = defaultdict(int)  # route, mode, code
        self.streams_active = 0
        self.tokens: defaultdict[str, int] = defaultdict(int, prompt=0, completion=0, reasoning=0, cached=0)
        self.time_to_first_token = Histogram(TTFT_BOUNDS)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS)
        self.added_latency = Histogram(ADDED_BOUNDS)
        self.engine_errors: defaultdict[str, int] = defaultdict(int)
        self.resumes: defaultdict[str, int] = defaultdict(int, resumed=0, failed=0, unsound=0)
        self.client_disconnects = 0
        self.cache: LiveStreams | None = None  # live streams of the stateless endpoints
        self.cache_lookups: defaultdict[str, int] = defaultdict(
            int, live=0, snapshot=0, replay_absent=0, replay_mismatch=0
        )
        self.cache_evictions: defaultdict[str, int] = defaultdict(
            int, ttl=0, entries=0, bytes=0, finish=0, error=0, mismatch=0
        )
        self.replay_tokens = 0
        self.replay_seconds = Histogram(REPLAY_BOUNDS)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Show the series of another part too."""
        self._registry.register(collector)

    def engine_lost(self, result: str, kind: str) -> None:
        """An engine was lost in the middle of an answer. One that goes on elsewhere fails for no client."""
        self.resumes[result] += 1
        if result == "resumed":
            self.engine_errors[kind] += 1

    def exposition(self) -> bytes:
        """The series in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "derender_requests", "Requests answered, by HTTP status or that of the error event",
            labels=["route", "mode", "code"],
        )  # fmt: skip
        for labels, count in self.requests.items():
            requests.add_metric(labels, count)
        yield requests
        yield GaugeMetricFamily("derender_streams_active", "Requests being generated", self.streams_active)
        yield _counter("derender_tokens", "Tokens taken in and given out", "kind", self.tokens)
        yield _histogram(
            "derender_time_to_first_token_seconds", "From request to the engine's first tokens",
            self.time_to_first_token,
        )  # fmt: skip
        yield _histogram(
            "derender_inter_token_seconds", "Between tokens of a request, from the engine", self.inter_token
        )
        yield _histogram(
            "derender_added_latency_seconds", "From an engine event received to its bytes handed to the socket",
            self.added_latency,
        )  # fmt: skip
        yield _counter("derender_engine_errors", "Failures of the engine or its connection", "kind", self.engine_errors)
        yield _counter("derender_engine_losses", "Engines lost in the middle of an answer", "result", self.resumes)
        yield CounterMetricFamily(
            "derender_client_disconnects", "Clients that left before their answer was complete",
            self.client_disconnects,
        )  # fmt: skip
        cache = self.cache
        yield GaugeMetricFamily(
            "derender_cache_entries", "Live streams kept between two calls", 0 if cache is None else len(cache)
        )
        yield GaugeMetricFamily("derender_cache_bytes", "Memory they take", 0 if cache is None else cache.size)
        yield _counter("derender_cache_lookups", "How carried states were resumed", "result", self.cache_lookups)
        yield _counter("derender_cache_evictions", "Why live streams were let go", "reason", self.cache_evictions)
        yield CounterMetricFamily("derender_replay_tokens", "Tokens parsed again", self.replay_tokens)
        yield _histogram(
            "derender_replay_seconds", "Time that replays took, waiting for their turns included", self.replay_seconds
        )
        info = GaugeMetricFamily("derender_build_info", "Always 1; the labels say what runs", labels=["version"])
        info.add_metric([__version__], 1)
        yield info


def _counter(name: str, text: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=histogram.buckets(), sum_value=histogram.total)
