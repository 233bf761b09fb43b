"""A raw HTTP/1.1 server on a free port that plays scripted bytes, read by read, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.engines.vllm import VLLMEngine, VLLMOptions

Step = bytes | float | str  # bytes to write; seconds to wait; "close" (FIN), "reset" (RST)

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Asked:
    """One request as it came. ``left``: the client closed the connection before the answer's end."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse(*reads: bytes, end: bool = True) -> list[Step]:
    """An event stream, each of ``reads`` as one HTTP chunk in one write."""
    steps: list[Step] = [SSE_HEAD]
    for read in reads:
        steps += [http_chunk(read), 0.0]
    return [*steps, b"0\r\n\r\n"] if end else steps


def plain(status: int, body: bytes | str | dict[str, Any], reason: str = "X") -> list[Step]:
    if isinstance(body, dict):
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return [head.encode() + data]


def event(*ids: int, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "finish_reason": finish, "stop_reason": None, "token_ids": list(ids), "logprobs": None}
    body = {"request_id": "generate-tokens-r", "usage": None, "output_mode": "tokens", "choices": [choice], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class RawServer:
    """Answers every request with what ``answer`` says of it."""

    def __init__(self, answer: Callable[[Asked], list[Step]]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.connections = 0
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def wait_for(self, path: str, count: int = 1, timeout: float = 5.0) -> list[Asked]:
        """The requests to ``path``, once there are ``count`` of them."""
        async with asyncio.timeout(timeout):
            while len(found := [asked for asked in self.asked if asked.path == path]) < count:
                self._changed.clear()
                await self._changed.wait()
        return found

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        if (task := asyncio.current_task()) is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer, number):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, body, number)
        self.asked.append(asked)
        self._changed.set()
        for step in self.answer(asked):
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif step == "close":
                return False
            elif step == "reset":
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            elif await self._pause(reader, float(step)):
                asked.left.set()
                return False
        return True

    @staticmethod
    async def _pause(reader: asyncio.StreamReader, seconds: float) -> bool:
        """Wait; whether the client closed the connection meanwhile."""
        if seconds == 0.0:
            await asyncio.sleep(0)
            return reader.at_eof()
        gone = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait([gone], timeout=seconds)
        if done:
            return True
        gone.cancel()
        await asyncio.wait([gone])  # the reader is free again only then
        return False


@contextlib.asynccontextmanager
async def serving(answer: Callable[[Asked], list[Step]]) -> AsyncIterator[RawServer]:
    raw = RawServer(answer)
    server = await asyncio.start_server(raw.handle, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()
        for task in list(raw.tasks):
            task.cancel()
        await asyncio.gather(*raw.tasks, return_exceptions=True)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def engine_for(url: str, **options: Any) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(VLLMOptions(url=url, **options))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
