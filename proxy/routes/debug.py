"""``/debug``: what this server is at, for who is on call; off unless ``--debug``, and behind the API keys, if any.

``GET /debug`` has the open streams and the cache of every worker, never what anybody asked or was answered; ``GET
/debug/shadow`` the last answers in which the shadow differed; ``GET /debug/ui`` a page that shows both and takes a
captured stream apart (routes/inspect.py).
"""

from __future__ import annotations

import importlib.resources
import os
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from proxy import __version__
from proxy.errors import RequestError
from proxy.routes.context import Parts, call_of
from proxy.routes.generation import Generation
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps
from proxy.serving.drain import OpenRequest

MOST_STREAMS = 1000  # that are listed one by one; their number is told all the same
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def only_if_on(parts: Parts) -> None:
    """RequestError as for any path that does not exist, where ``--debug`` is not set."""
    if not parts.settings.debug:
        raise RequestError("There is no such endpoint.", status=404)


async def shadow(request: Request) -> Response:
    """All workers' counts, and their samples, oldest first."""
    parts = call_of(request).parts
    found = shadow_of_this_worker(parts)
    for other in [] if parts.siblings is None else await parts.siblings.told("shadow"):
        found["compared"] += other["compared"]
        for kind in ("mismatch", "skipped", "dropped"):
            for label, count in other[kind].items():
                found[kind][label] = found[kind].get(label, 0) + count
        found["samples"] += other["samples"]
    found["samples"].sort(key=lambda sample: sample["time"])
    return JsonBytes(dumps(found))


def shadow_of_this_worker(parts: Parts) -> dict[str, Any]:
    counters = parts.rollout.counters
    return {
        "compared": counters.compared,
        "mismatch": dict(counters.mismatch),
        "skipped": dict(counters.skipped),
        "dropped": dict(counters.dropped),
        "samples": list(parts.rollout.shadow.samples),
    }


async def streams(request: Request) -> Response:
    """All workers' open streams and caches."""
    parts = call_of(request).parts
    only_if_on(parts)
    others = [] if parts.siblings is None else await parts.siblings.told("debug")
    return JsonBytes(dumps({"version": __version__, "workers": [of_this_worker(parts), *others]}))


async def page(request: Request) -> Response:
    only_if_on(call_of(request).parts)
    text = importlib.resources.files("proxy.observe").joinpath("ui.html").read_bytes()
    return Response(text, media_type="text/html", headers=PAGE_HEADERS)


def of_this_worker(parts: Parts) -> dict[str, Any]:
    """What this process is at. Times are in seconds, sizes in bytes."""
    drain, cache = parts.drain, parts.tier.cache
    opened = sorted(drain.open, key=lambda found: found.began)
    kept = cache.newest()
    return {
        "pid": os.getpid(),
        "phase": drain.phase,
        "open": len(opened),
        "streams": [_stream(found) for found in opened[:MOST_STREAMS]],
        "cache": {
            "entries": len(cache),
            "bytes": cache.size,
            # Named by the beginning of their binding, which is a digest.
            "streams": [
                {
                    "entry": live.binding[:8].hex(),
                    "tokens": live.position,
                    "state": live.stream.machine.state,
                    "held": len(live.stream.machine.held),
                    "bytes": live.size,
                }
                for live in kept[-MOST_STREAMS:]
            ],
        },
    }


def _stream(found: OpenRequest) -> dict[str, Any]:
    record = found.record
    told: dict[str, Any] = {
        "id": record.id,
        "route": record.route,
        "mode": record.mode,
        "model": record.model,
        "streamed": record.stream,
        "age": round(time.monotonic() - found.began, 3),
        "ttft": None if record.ttft is None else round(record.ttft, 4),
    }
    generation = record.watched
    if isinstance(generation, Generation):
        told |= {
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": generation.completion_tokens,
            "choices": [
                {
                    "tokens": stream.completion_tokens,
                    "state": "finished" if stream.finished else stream.machine.state,
                    "held": len(stream.machine.held),
                }
                for stream in generation.streams
            ],
        }
    return told
