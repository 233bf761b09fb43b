"""uvicorn's server with a drain in place of its shutdown, and a second port for those who look after it.

uvicorn closes its listener at SIGTERM, before any gateway can have heard of it. Here the signals begin the drain and
nothing else; the listener stays open, for the window and then for probes and refusals, until no stream is left or the
deadline has passed. SIGINT is somebody at a terminal: no window, and the second one ends at once. SIGHUP reads the
configuration file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from types import FrameType

import uvicorn

from proxy.serving.drain import Drain
from proxy.serving.tls import TLS

log = logging.getLogger("derender")

TICK = 0.1  # seconds


class Server(uvicorn.Server):
    """Serves until a signal and the end of the drain that it begins, or until ``should_exit`` is set (no window).

    ``admin``: what is served, without TLS, at the last of the sockets that ``run`` gets. ``tls``: for the others.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        *,
        reload: Callable[[], Awaitable[None]] | None = None,
        admin: uvicorn.Config | None = None,
        tls: TLS | None = None,
    ) -> None:
        super().__init__(config)
        self._admin = admin
        self._tls = tls
        self.drain = drain
        self.leaving = False  # a signal has come: once the drain is over, so is the process
        self.parent: int | None = None  # its end is a signal too
        self._reload = reload
        self._reloading: asyncio.Task[None] | None = None
        self._hangups = 0
        self._told = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._admin is None or not sockets:
            await super().startup(sockets)
        else:
            await super().startup(sockets[:-1])
            config = self._admin
            config.load()

            def protocol() -> asyncio.Protocol:
                made = config.http_protocol_class(
                    config=config, server_state=self.server_state, app_state=self.lifespan.state
                )  # type: ignore[call-arg]
                return made

            loop = asyncio.get_running_loop()
            self.servers.append(await loop.create_server(protocol, sock=sockets[-1], backlog=config.backlog))
        if self._tls is not None:
            await self._tls.start()

    async def main_loop(self) -> None:
        counter = 0
        while not self._done():
            counter += 1
            await super().on_tick(counter)
            self._reread()
            await asyncio.sleep(TICK)
        log.info("stopped", extra={"fields": {"open": len(self.drain.open), "seconds": round(self.drain.elapsed, 1)}})

    def _done(self) -> bool:
        drain = self.drain
        if self.should_exit:
            self.leaving = True
            drain.begin(window=0.0)
        if self.parent is not None and os.getppid() != self.parent:
            self.leaving = True
            drain.begin()
        if drain.begun and not self._told:
            self._told = True
            log.info("draining", extra={"fields": {"open": len(drain.open)}})
        if cut := drain.tick():
            log.warning("streams ended by the shutdown timeout", extra={"fields": {"open": cut}})
        return self.leaving and drain.over

    def _reread(self) -> None:
        if self._hangups and self._reload is not None and (self._reloading is None or self._reloading.done()):
            self._hangups = 0
            self._reloading = asyncio.ensure_future(self._reload())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.should_exit = True
        if self._tls is not None:
            await self._tls.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        # Whoever has started this process may have held them back until somebody listens.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Only notes it: this runs between two instructions of whatever was running."""
        if sig == signal.SIGHUP:
            self._hangups += 1
            return
        if sig == signal.SIGINT and self.leaving:
            self.drain.hurry()
        self.leaving = True
        self.drain.begin(window=0.0 if sig == signal.SIGINT else None)
