"""HTTP by hand, on both sides of the sidecar: what was sent, byte by byte, and what arrived."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.servers import Sidecar

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Header = tuple[bytes, bytes]

# What a sidecar sets itself, and what belongs to one connection.
OURS = frozenset({b"x-request-id", b"x-derender-mode"})
PER_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade"})


@dataclass
class Message:
    """A request or an answer. ``start``: its first line; ``complete``: it came to its end."""

    start: bytes
    headers: list[Header]
    body: bytes = b""
    complete: bool = True
    trailers: list[Header] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def end_to_end(self, without: frozenset[bytes] = frozenset()) -> list[Header]:
        """The headers that are not for one connection, sorted."""
        dropped = PER_CONNECTION | without
        return sorted((name.lower(), value) for name, value in self.headers if name.lower() not in dropped)


async def read_head(reader: Reader) -> Message:
    lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
    return Message(lines[0], headers)


async def read_body(reader: Reader, message: Message, *, to_end: bool) -> None:
    """The body by its framing; ``to_end``: without any, it lasts as long as the connection."""
    try:
        if b"chunked" in b",".join(message.all(b"transfer-encoding")).lower():
            # int() of the empty line that a broken connection gives is a ValueError
            while size := int((await reader.readline()).split(b";")[0], 16):
                message.parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            while line := (await reader.readline()).strip():
                name, _, value = line.partition(b":")
                message.trailers.append((name.lower(), value.strip()))
        elif message.all(b"content-length"):
            message.parts.append(await reader.readexactly(int(message.all(b"content-length")[0])))
        elif to_end:
            message.parts.append(await reader.read(-1))
    except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
        message.complete = False
        if isinstance(error, asyncio.IncompleteReadError):
            message.parts.append(error.partial)
    message.body = b"".join(message.parts)


def pieces(data: bytes, rng: random.Random, most: int = 8) -> list[bytes]:
    """``data`` cut at random."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(0, most)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if end > start]


def chunked(parts: list[bytes], trailers: bytes = b"") -> list[bytes]:
    """The parts as HTTP chunks, and the end."""
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] + [b"0\r\n" + trailers + b"\r\n"]


async def write_all(writer: Writer, parts: list[bytes], *, pauses: bool = False) -> None:
    for part in parts:
        writer.write(part)
        await writer.drain()
        if pauses:
            await asyncio.sleep(0)


async def ask(url: str, parts: list[bytes], *, method: bytes = b"POST") -> Message:
    """Write a raw request and read the answer."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=2**26)
    try:
        await write_all(writer, parts, pauses=True)
        message = await read_head(reader)
        if method != b"HEAD" and message.status not in (204, 304):
            await read_body(reader, message, to_end=True)
        return message
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(
    path: str, body: bytes = b"", *, method: str = "POST", headers: list[Header] | None = None, length: bool = True
) -> bytes:
    """A request in one piece."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"host: here", b"connection: close"]
    lines += [name + b": " + value for name, value in headers or []]
    if length and (body or method == "POST"):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until ``true``."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 (other threads know of no event of this loop)
            await asyncio.sleep(0.01)


Handler = Callable[[Message, Reader, Writer], Awaitable[None]]


@dataclass
class Upstream:
    """An engine of scripted bytes: ``handler`` gets the request's head and does the rest."""

    url: str = ""
    asked: list[Message] = field(default_factory=list)
    connections: int = 0


@contextlib.asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[Upstream]:
    told = Upstream()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: Reader, writer: Writer) -> None:
        told.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                message = await read_head(reader)
                if b"/v1/models" in message.start or b"/health" in message.start:
                    answer = b'{"object":"list","data":[{"id":"demo","max_model_len":4096}]}'
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
                    continue
                if b"/completions/render" in message.start:  # asked by sidecars that find out what an engine can do
                    await read_body(reader, message, to_end=False)
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                told.asked.append(message)
                await handler(message, reader, writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**26)
    told.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield told
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def sidecar_for(url: str, **flags: object) -> AsyncIterator[Sidecar]:
    """A sidecar before an engine that runs in this event loop, which starting one must not block."""
    sidecar = Sidecar(engine_url=url, ready=False, **flags)
    sidecar.start()
    try:
        await until(lambda: sidecar.parts.models.known)
        yield sidecar
    finally:
        await asyncio.to_thread(sidecar.stop)
