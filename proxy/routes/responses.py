"""How answers leave: the SSE response, and waiting for work while watching whether the client is still there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TypeVar

from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.errors import RequestError, UpstreamError, body_of
from proxy.observe.metrics import Histogram
from proxy.routes.generation import Generation
from proxy.routes.sse_chunks import KEEP_ALIVE

T = TypeVar("T")

# sse-starlette ends every open stream at SIGTERM; ours run on until they are done or the server's deadline.
AppStatus.enable_automatic_graceful_drain = False

SSE_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete."""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_client_leaves(receive: Receive, work: asyncio.Future[T], timeout: float | None = None) -> bool:
    """Wait until ``work`` is done (True) or ``timeout`` seconds have passed (False).

    Raises ClientLeft, with ``work`` cancelled, when the client goes away first. To be called once the request's
    body has been read.
    """
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((work, watch), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return True
        if watch.done():
            raise ClientLeft
        return False
    except BaseException:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait((work,), timeout=1.0)
        raise
    finally:
        watch.cancel()


class JsonBytes(Response):
    """A JSON body that is already encoded."""

    media_type = "application/json"


def error_response(error: RequestError | UpstreamError) -> Response:
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    if error.status in (429, 503):
        headers.setdefault("retry-after", "1")
    return JsonBytes(body_of(error), status_code=error.status, headers=headers)


class Stream(EventSourceResponse):
    """sse-starlette's response with its hot path replaced.

    Per block it would log, open a cancel scope for a send timeout and encode; that is 3 to 6 us, more than
    everything else here together. Blocks come as bytes of whole frames, so they are sent as they are; the timeout
    for clients that take nothing and the keep-alive comments (sent only when a stream is idle) share one timer.
    Its watcher for server shutdown is left out: draining is the server's.
    """

    def __init__(
        self,
        blocks: AsyncGenerator[bytes, None],
        generation: Generation,
        *,
        keep_alive: float,
        stall_timeout: float,
        added_latency: Histogram,
        on_end: Callable[[bool], None],
    ) -> None:
        super().__init__(blocks, headers=SSE_HEADERS, sep="\n", ping=stall_timeout)
        self._blocks = blocks
        self._generation = generation
        self._keep_alive = keep_alive
        self._stall_timeout = stall_timeout
        self._added = added_latency
        self._on_end = on_end
        self._sending = False
        self._since = 0.0  # perf_counter at which the send under way began, or the last one ended
        self._complete = False
        self._stalled = False

    async def _stream_response(self, send: Send) -> None:
        now = time.perf_counter
        observe = self._added.observe
        generation = self._generation
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._since = now()
        async for block in self._blocks:
            self._sending = True
            self._since = now()
            await send({"type": "http.response.body", "body": block, "more_body": True})
            self._sending = False
            self._since = sent = now()
            if generation.received_at:
                observe(sent - generation.received_at)
                generation.received_at = 0.0
        self._complete = True
        self.active = False
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        """The one timer of a stream. Returning tears the response down."""
        now = time.perf_counter
        tick = min(self._keep_alive or self._stall_timeout, self._stall_timeout)
        while self.active:
            idle = now() - self._since
            if self._sending and idle >= self._stall_timeout:
                self._stalled = True
                return
            if not self._sending and self._keep_alive and idle >= self._keep_alive:
                self._since = now()
                message = {"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True}
                try:
                    await asyncio.wait_for(send(message), self._stall_timeout)
                except TimeoutError:
                    self._stalled = True
                    return
                idle = 0.0
            limit = self._stall_timeout if self._sending else self._keep_alive or self._stall_timeout
            await asyncio.sleep(min(tick, max(limit - idle, 0.001)))

    async def _listen_for_exit_signal_with_grace(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, scope.get("derender.send", send))
        finally:
            self._generation.release()
            self._on_end(self._complete)
            transport = scope.get("derender.transport")
            if self._stalled and transport is not None:
                transport.abort()
                await asyncio.sleep(0)  # the server notes it, and does not complain about an unfinished answer
            # A generator that was never started has nothing to run, one that was left at a yield has its clean-up.
            with contextlib.suppress(Exception):
                await self._blocks.aclose()


async def run_unless_client_leaves(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of ``work``, or ClientLeft."""
    task = asyncio.get_running_loop().create_task(work)
    await unless_client_leaves(receive, task)
    return task.result()
