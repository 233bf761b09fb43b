"""``GET /debug/shadow``: the last answers in which the shadow differed from what the client got, oldest first."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.routes.context import call_of
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps


async def shadow(request: Request) -> Response:
    rollout = call_of(request).parts.rollout
    counters = rollout.counters
    return JsonBytes(
        dumps(
            {
                "compared": counters.compared,
                "mismatch": counters.mismatch,
                "skipped": counters.skipped,
                "dropped": counters.dropped,
                "samples": list(rollout.shadow.samples),
            }
        )
    )
