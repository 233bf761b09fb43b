"""The yardstick: the sidecar's own server, client and response class, with nothing between them but bytes."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from proxy.engines.transport import EngineClient
from proxy.observe.metrics import Metrics
from proxy.routes.responses import Stream


class Nothing:
    """What the response class asks of a generation, for one that has no parser."""

    received_at = 0.0

    def release(self) -> None:
        pass


def app(engine: str) -> Router:
    client: list[EngineClient] = []
    metrics = Metrics()

    async def relay(request: Request) -> Response:
        body = await request.body()
        if not client:
            client.append(EngineClient(engine, api_key=None, connect_timeout=5))
        url = client[0].url("/inference/v1/generate")

        async def blocks() -> AsyncGenerator[bytes, None]:
            answer = await client[0].post(url, body, {"content-type": "application/json"})
            raw = answer.extensions["aiohttp"]
            try:
                while block := await raw.content.readany():
                    yield block
            finally:
                raw.close()

        return Stream(
            blocks(),
            Nothing(),  # type: ignore[arg-type]
            keep_alive=15.0,
            stall_timeout=60.0,
            added_latency=metrics.added_latency,
            on_end=lambda complete: None,
        )

    return Router(routes=[Route("/v1/chat/completions", relay, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(
        app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), loop="uvloop", http="httptools", log_config=None
    )
