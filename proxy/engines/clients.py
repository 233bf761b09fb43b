"""From settings to a client: by dialect, and one for several engines."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.engines.base import Engine
from proxy.engines.detect import DIALECTS, AutoEngine
from proxy.engines.http import EngineOptions
from proxy.engines.pool import Pool


def client_for(dialect: str, options: EngineOptions) -> Engine:
    """A client of one engine; ``dialect`` is one of DIALECTS, or auto."""
    return AutoEngine(options) if dialect == "auto" else DIALECTS[dialect](options)


def engine_for(dialect: str, engines: Sequence[EngineOptions]) -> Engine | None:
    """A client of all ``engines``, None where there are none."""
    if len(engines) < 2:
        return client_for(dialect, engines[0]) if engines else None
    return Pool([(options.url, client_for(dialect, options)) for options in engines])
