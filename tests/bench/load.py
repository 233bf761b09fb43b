"""The load of the gateway benchmark: an engine that knows when it sent each event, and clients that count.

Both live in one process, so that what lies between a send and its arrival at the client is the server under test
and two sockets. The engine speaks just enough of the generate dialect; its frames are made before the clock runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"connection: keep-alive\r\n\r\n"
)


def frame(ids: Sequence[int], finish: str | None = None) -> bytes:
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": list(ids),
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        "logprobs": None,
    }
    event = {"request_id": "generate-tokens-bench", "usage": None, "output_mode": "tokens", "choices": [choice]}
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass
class Plan:
    """What the engine sends on each stream: ``frames``, one each ``interval`` seconds (0: as fast as it is taken)."""

    frames: list[bytes]
    interval: float = 0.0
    hold_after: int = 0  # then fall silent, with the stream open (0: never)


@dataclass
class Engine:
    """A token-only engine for one model.

    ``sent``: when each event left, of the streams whose request holds ``watched`` (None: of all).
    """

    plan: Plan
    port: int = 0
    server: asyncio.Server | None = None
    sent: list[float] = field(default_factory=list)
    watched: bytes | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self.server is not None
        self.stopping.set()
        self.server.close()
        await asyncio.sleep(0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _content_length(head)
                body = await reader.readexactly(length) if length else b""
                if head.startswith(b"GET /v1/models"):
                    card = {"id": "bench", "object": "model", "max_model_len": 1 << 20}
                    _json(writer, {"object": "list", "data": [card]})
                elif b"/generate " in head.split(b"\r\n", 1)[0]:
                    await self._stream(writer, self.watched is None or self.watched in body)
                else:
                    _json(writer, {})
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):  # uvloop: the client has gone
            pass
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, watched: bool) -> None:
        plan = self.plan
        writer.write(HEAD)
        if not plan.interval and not plan.hold_after:
            block = 64
            for at in range(0, len(plan.frames), block):
                writer.write(chunked(b"".join(plan.frames[at : at + block])))
                await writer.drain()
        else:
            begin = time.perf_counter()
            for n, item in enumerate(plan.frames):
                if plan.hold_after and n == plan.hold_after:
                    await self.stopping.wait()
                    return
                delay = begin + n * plan.interval - time.perf_counter()
                if delay > 0:
                    await asyncio.sleep(delay)
                if watched:
                    self.sent.append(time.perf_counter())
                writer.write(chunked(item))
        writer.write(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _json(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)


class Client(asyncio.Protocol):
    """One request; counts bytes, and notes when each read came and how many events it brought."""

    def __init__(self, request: bytes, timed: bool) -> None:
        self._request = request
        self._timed = timed
        self.events = 0
        self.arrivals: list[tuple[float, int]] = []
        self.status = b""
        self._tail = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self.status = data[:15]
        count = (self._tail + data).count(b"\n\n")
        self._tail = data[-1:]
        self.events += count
        if self._timed and count:
            self.arrivals.append((time.perf_counter(), count))
        if b"data: [DONE]" in data and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def request(port: int, path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return (
        b"POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % (path.encode(), port, len(data))
    ) + data


async def opened(port: int, path: str, body: dict[str, Any], count: int, timed: bool = False) -> list[Client]:
    """Open ``count`` streams at once."""
    loop = asyncio.get_running_loop()
    data = request(port, path, body)
    made = []
    for _ in range(count):
        _, client = await loop.create_connection(lambda: Client(data, timed), "127.0.0.1", port)
        made.append(client)
    return made
