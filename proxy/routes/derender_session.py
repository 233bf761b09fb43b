"""A streaming session: engine events in, chat chunks out, one request per stream.

For clients that can hold a connection. What remains of a chunk's cost once the parser is kept is its HTTP exchange and
the state that it carries; here neither exists. The body is the engine's stream, behind an opening that says what it is
an answer to; the answer is what ``/v1/chat/completions`` would have streamed, ready to be passed on.

    content-type: text/event-stream                      content-type: application/x-ndjson

    data: {"chat_request": {...}, "prompt_token_ids": [...]}     {"chat_request": {...}, "prompt_token_ids": [...]}
    <blank line>                                         {"request_id": "...", "choices": [...]}
    <the engine's bytes, as they come, [DONE] included>  ...

The opening may also have ``model``, ``prompt_tokens`` and ``created`` (0 if it has not: no clock is asked, so that a
session repeated gives the same bytes). Reading and answering go on at the same time: a client that sends everything
first gets its answer behind that, as long as it fits the bound on what waits for it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Protocol

from starlette.types import Message, Receive, Scope, Send

from proxy.derender.stream import ChatStream
from proxy.engines.events import decode_event
from proxy.engines.sse import EventTooLarge, SSEDecoder
from proxy.errors import DONE, RequestError, UpstreamError, error_event
from proxy.observe import logs
from proxy.observe.logs import Record
from proxy.protocol import derender as wire
from proxy.protocol.derender import NULL
from proxy.protocol.generate import GenerateEvent, Usage
from proxy.routes.context import Parts, record_of
from proxy.routes.derender_tier import PARSER_NEEDS_PROMPT, PARSER_NEEDS_REQUEST, Asked
from proxy.routes.responses import SSE_HEADERS, ClientLeft
from proxy.routes.sse_chunks import ChatChunks, usage_bytes

MEDIA_TYPES = (b"text/event-stream", b"application/x-ndjson", b"application/ndjson")
# Bytes of the answer that may wait for the client; beyond them nothing more is read from it.
MAX_WAITING = 4 * 1024 * 1024
# Below this the server's own buffer takes a block without making us wait (uvicorn pauses at 64 KiB).
INLINE_BUFFER = 32 * 1024
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")] + [
    (name.encode(), value.encode()) for name, value in SSE_HEADERS.items()
]


class Lines:
    """NDJSON, cut anywhere: whole lines out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes. Raises EventTooLarge."""
        *lines, self._partial = (self._partial + chunk).split(b"\n") if self._partial else chunk.split(b"\n")
        if len(self._partial) > self._limit:
            raise EventTooLarge(self._limit, lines)
        return [line for line in lines if not line.isspace() and line]

    @property
    def pending(self) -> bytes:
        """A last line without its end."""
        return self._partial.strip()


class _Decoder(Protocol):
    def feed(self, chunk: bytes) -> list[bytes]: ...


class Session:
    """The derendering of one session; pure but for opening streams. ``feed`` takes an event, ``out`` collects bytes."""

    def __init__(self, parts: Parts, opening: wire.SessionOpening, model: str, asked: Asked) -> None:
        tier = parts.tier
        prompt = bytes(opening.prompt_token_ids)
        if tier.derenderer.parses:
            if bytes(opening.chat_request) == NULL:
                raise RequestError(PARSER_NEEDS_REQUEST, param="chat_request")
            if prompt == NULL:
                raise RequestError(PARSER_NEEDS_PROMPT, param="prompt_token_ids")
        self._prompt = [] if prompt == NULL else wire.parse_ids(prompt, "prompt_token_ids", tier.vocab_size)
        self._tier = tier
        self._model = model
        self._asked = asked
        self._limit = parts.models.max_model_len
        self._room = sys.maxsize if self._limit is None else self._limit - len(self._prompt)
        self._most_logprobs = parts.settings.max_logprobs
        self._reasoning_field = parts.settings.reasoning_field
        self._prompt_tokens = opening.prompt_tokens
        self._created = opening.created or 0
        self._chunks: ChatChunks | None = None
        self._streams: dict[int, ChatStream] = {}
        self._taken: dict[int, int] = {}
        self.tokens = 0
        wire.check_length(len(self._prompt), 0, 0, self._limit, "prompt_token_ids")

    def feed(self, event: GenerateEvent, out: list[bytes]) -> None:
        """Append to ``out`` what ``event`` says. RequestError for what no engine sends."""
        if event.error is not None:
            code = event.error.code
            status = code if isinstance(code, int) else 500
            raise UpstreamError(event.error.message, status=status, type=event.error.type, kind="error_event")
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = ChatChunks(
                event.request_id or "",
                self._model,
                self._created,
                self._asked.n,
                reasoning_field=self._reasoning_field,
                token_ids=self._asked.return_token_ids,
            )
        for choice in event.choices:
            stream = self._streams.get(choice.index) or self._open(choice.index, event.request_id or "", chunks, out)
            ids = choice.token_ids or []
            taken = self._taken[choice.index] + len(ids)
            self._taken[choice.index] = taken
            wire.check_ids(ids, "choices.token_ids", self._tier.vocab_size)
            if taken > self._room:
                wire.check_length(len(self._prompt), taken - len(ids), len(ids), self._limit, "choices.token_ids")
            logprobs = choice.logprobs.content if choice.logprobs is not None else None
            if logprobs:
                wire.check_logprobs(logprobs, "choices.logprobs", len(ids), self._most_logprobs, self._tier.vocab_size)
            self.tokens += len(ids)
            deltas = stream.feed(ids, choice.finish_reason, choice.stop_reason, logprobs)
            if deltas:
                chunks.add(out, choice.index, deltas)
        if event.usage is not None and not event.choices:
            out.append(chunks.usage(self._usage(event.usage)))

    def _open(self, index: int, request_id: str, chunks: ChatChunks, out: list[bytes]) -> ChatStream:
        if not 0 <= index < self._asked.n:
            raise RequestError(f"`choices.index` must be below n ({self._asked.n}).", param="choices.index")
        stream = self._tier.derenderer.chat(
            self._asked.shown, request_id=request_id, prompt_token_ids=self._prompt, index=index
        )
        self._streams[index] = stream
        self._taken[index] = 0
        out.append(chunks.role(index))
        return stream

    def _usage(self, usage: Usage) -> bytes:
        prompt = usage.prompt_tokens if self._prompt_tokens is None else self._prompt_tokens
        return usage_bytes(prompt, usage.completion_tokens or 0)

    def end(self) -> None:
        """No more events come. Raises UpstreamError where a choice has not ended: that is no clean end."""
        if not self._streams or not all(stream.finished for stream in self._streams.values()):
            raise UpstreamError("The engine's stream ended before all choices had.", kind="eof")


async def serve(parts: Parts, scope: Scope, receive: Receive, send: Send, media: bytes) -> None:
    """Run one session. Faults before the first event are raised; later ones are an event and ``[DONE]``."""
    record = record_of(scope)
    record.stream = True
    limit = parts.settings.max_event_size
    decoder: _Decoder = SSEDecoder(limit) if media == MEDIA_TYPES[0] else Lines(limit)
    waiting: list[bytes] = []
    reader = _Reader(decoder)
    events = reader.take(await receive())
    while not events and reader.more:
        events = reader.take(await receive())
    if not events:
        reader.check()
        raise RequestError("The body is empty: its first event says what the stream is an answer to.")
    opening = wire.parse_opening(events[0])
    asked = parts.tier.asked_chat(opening.chat_request)
    model, _ = await parts.models.resolve(opening.model)
    record.model = model
    session = Session(parts, opening, model, asked)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    outbox = _Outbox(send, scope.get("derender.transport"))
    try:
        events = events[1:]
        while True:
            done = _feed(session, events, waiting)
            if waiting:
                block = waiting[0] if len(waiting) == 1 else b"".join(waiting)
                waiting.clear()
                if outbox.idle:
                    await send({"type": "http.response.body", "body": block, "more_body": True})
                else:
                    outbox.put(block)
            if done or not reader.more:
                break
            if outbox.size > MAX_WAITING:
                await outbox.drained(parts.settings.client_stall_timeout)
            events = reader.take(await receive())
        reader.check()
        if not done and isinstance(decoder, Lines) and decoder.pending:
            _feed(session, [decoder.pending], waiting)
        session.end()
        waiting.append(DONE)
    except ClientLeft:
        outbox.cancel()
        raise
    except Exception as error:
        waiting.append(error_event(_told(error, record)))
    finally:
        record.completion_tokens = session.tokens
        parts.metrics.tokens["completion"] += session.tokens
    outbox.put(b"".join(waiting))
    await outbox.drained(parts.settings.client_stall_timeout)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _feed(session: Session, events: list[bytes], out: list[bytes]) -> bool:
    """Feed decoded lines; True at ``[DONE]``."""
    for line in events:
        if line == b"[DONE]":
            return True
        session.feed(decode_event(line), out)
    return False


def _told(error: Exception, record: Record) -> RequestError | UpstreamError | None:
    if isinstance(error, RequestError | UpstreamError):
        record.code = error.status
        record.error = error.kind if isinstance(error, UpstreamError) else None
        return error
    logs.failure(error, record)
    record.code, record.error = 500, "internal"
    return None


class _Reader:
    """Events of the body, message by message; ``more``: there may be further ones."""

    def __init__(self, decoder: _Decoder) -> None:
        self._decoder = decoder
        self._too_large = False
        self.more = True

    def take(self, message: Message) -> list[bytes]:
        """What one message completes; raises ClientLeft."""
        if message["type"] != "http.request":
            raise ClientLeft
        self.more = message.get("more_body", False)
        try:
            return self._decoder.feed(message.get("body", b""))
        except EventTooLarge as error:  # told behind what was completed before it
            self._too_large, self.more = True, False
            return error.events

    def check(self) -> None:
        """Raise what ended the reading before its time."""
        if self._too_large:
            raise RequestError("An event of the body is too large (--max-event-size).", status=413)


class _Outbox:
    """Sends so that a client that does not read yet does not stop us from reading.

    While it is ``idle`` blocks may be sent past it; what is ``put`` is sent by a task, which waits for the client.
    """

    def __init__(self, send: Send, transport: Any) -> None:
        self._send = send
        self._transport = transport
        self._parts: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self.size = 0  # bytes handed to the task

    @property
    def idle(self) -> bool:
        """Whether a block may be sent right away: the server's buffer has room, and nothing waits in front of it."""
        if self._task is not None or self._transport is None:
            return False
        return bool(self._transport.get_write_buffer_size() < INLINE_BUFFER)

    def put(self, block: bytes) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._parts.append(block)
        self.size += len(block)

    async def _run(self) -> None:
        try:
            while self._parts:
                block = b"".join(self._parts)
                self._parts.clear()
                await self._send({"type": "http.response.body", "body": block, "more_body": True})
                self.size -= len(block)
        finally:
            self._task = None

    async def drained(self, patience: float) -> None:
        """Wait until all has been sent; raises ClientLeft where the client takes nothing for ``patience`` seconds."""
        while self._task is not None:
            before = self._left()
            done, _ = await asyncio.wait((self._task,), timeout=patience)
            if not done and self._left() == before:
                self.cancel()
                if self._transport is not None:
                    self._transport.abort()
                raise ClientLeft

    def _left(self) -> tuple[int, int]:
        return self.size, 0 if self._transport is None else self._transport.get_write_buffer_size()

    def cancel(self) -> None:
        """The client has gone: what waits for it is of no use."""
        if self._task is not None:
            self._task.cancel()
