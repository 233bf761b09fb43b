"""Runs the simulated engine under uvicorn."""

from __future__ import annotations

import socket

import uvicorn

from proxy.simulator.app import create_app
from proxy.simulator.options import Options


class _Server(uvicorn.Server):
    """Says where it listens once it does, for those who asked for a free port."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                print(f"simulated engine listening on http://{host}:{port}", flush=True)


def run(options: Options) -> None:
    """Serve until a signal. Raises OSError or ValueError for a model or script that cannot be read."""
    config = uvicorn.Config(
        create_app(options),
        host=options.host,
        port=options.port,
        log_level=options.log_level,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    _Server(config).run()
