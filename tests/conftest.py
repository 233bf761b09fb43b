"""Running servers that tests share; see tests/servers.py for starting others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers import DEMO_MODEL, DEMO_NAME, Sidecar, Simulator


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    """The token-only engine, with the demo's model; requests script it through ``vllm_xargs``."""
    with Simulator(DEMO_MODEL, served_model_name=(DEMO_NAME,)) as running:
        yield running


@pytest.fixture(scope="session")
def sidecars(simulator: Simulator) -> Iterator[Callable[..., Sidecar]]:
    """``sidecars(**flags)``: a sidecar before the simulator, started at its first use and kept for the session."""
    started: dict[str, Sidecar] = {}

    def get(model: Any = DEMO_MODEL, **flags: Any) -> Sidecar:
        flags.setdefault("engine_url", simulator.url)
        key = repr((str(model), sorted(flags.items())))
        if key not in started:
            started[key] = Sidecar(model, **flags)
            started[key].start()
        return started[key]

    yield get
    for running in started.values():
        running.stop()


@pytest.fixture(scope="session")
def sidecar(sidecars: Callable[..., Sidecar]) -> Sidecar:
    """A sidecar with the demo's parsers (qwen3, hermes)."""
    return sidecars(reasoning_parser="qwen3", tool_call_parser="hermes")
