"""Probes and metrics. ``/live``: this process is up. ``/health``: the engine is. ``/ready``: requests can be served."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.errors import UpstreamError
from proxy.observe.exposition import joined
from proxy.routes.context import call_of
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


async def live(request: Request) -> Response:
    return Response(status_code=200)


async def health(request: Request) -> Response:
    engine = call_of(request).parts.engine
    return Response(status_code=200 if engine is None or await engine.healthy() else 503)


async def ready(request: Request) -> Response:
    """200 when the tokenizer is loaded (it is, or there would be no server), the engine has told its models and is
    well, and no drain has begun; else 503 and what is missing."""
    parts = call_of(request).parts
    missing = []
    if parts.drain.begun:
        missing.append("draining")
    elif not parts.models.known:
        missing.append("engine has not listed its models")
    elif parts.engine is not None and not await parts.engine.healthy():
        missing.append("engine is not healthy")
    elif (wrong := await parts.rollout.nothing_to_pass(parts.models.default_engine_name)) is not None:
        missing.append(wrong)
    return JsonBytes(dumps({"ready": not missing, "missing": missing}), status_code=503 if missing else 200)


async def metrics(request: Request) -> Response:
    """Our series, those of all workers, then the engine's as they are: pickers and autoscalers scrape the engine
    through this port."""
    parts = call_of(request).parts
    siblings = parts.siblings
    body = parts.metrics.exposition() if siblings is None else await siblings.all_expositions()
    if parts.engine is not None:
        try:
            body = joined(body, await parts.engine.metrics())
        except UpstreamError as error:
            parts.metrics.engine_errors[error.kind] += 1  # ours stay up while the engine is down
    return Response(body, headers={"content-type": EXPOSITION})
