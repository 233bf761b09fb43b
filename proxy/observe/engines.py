"""The series of a pool of engines, on the exposition of ``proxy.observe.metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Upstream(Protocol):
    """One engine, by host and port; ``running``: requests under way there."""

    name: str
    up: bool
    running: int


class Upstreams(Collector):
    """Which engines are well, and how much each has to do."""

    def __init__(self, engines: Sequence[Upstream]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("derender_engine_up", "1 while the engine gets requests", labels=["upstream"])
        running = GaugeMetricFamily(
            "derender_engine_requests_running", "Requests of this proxy under way at the engine", labels=["upstream"]
        )
        for engine in self._engines:
            up.add_metric([engine.name], float(engine.up))
            running.add_metric([engine.name], engine.running)
        yield up
        yield running
