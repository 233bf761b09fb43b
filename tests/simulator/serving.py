"""The simulated engine under uvicorn on a free port, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from proxy.simulator import Options, create_app

MODEL = str(Path(__file__).parents[2] / "config" / "demo-model")


@contextlib.asynccontextmanager
async def simulator(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a simulator started for this test; the URL is its ``base_url``."""
    app = create_app(Options(**{"model": MODEL, **options}))
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False, verify=False) as client:
            yield client
    finally:
        # What uvicorn's shutdown does, without its pause of 0.1 s for each test.
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        async with asyncio.timeout(5):
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
