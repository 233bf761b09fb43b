"""One request of the simulated engine, from its query to the last byte, with every fault on the way.

Runs on raw ASGI: one ``send`` per event (or per ``burst`` of events), nothing in between but the pauses asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import Any

from starlette.types import Message, Receive, Send

from proxy.simulator.frames import DONE, Writer
from proxy.simulator.model import Model
from proxy.simulator.script import NEWLINES, Answer, Behaviour, answers
from proxy.simulator.validation import Query, Refusal

JSON_HEADERS = [(b"content-type", b"application/json")]
SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
# Sends without a pause before others, and the notice that the client has left, get their turn.
SENDS_PER_TURN = 32
COMMENT = b": keep-alive\n\n"


class Broken(Exception):
    """The connection has been given up; nothing more can be sent."""


class Run:
    """A request at work. ``record`` is what ``/simulator/requests`` shows of it."""

    def __init__(
        self,
        *,
        query: Query,
        behaviour: Behaviour,
        engine_id: str,
        model: Model,
        record: dict[str, Any],
        writer: Writer,
    ) -> None:
        self.query = query
        self.behaviour = behaviour
        self.engine_id = engine_id
        self.model = model
        self.record = record
        self.stopped: str | None = None  # "close" or "route": who has ended it
        self._sleeper: asyncio.Future[None] | None = None
        self._closing = False  # all is said: a client that leaves now has not left early
        self.writer = writer

    def stop(self, how: str) -> None:
        """End it early; the first cause counts."""
        if self.stopped is None and not self._closing:
            self.stopped = self.record["aborted"] = how
            self.record["aborted_at"] = time.time()
            if self._sleeper is not None and not self._sleeper.done():
                self._sleeper.set_result(None)

    async def pause(self, seconds: float | None) -> None:
        """Wait, for ever if ``seconds`` is None; shorter when stopped."""
        if self.stopped is not None:
            return
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _wake, self._sleeper)
        await self._sleeper
        if timer is not None:
            timer.cancel()

    async def answer(self, receive: Receive, send: Send) -> None:
        """The whole answer."""
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            if self.behaviour.fault == "http":
                await self._refuse(send)
            elif self.query.stream:
                await self._stream(send)
            else:
                await self._full(send)
        except Broken:
            pass
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            self.record["ended"] = time.time()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.stop("close")

    async def _refuse(self, send: Send) -> None:
        behaviour = self.behaviour
        await self.pause(behaviour.fault_delay)
        refusal = self._failure()
        body = self.writer.error_body(refusal) if behaviour.fault_body is None else behaviour.fault_body.encode()
        await respond(send, behaviour.fault_status, body)

    def _failure(self) -> Refusal:
        behaviour = self.behaviour
        kinds = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}
        kind = kinds.get(behaviour.fault_status, "InternalServerError")
        return Refusal(behaviour.fault_message, status=behaviour.fault_status, kind=kind)

    async def _full(self, send: Send) -> None:
        query, behaviour = self.query, self.behaviour
        if query.late is not None:
            await respond(send, query.late.status, self.writer.error_body(query.late))
            return
        told = answers(behaviour, query, self.model)
        events = sum(len(answer.lengths) for answer in told)
        seconds = behaviour.ttft + behaviour.itl * events + behaviour.fault_delay
        if seconds > 0 or behaviour.fault == "stall":
            await self.pause(None if behaviour.fault == "stall" else seconds)
        if self.stopped == "close":
            return
        if self.stopped == "route" or behaviour.fault == "abort":
            told = [Answer([], "abort", None, []) for _ in told]
        self._closing = True
        if behaviour.fault in ("first_event", "error_event"):
            await respond(send, behaviour.fault_status, self.writer.error_body(self._failure()))
            return
        if behaviour.fault in ("reset", "close"):
            self._break(send)
        self.record["tokens"] = sum(len(answer.ids) for answer in told)
        self.record["finish"] = [answer.finish_reason for answer in told]
        prompt_logprobs = query.params.get("prompt_logprobs")
        await respond(send, 200, self.writer.full(self.engine_id, self.model.names[0], told, prompt_logprobs))

    async def _stream(self, send: Send) -> None:
        query, behaviour = self.query, self.behaviour
        if behaviour.fault == "slow_headers":
            await self.pause(behaviour.fault_delay)
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        if query.late is not None or behaviour.fault == "first_event":
            event = self.writer.error_event(query.late or self._failure())
            await send(_body(event + DONE, more=False))
            return
        if behaviour.ttft > 0 or behaviour.comments:
            await self.pause(behaviour.ttft)
            for _ in range(behaviour.comments):
                await self._write(send, COMMENT)
                await self.pause(behaviour.itl)
        told = answers(behaviour, query, self.model)
        self.record["finish"] = [answer.finish_reason for answer in told]
        await self._events(send, told)
        self._closing = True
        await send(_body(b"", more=False))

    async def _events(self, send: Send, told: list[Answer]) -> None:
        """All events, interleaved over the choices, up to the fault if there is one."""
        behaviour, head = self.behaviour, self.writer.head(self.engine_id)
        tails = [self.writer.tails(index, answer) for index, answer in enumerate(told)]
        order = [
            (index, at) for at in range(max(map(len, tails))) for index in range(len(tails)) if at < len(tails[index])
        ]
        counts = [0] * len(told)
        if self._plain():
            await self._at_full_speed(send, head, [tails[index][at] for index, at in order], order, told)
            return
        faulty = behaviour.fault in _IN_STREAM
        burst, sent, turns = behaviour.burst, 0, 0
        while sent < len(order):
            upto = min(sent + burst, len(order))
            if faulty and sent <= behaviour.fault_after <= upto:
                upto = behaviour.fault_after
            part = order[sent:upto]
            if part:
                await self._write(send, head + head.join([tails[index][at] for index, at in part]))
            for index, at in part:
                lengths = told[index].lengths
                if at < len(lengths):
                    counts[index] += lengths[at]
            self.record["tokens"], self.record["events"] = sum(counts), upto
            sent = upto
            if faulty and sent == behaviour.fault_after:
                faulty = False
                if await self._fault(send, head, tails, order[sent:], counts):
                    return
            turns += 1
            if behaviour.itl > 0 and sent < len(order):
                await self.pause(behaviour.itl)
            elif turns % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)
            if self.stopped is not None:
                await self._aborted(send, head, counts, order[sent:])
                return
        await self._end(send, head, counts)

    def _plain(self) -> bool:
        behaviour = self.behaviour
        return not (behaviour.itl or behaviour.fault or behaviour.comment_every or behaviour.newline != "lf")

    async def _at_full_speed(
        self, send: Send, head: bytes, tails: list[bytes], order: list[tuple[int, int]], told: list[Answer]
    ) -> None:
        """No pauses, no faults: the benchmarks' way. Nobody looks at a stream in between, so nothing is counted."""
        burst, turns = self.behaviour.burst, 0
        message = {"type": "http.response.body", "body": b"", "more_body": True}
        for at in range(0, len(tails), burst):
            message["body"] = head + (tails[at] if burst == 1 else head.join(tails[at : at + burst]))
            await send(message)
            turns += 1
            if turns % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)
                if self.stopped is not None:
                    self.record["events"] = at + burst
                    counts = [0] * len(told)
                    for index, part in order[: at + burst]:
                        counts[index] += told[index].lengths[part] if part < len(told[index].lengths) else 0
                    self.record["tokens"] = sum(counts)
                    await self._aborted(send, head, counts, order[at + burst :])
                    return
        counts = [len(answer.ids) for answer in told]
        self.record["tokens"], self.record["events"] = sum(counts), len(tails)
        await self._end(send, head, counts)

    async def _end(self, send: Send, head: bytes, counts: list[int]) -> None:
        fault = self.behaviour.fault
        last = b""
        if self.query.include_usage and fault != "no_usage":
            last = head + self.writer.usage_tail(counts)
        await self._write(send, last + (b"" if fault == "no_done" else DONE))

    async def _aborted(self, send: Send, head: bytes, counts: list[int], rest: list[tuple[int, int]]) -> None:
        if self.stopped == "close":
            raise Broken
        for index in sorted({index for index, _ in rest}):
            await self._write(send, head + self.writer.abort_tail(index, counts[index]))
        await self._end(send, head, counts)

    async def _fault(
        self, send: Send, head: bytes, tails: list[list[bytes]], rest: list[tuple[int, int]], counts: list[int]
    ) -> bool:
        """Play the fault; whether the stream is over."""
        behaviour = self.behaviour
        if behaviour.fault_delay > 0:
            await self.pause(behaviour.fault_delay)
        match behaviour.fault:
            case "error_event":
                await self._write(send, self.writer.error_event(self._failure()) + DONE)
            case "reset" | "close":
                # What has been sent is to arrive first: a reset drops what the kernel still holds.
                await asyncio.sleep(0.02)
                self._break(send)
            case "half_frame":
                half = head + (tails[rest[0][0]][rest[0][1]] if rest else b"")
                await self._write(send, half[: len(half) // 2])
            case "done_early":
                await self._write(send, DONE)
            case "garbage":
                await self._write(send, b"data: {garbage\n\n")
                return False
            case "stall":
                await self.pause(None)
                await self._aborted(send, head, counts, rest)
            case "abort":
                self.stopped = "engine"
                await self._aborted(send, head, counts, rest)
        return True

    def _break(self, send: Send) -> None:
        """Cut the connection: with RST for ``reset``, without the end of the HTTP message for ``close``."""
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is None:
            raise RuntimeError("this server does not show its connection; run the simulator under uvicorn")
        raw = transport.get_extra_info("socket")
        if self.behaviour.fault == "reset" and raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        raise Broken

    async def _write(self, send: Send, data: bytes) -> None:
        behaviour = self.behaviour
        if behaviour.comment_every:
            self.record["writes"] = self.record.get("writes", 0) + 1
            if self.record["writes"] % behaviour.comment_every == 0:
                data = COMMENT + data
        if behaviour.newline != "lf":
            data = data.replace(b"\n", NEWLINES[behaviour.newline])
        if data:
            await send(_body(data, more=True))


_IN_STREAM = frozenset(
    {"error_event", "reset", "close", "eof", "half_frame", "done_early", "garbage", "stall", "abort"}
)


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


async def respond(send: Send, status: int, body: bytes) -> None:
    """A JSON answer in one piece."""
    headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
