"""One client request on its way: its engine requests, one parser for each choice, and where their deltas go.

The only loop between engine and client. It pulls: nothing is read from the engine before the client has taken
what the last read gave, so a slow client costs no memory here. Chat has one engine request, a completion one for
each prompt; choices are numbered flat over them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from proxy.derender.deltas import Delta
from proxy.derender.stream import ChatStream
from proxy.engines.base import Engine, EngineStream, GenerateRequest
from proxy.errors import RequestError, UpstreamError
from proxy.observe import logs
from proxy.observe.logs import Record
from proxy.observe.metrics import Metrics
from proxy.protocol.generate import GenerateChoice, GenerateEvent

Sink = Callable[[int, list[Delta], ChatStream], None]

# Closing a connection must outlive the handler that asked for it: a cancelled task can wait for nothing.
_closing: set[asyncio.Task[None]] = set()


class ChoiceFailed(Exception):
    """Our own code failed on a choice; logged where it happened."""


@dataclass(eq=False, slots=True)
class Source:
    """One engine request and the streams of its choices, of which ``first`` is the number of the first."""

    request: GenerateRequest
    streams: list[ChatStream]
    first: int = 0
    cached_tokens: int | None = None
    answer: GenerateEvent | None = None  # the whole answer, where the engine was asked for it in one piece
    running: EngineStream | None = None
    live: set[int] = field(init=False)  # choices that have not ended
    cut: bool = False  # a stop string ended a choice here, while the engine may go on

    def __post_init__(self) -> None:
        self.live = set(range(len(self.streams)))


class Generation:
    """Drives ``sources`` and gives every delta to ``sink`` (choice number, deltas, stream of the choice)."""

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[Source],
        sink: Sink,
        *,
        record: Record,
        metrics: Metrics,
        started: float,
        whole: bool = False,
    ) -> None:
        self._engine = engine
        self._sources = list(sources)
        self._open = list(sources)
        self._sink = sink
        self._record = record
        self._metrics = metrics
        self._started = started  # perf_counter at which the client's request arrived
        self._whole = whole
        record.watched = self  # for as long as the request runs
        self._now = time.perf_counter  # uvloop's own clock counts whole milliseconds
        self._last = 0.0
        self._pending: dict[asyncio.Task[list[GenerateEvent] | None], Source] = {}
        self._broken = False
        self._released = False
        self.received_at = 0.0  # perf_counter of the engine read whose bytes are now being sent, 0: none

    async def pull(self) -> bool:
        """Take one network read and feed it. False when there is nothing more; raises UpstreamError, ChoiceFailed."""
        if not self._open:
            return self._end()
        if len(self._sources) > 1:
            await self._pull_any()
            return True
        source = self._open[0]
        running = source.running
        if running is None:
            self._feed(source, await self._read(source))
            return True
        try:
            events = await running.__anext__()
        except StopAsyncIteration:
            self._open.clear()
        else:
            self._feed(source, events)
        return True

    async def run(self) -> None:
        """Take all there is."""
        try:
            while await self.pull():
                pass
            await self.close()
        finally:
            self.release()

    def _end(self) -> bool:
        if self._broken:
            raise ChoiceFailed
        return False

    async def _read(self, source: Source) -> list[GenerateEvent] | None:
        """The next events of one engine request, None at its end."""
        if self._whole:
            source.answer = await self._engine.generate_full(source.request)
            return [source.answer]
        if source.running is None:
            stream = self._engine.generate(source.request)
            await stream.__aenter__()
            source.running = stream
        return await anext(source.running, None)

    async def _pull_any(self) -> None:
        waiting = set(self._pending.values())
        for source in self._open:
            if source not in waiting:
                self._pending[asyncio.ensure_future(self._read(source))] = source
        done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
        failure: BaseException | None = None
        for task in done:
            source = self._pending.pop(task)
            error = task.exception()
            if error is None:
                self._feed(source, task.result())
            else:
                failure = failure or error
        if failure is not None:
            raise failure

    def _feed(self, source: Source, events: list[GenerateEvent] | None) -> None:
        if events is None:
            self._open.remove(source)
            return
        running = source.running
        now = self._now()
        self.received_at = running.read_at if running is not None else 0.0
        tokens = 0
        for event in events:
            if event.usage is not None and event.usage.prompt_tokens_details is not None:
                source.cached_tokens = event.usage.prompt_tokens_details.cached_tokens
            for choice in event.choices:
                if choice.token_ids:
                    tokens += len(choice.token_ids)
                if choice.index >= len(source.streams):
                    raise UpstreamError("The engine answered for a choice that was not asked for.", kind="protocol")
                self._feed_choice(source, choice)
        if tokens:
            self._measure(tokens, now)
        if self._whole or (not source.live and source.cut):
            # Nothing that the engine may still say is wanted; leaving its stream aborts the request.
            self._open.remove(source)
            if running is not None and not running.ended:
                self._close_later(running)
                source.running = None

    def _feed_choice(self, source: Source, choice: GenerateChoice) -> None:
        stream = source.streams[choice.index]
        if choice.index not in source.live:
            return
        if choice.finish_reason == "error":
            raise UpstreamError("The engine failed on this request.", status=500, kind="error_event")
        logprobs = choice.logprobs.content if choice.logprobs is not None else None
        try:
            deltas = stream.feed(choice.token_ids or [], choice.finish_reason, choice.stop_reason, logprobs)
        except Exception as error:  # a fault in a parser ends its choice, and no other; it is told at the end
            logs.failure(error, self._record)
            self._broken = True
            source.live.discard(choice.index)
            source.cut = True
            return
        if deltas:
            self._sink(source.first + choice.index, deltas, stream)
        if stream.finished:
            source.live.discard(choice.index)
            source.cut = source.cut or stream.stopped

    def _measure(self, tokens: int, now: float) -> None:
        metrics = self._metrics
        metrics.tokens["completion"] += tokens
        if self._last:
            metrics.inter_token.observe((now - self._last) / tokens, tokens)
        else:
            self._record.ttft = now - self._started
            metrics.time_to_first_token.observe(now - self._started)
        self._last = now

    async def close(self) -> None:
        """Give back the connections of streams that have been read to their end."""
        for source in self._sources:
            if source.running is not None:
                running, source.running = source.running, None
                await running.__aexit__(None, None, None)

    def release(self) -> None:
        """Let go of everything, at once and from any state: what still runs at the engine is aborted."""
        if self._released:
            return
        self._released = True
        for task in self._pending:
            task.cancel()
        for source in self._sources:
            if source.running is not None:
                self._close_later(source.running)
                source.running = None
        if self._pending:
            _background(self._close_pending())

    async def _close_pending(self) -> None:
        """A cancelled read may have entered its stream in the same breath."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        await self.close()

    def _close_later(self, running: EngineStream) -> None:
        async def close() -> None:
            await running.__aexit__(None, None, None)

        _background(close())

    @property
    def streams(self) -> list[ChatStream]:
        """Those of all choices, in their order."""
        return [stream for source in self._sources for stream in source.streams]

    def finish_record(self) -> None:
        """Enter the counts of this request into its access line and the metrics."""
        record, metrics = self._record, self._metrics
        if record.trace is not None:
            record.trace.engine_ended()
        streams = self.streams
        record.prompt_tokens = self.prompt_tokens
        record.completion_tokens = self.completion_tokens
        metrics.tokens["prompt"] += self.prompt_tokens
        metrics.tokens["reasoning"] += sum(stream.reasoning_tokens for stream in streams)
        metrics.tokens["cached"] += self.cached_tokens or 0

    @property
    def prompt_tokens(self) -> int:
        return sum(len(source.request.token_ids) for source in self._sources)

    @property
    def completion_tokens(self) -> int:
        return sum(stream.completion_tokens for source in self._sources for stream in source.streams)

    @property
    def reasoning_tokens(self) -> int:
        return sum(stream.reasoning_tokens for source in self._sources for stream in source.streams)

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the engine had cached; None where it does not tell."""
        told = [source.cached_tokens for source in self._sources if source.cached_tokens is not None]
        return sum(told) if told else None


def _background(work: Coroutine[None, None, None]) -> None:
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(_quietly(work))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _quietly(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except (UpstreamError, OSError):
        pass  # the connection is gone, which is what was wanted
    except Exception as error:
        logs.failure(error)


async def finish_closing(limit: float = 5.0) -> None:
    """Wait for connections still being closed, for at most ``limit`` seconds; called before the engine is closed."""
    if _closing:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait(set(_closing), timeout=limit)


def failure_of(error: BaseException, record: Record, metrics: Metrics) -> RequestError | UpstreamError | None:
    """What a client may be told of a failure: None for one of ours. Counts and records it."""
    if isinstance(error, UpstreamError):
        record.error = error.kind
        record.code = error.status
        metrics.engine_errors[error.kind] += 1
        return error
    if isinstance(error, RequestError):
        record.code = error.status
        return error
    if not isinstance(error, ChoiceFailed):
        logs.failure(error, record)
    record.error = "internal"
    record.code = 500
    return None
