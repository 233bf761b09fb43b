"""The series of the roll-out, on the exposition of ``proxy.observe.metrics``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

# What is compared; every one is shown from the start, so that a rate over it is never empty.
FIELDS = (
    "reasoning", "content", "tool_names", "arguments_json", "arguments_text", "finish_reason", "usage", "prompt",
)  # fmt: skip


class Counters(Collector):
    """Plain numbers, touched by the event loop's thread alone."""

    def __init__(self) -> None:
        self.compared = 0  # answers, not choices
        self.mismatch: defaultdict[str, int] = defaultdict(int, dict.fromkeys(FIELDS, 0))
        self.skipped: defaultdict[str, int] = defaultdict(int)  # could not be shadowed
        self.dropped: defaultdict[str, int] = defaultdict(int)  # could have been, but for the load
        self.fallbacks: defaultdict[str, int] = defaultdict(int)
        self.reloads: defaultdict[str, int] = defaultdict(int)
        self.breaker_open = False

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "derender_shadow_compared", "Answers of the engine that were derendered beside it and compared",
            self.compared,
        )  # fmt: skip
        yield _counter("derender_shadow_mismatch", "Compared answers that differ, by field", "field", self.mismatch)
        yield _counter("derender_shadow_skipped", "Answers that cannot be compared, by reason", "reason", self.skipped)
        yield _counter(
            "derender_shadow_dropped", "Comparisons given up to spare the server, by reason", "reason", self.dropped
        )
        yield _counter(
            "derender_fallbacks", "Requests of the derender path passed through, by the engine's HTTP status or `open`",
            "reason", self.fallbacks,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "derender_fallback_breaker_open", "1 while the derender path is left alone", float(self.breaker_open)
        )
        yield _counter("derender_config_reloads", "Changes of the configuration file", "result", self.reloads)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
