"""A streamed answer over HTTP and SSE, whatever the dialect: reading, timeouts, ends good and bad, aborting.

Rules:

1. ``[DONE]`` alone is not success, since it follows errors too, and its absence alone is not a failure: a stream ends
   well once every choice has finished. Anything else is an ``eof`` failure, never a clean end.
2. HTTP 200 means nothing until the first event. A fault in the stream is raised after what was decoded before it has
   been handed out, so that the first step raises exactly when nothing has come.
3. An engine goes on generating for nobody unless told: leaving early closes the connection *and* sends the abort.
4. Timeouts cost a flag and a clock reading per network read. One lazy timer per stream looks at them, where
   ``asyncio.timeout`` would set and cancel a timer for each read. Time in which nobody reads (a slow client) is not
   the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

import aiohttp
import httpx

from proxy.engines import failures, transport
from proxy.engines.base import EngineStream
from proxy.engines.sse import EventTooLarge, SSEDecoder
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Seconds (0: for ever) and bytes. The first-token timeout runs from sending; comments break silence only."""

    first_token_timeout: float
    idle_timeout: float
    max_event_bytes: int


class HTTPStream(EngineStream):
    """One streamed request.

    ``send`` sends it and gives the response with its status checked (UpstreamError otherwise). ``decode`` reads one
    event's data. ``abort`` tells the engine to stop, given its own id of the request where an event has told it.
    """

    def __init__(
        self,
        *,
        choices: int,
        send: Callable[[], Awaitable[httpx.Response]],
        decode: Callable[[bytes], GenerateEvent],
        abort: Callable[[str | None], None],
        limits: StreamLimits,
    ) -> None:
        self.engine_request_id: str | None = None
        self._send = send
        self._decode = decode
        self._abort = abort
        self._limits = limits
        self._frames = SSEDecoder(limits.max_event_bytes)
        self._unfinished = set(range(choices))
        self._raw: aiohttp.ClientResponse | None = None
        self._reader: aiohttp.StreamReader | None = None
        self._let_go: Callable[[aiohttp.ClientResponse], None] = aiohttp.ClientResponse.close
        self._failure: UpstreamError | None = None  # for the next step
        self._started = False  # the first event has come
        self._over = False  # nothing more to read, well or not
        self._running = False  # the engine may be at work on it
        self._waiting = False  # for the network
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> HTTPStream:
        self._sent_at = self.received_at = self._loop.time()
        self._running = True
        try:
            async with asyncio.timeout(self._limits.first_token_timeout or None):
                response = await self._send()
        except UpstreamError:  # refused: nothing runs
            self._running = False
            raise
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:  # asyncio's TimeoutError is an OSError
            failure = failures.from_exception(error)
            self._running = failure.kind not in ("connect", "timeout_connect")
            self._leave()
            raise failure from error
        except BaseException:  # cancelled, and __aexit__ will not be called
            self._leave()
            raise
        self._raw = response.extensions["aiohttp"]
        self._let_go = response.extensions["let_go"]
        self._reader = self._raw.content
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """Nothing here waits, so that a cancelled task leaves as cleanly as any other."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._raw is not None:
            if self.ended:
                self._let_go(self._raw)
            else:
                self._raw.close()
        if self._running:
            self._running = False
            self._abort(self.engine_request_id)

    async def __anext__(self) -> list[GenerateEvent]:
        reader = self._reader
        if reader is None:
            raise RuntimeError("the stream has not been entered")
        while not self._over:
            self._waiting = True
            try:
                chunk = await reader.readany()
            except UpstreamError as error:  # put there by the timer
                self._fail(error)
                break
            except (aiohttp.ClientError, OSError) as error:
                events = self._accept(transport.unread(reader))
                if self._unfinished:
                    self._fail(failures.from_exception(error, sent=True))
                else:
                    self._finish()
                if events:
                    return events
                break
            finally:
                self._waiting = False
            self.received_at = self._loop.time()
            self.read_at = perf_counter()
            if not chunk:
                self._finish()
                break
            events = self._accept(chunk)
            if events:
                return events
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        raise StopAsyncIteration

    def _accept(self, chunk: bytes) -> list[GenerateEvent]:
        """The events that ``chunk`` completes; a fault among them is kept for the next step."""
        too_large = False
        try:
            frames = self._frames.feed(chunk)
        except EventTooLarge as error:
            frames, too_large = error.events, True
        events: list[GenerateEvent] = []
        unfinished = self._unfinished
        for raw in frames:
            if raw == b"[DONE]":
                self._finish()
                break
            try:
                event = self._decode(raw)
            except UpstreamError as error:
                self._fail(error)
                break
            if event.error is not None:
                self._running = False  # the engine has given up by itself
                self._fail(failures.from_event(event.error))
                break
            for choice in event.choices:
                if choice.finish_reason is not None or choice.index not in unfinished:
                    self._settle(event)
                    break
            events.append(event)
        if too_large:
            self._fail(UpstreamError("The engine sent an event that is too large.", status=502, kind="too_large"))
        if events and not self._started:
            self._started = True
            self.engine_request_id = events[0].request_id
            self._arm()
        return events

    def _settle(self, event: GenerateEvent) -> None:
        """Note who has finished; drop what is said of a choice after its finish, or of one not asked for."""
        kept = []
        for choice in event.choices:
            if choice.index in self._unfinished:
                kept.append(choice)
                if choice.finish_reason is not None:
                    self._unfinished.discard(choice.index)
        event.choices = kept

    def _finish(self) -> None:
        """The engine says that it is done, or its response has ended."""
        if self._unfinished:
            self._fail(UpstreamError("The engine's stream ended before its answer did.", status=502, kind="eof"))
        elif not self._over:
            self._over = self.ended = True
            self._running = False

    def _fail(self, failure: UpstreamError) -> None:
        if not self._over:
            self._over = True
            self._failure = failure

    def _arm(self) -> None:
        """Set the timer to the end of the present phase."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limits = self._limits
        if not self._started and limits.first_token_timeout:
            self._timer = self._loop.call_at(self._sent_at + limits.first_token_timeout, self._on_timer)
        elif self._started and limits.idle_timeout:
            self._timer = self._loop.call_at(self.received_at + limits.idle_timeout, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._over or self._reader is None:
            return
        now = self._loop.time()
        if not self._waiting:
            self._sent_at = self.received_at = now
        elif not self._started:
            self._wake(UpstreamError("The engine gave no token in time.", status=504, kind="timeout_first_token"))
            return
        elif now >= self.received_at + self._limits.idle_timeout:
            self._wake(UpstreamError("The engine fell silent.", status=504, kind="timeout_idle"))
            return
        self._arm()

    def _wake(self, failure: UpstreamError) -> None:
        """End the read in progress with ``failure``."""
        if self._reader is not None:
            self._reader.set_exception(failure)
