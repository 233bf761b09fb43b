"""Passthrough: what the engine and the client say to each other arrives byte for byte, however it is cut."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.rollout.trailers import TrailerScanner
from tests.rollout.wire import (
    OURS,
    Message,
    Reader,
    Writer,
    ask,
    chunked,
    pieces,
    read_body,
    request,
    until,
    upstream,
    write_all,
)
from tests.servers import Sidecar

DATA = Path(__file__).resolve().parent.parent / "data"
RECORDED = sorted(
    path
    for kind in ("coupled/*_chat_*.txt", "captures/rs033_*_chat_*.txt", "captures/tok033_err_*.txt")
    for path in DATA.glob(kind)
)
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def passing() -> Iterator[Callable[[str], Sidecar]]:
    """``passing(engine_url, **flags)``: a sidecar in passthrough mode; started ones are stopped at the end."""
    started: list[Sidecar] = []

    def start(url: str, **flags: object) -> Sidecar:
        sidecar = Sidecar(engine_url=url, ready=False, **{"mode": "passthrough", **flags})
        sidecar.start()
        started.append(sidecar)
        return sidecar

    yield start
    for sidecar in started:
        sidecar.stop()


def capture(path: Path) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """Request body, status line, headers and body of a recorded exchange."""
    raw = path.read_bytes().replace(b"\r\n", b"\n")  # heads are written with CRLF
    asked, _, answer = raw.partition(b"\n\nHTTP/1.1 ")
    head, _, body = answer.partition(b"\n\n")
    lines = head.split(b"\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
    return asked.split(b"\n>>> ", 1)[1], b"HTTP/1.1 " + lines[0], headers, body


def head_of(start: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([start, *(name + b": " + value for name, value in headers)]) + b"\r\n\r\n"


class Script:
    """Answers with what it has been given last, and keeps the bodies that came."""

    def __init__(self) -> None:
        self.answer: list[bytes] = []
        self.bodies: list[bytes] = []
        self.close = False

    async def __call__(self, asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        self.bodies.append(asked.body)
        await write_all(writer, self.answer, pauses=True)
        if self.close:
            writer.close()


async def test_recorded_exchanges(passing):
    """Every recorded answer, chunked at random where it was chunked; requests as recorded."""
    assert len(RECORDED) > 25
    rng, script = random.Random(1), Script()
    async with upstream(script) as engine:
        sidecar = passing(engine.url)
        for path in RECORDED:
            body, start, headers, answer = capture(path)
            by_length = any(name.lower() == b"content-length" for name, _ in headers)
            if by_length:
                headers = [
                    (name, b"%d" % len(answer) if name == b"content-length" else value) for name, value in headers
                ]
            framed = [answer] if by_length else chunked(pieces(answer, rng))
            script.answer = pieces(head_of(start, headers) + b"".join(framed), rng)
            got = await ask(
                sidecar.url, pieces(request(CHAT, body, headers=[(b"content-type", b"application/json")]), rng)
            )
            assert got.complete and got.body == answer, path.name
            assert got.start.split(b" ")[1] == start.split(b" ")[1]
            assert got.end_to_end(OURS) == Message(start, headers).end_to_end(), path.name
            assert got.all(b"x-derender-mode") == [b"passthrough"]
            assert script.bodies[-1] == body


async def test_generated_exchanges(passing):
    """Any status, headers, bytes and framing, in both directions."""
    rng, script = random.Random(2), Script()
    async with upstream(script) as engine:
        sidecar = passing(engine.url)
        for round_ in range(120):
            answer, body = (
                rng.randbytes(rng.choice((0, 1, 500, 70_000))),
                rng.randbytes(rng.choice((0, 3, 900, 150_000))),
            )
            headers = [
                (b"content-type", rng.choice((b"text/event-stream", b"application/octet-stream"))),
                (b"X-Twice", b"one"),
                (b"x-twice", b"two, three"),
                (b"Set-Cookie", b"a=1; Path=/"),
                (b"set-cookie", b"b=2"),
                (b"x-empty", b""),
                (b"date", b"Sun, 29 Nov 2026 13:35:09 GMT"),
                (b"Connection", b"x-hop"),
                (b"x-hop", b"for one connection"),
            ]
            if rng.random() < 0.3:
                answer = gzip.compress(answer)
                headers.append((b"content-encoding", b"gzip"))
            framing = rng.choice(("length", "chunked", "close"))
            sent = (
                headers
                + {
                    "length": [(b"content-length", b"%d" % len(answer))],
                    "chunked": [(b"transfer-encoding", b"chunked")],
                    "close": [(b"connection", b"close")],
                }[framing]
            )
            parts = pieces(answer, rng)
            trailers = rng.choice((b"", b"x-sum: 1\r\n", b"x-sum: 1\r\nx-other: 2\r\n"))
            status = rng.choice((200, 201, 400, 404, 422, 429, 500, 503))
            script.answer = pieces(
                head_of(b"HTTP/1.1 %d Whatever" % status, sent)
                + b"".join(chunked(parts, trailers) if framing == "chunked" else parts),
                rng,
            )
            script.close = framing == "close"
            upload = [(b"x-unknown", b"\xc3\xa9 kept"), (b"accept-encoding", b"gzip, br")]
            if rng.random() < 0.5 and body:
                asking = request(CHAT, headers=[*upload, (b"transfer-encoding", b"chunked")], length=False)
                asking += b"".join(chunked(pieces(body, rng)))
            else:
                asking = request(CHAT, body, headers=upload)
            got = await ask(sidecar.url, pieces(asking, rng))
            assert got.complete and got.status == status and got.body == answer, (round_, framing)
            expected = [item for item in sent if item[0].lower() != b"x-hop"]
            assert got.end_to_end(OURS) == Message(b"", expected).end_to_end()
            told_behind = b"".join(b"%b: %b\r\n" % item for item in got.trailers)
            assert told_behind == (trailers if framing == "chunked" else b"")
            assert script.bodies[-1] == body
            told = engine.asked[-1]
            assert told.all(b"x-unknown") == [b"\xc3\xa9 kept"] and told.all(b"accept-encoding") == [b"gzip, br"]


async def test_an_upload_is_handed_on_while_it_comes(passing):
    """The engine has the first part before the client has sent the last, and 20 MB arrive whole."""
    first_seen, finish = asyncio.Event(), asyncio.Event()
    size = 20 * 1024 * 1024

    async def handler(asked: Message, reader: Reader, writer: Writer) -> None:
        first = await reader.readexactly(1000)
        first_seen.set()
        rest = await reader.readexactly(size - 1000)
        answer = b"%d" % (len(first + rest) if not (first + rest).strip(b"x") else -1)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
        finish.set()

    async with upstream(handler) as engine:
        sidecar = passing(engine.url)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(sidecar.url.rpartition(":")[2]))
        head = request("/v1/audio/transcriptions", headers=[(b"content-length", b"%d" % size)], length=False)
        writer.write(head + b"x" * 5000)
        async with asyncio.timeout(5):
            await first_seen.wait()
        assert not finish.is_set()
        writer.write(b"x" * (size - 5000))
        answer = await reader.read(-1)
        writer.close()
    assert answer.endswith(b"%d" % size)


async def test_head_options_and_query(passing):
    async def handler(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        writer.write(b"HTTP/1.1 200 OK\r\nallow: POST\r\ncontent-length: 7\r\n\r\n")
        if not asked.start.startswith(b"HEAD"):
            writer.write(b"as told")

    async with upstream(handler) as engine:
        sidecar = passing(engine.url)
        for method in ("HEAD", "OPTIONS", "GET", "DELETE", "PUT"):
            got = await ask(sidecar.url, [request("/v1/embeddings?a=%20b&c", method=method)], method=method.encode())
            assert (got.status, got.all(b"content-length"), got.all(b"allow")) == (200, [b"7"], [b"POST"])
            assert got.body == (b"" if method == "HEAD" else b"as told")
            assert engine.asked[-1].start == f"{method} /v1/embeddings?a=%20b&c HTTP/1.1".encode()


async def test_trailers_in_both_directions(passing):
    """Those that frame or describe the message are dropped; connections are still good after them."""
    script = Script()
    async with upstream(script) as engine:
        sidecar = passing(engine.url)
        script.answer = [
            b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n",
            *chunked([b"all", b" of it"], b"X-Sum: 9\r\nx-empty:\r\ncontent-type: x/y\r\nx-sum: \xc3\xa9\r\n"),
        ]
        said = [(b"x-sum", b"9"), (b"x-empty", b""), (b"x-sum", b"\xc3\xa9")]
        for _ in range(2):
            got = await ask(sidecar.url, [request(CHAT, b"{}", headers=[(b"te", b"trailers")])])
            assert got.complete and got.body == b"all of it" and got.trailers == said
            assert got.all(b"trailer") == [b"x-sum"]
        told = engine.asked[-1]
        assert engine.connections <= 2 and told.all(b"te") == [b"trailers"] and told.all(b"connection") == [b"te"]

        for answer in (b"content-length: 2\r\n\r\nok", b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"):
            script.answer = [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + answer]
            sent = chunked([b"{", b"}"], b"x-check: 1\r\nauthorization: Bearer no\r\nhost: elsewhere\r\n")
            head = request(CHAT, headers=[(b"transfer-encoding", b"chunked")], length=False)
            for parts in ([head + b"".join(sent)], [head, *sent]):
                got = await ask(sidecar.url, parts)
                assert got.complete and got.body == b"ok" and got.trailers == []
                told = engine.asked[-1]
                assert told.body == b"{}" and not told.all(b"te") and told.complete
                assert told.trailers == [(b"x-check", b"1"), (b"authorization", b"Bearer no")]
                assert not told.all(b"x-check") and not told.all(b"authorization")


def test_trailers_are_found_however_the_bytes_are_cut():
    rng = random.Random(5)
    for _ in range(300):
        fields = [(b"x-%d" % n, b"%d" % rng.randrange(9)) for n in range(rng.randrange(3))]
        ended = b"".join(b"%b: %b\r\n" % field for field in fields)
        parts = [rng.choice((b"a", b"0\r\nx-no: 1\r\n\r\n", b"\n" * 300)) for _ in range(rng.randrange(4))]
        framing, body = rng.choice((
            (b"Transfer-Encoding: gzip, chunked", b"".join(chunked(parts, ended))),
            (b"content-length: 40", b"0\r\nx-no: 1\r\n\r\n"),
            (b"x-none: 1", b"0\r\nx-no: 1\r\n\r\n"),
        ))  # fmt: skip
        raw = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * rng.randrange(2)
        raw += b"HTTP/1.1 200 OK\r\n" + framing + b"\r\nx-other: 0\r\n\r\n" + body
        scanner = TrailerScanner()
        for piece in pieces(raw, rng, 40):
            scanner.feed(piece)
        assert scanner.fields == (fields if b"chunked" in framing else []), raw
    without_body = TrailerScanner(has_body=False)
    without_body.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: 1\r\n\r\n")
    assert without_body.fields == []


async def test_who_leaves_takes_the_other_along(passing):
    """A client that goes: the engine's connection is closed. An engine that breaks off: the client's is cut."""
    closed = asyncio.Event()

    async def endless(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked([b"data: 1\n\n"])[0])
        if b"break off" in asked.body:
            await asyncio.sleep(0.05)
            writer.transport.abort()
            return
        await reader.read(1)
        closed.set()
        writer.close()

    async with upstream(endless) as engine:
        sidecar = passing(engine.url)
        where = int(sidecar.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
        writer.write(request(CHAT, b"{}"))
        await reader.readuntil(b"data: 1\n\n")
        writer.close()
        async with asyncio.timeout(2):
            await closed.wait()
        got = await ask(sidecar.url, [request(CHAT, b"break off")])
        assert not got.complete and got.body == b"data: 1\n\n"
    await until(lambda: sidecar.parts.metrics.client_disconnects == 1)
    assert sidecar.parts.metrics.engine_errors["eof"] == 1


async def test_a_client_that_leaves_before_the_answer(passing):
    closed = asyncio.Event()

    async def silent(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        await reader.read(1)
        closed.set()
        writer.close()

    async with upstream(silent) as engine:
        sidecar = passing(engine.url)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(sidecar.url.rpartition(":")[2]))
        writer.write(request(CHAT, b"{}"))
        await until(lambda: bool(engine.asked))
        writer.close()
        async with asyncio.timeout(2):
            await closed.wait()


async def test_a_kept_connection_that_was_closed_is_no_failure(passing):
    """The engine closes idle connections; a request written into one is sent once more."""

    async def once(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        if len(engine.asked) % 2:
            await reader.readexactly(1)  # the next request on this connection is dropped without an answer
            writer.transport.abort()

    async with upstream(once) as engine:
        sidecar = passing(engine.url)
        for _ in range(4):
            assert (await ask(sidecar.url, [request(CHAT, b"{}")])).body == b"ok"


async def test_websockets_are_refused_plainly(passing):
    async with upstream(Script()) as engine:
        sidecar = passing(engine.url)
        upgrade = [(b"upgrade", b"websocket"), (b"sec-websocket-key", b"x"), (b"sec-websocket-version", b"13")]
        for path in ("/v1/realtime", CHAT):
            got = await ask(sidecar.url, [request(path, method="GET", headers=upgrade)], method=b"GET")
            assert got.status == 501 and b"WebSocket" in got.body
        assert not engine.asked


NEVER = (
    "/abort_requests", "/inference/v1/abort_requests", "/v1/responses/r1/cancel", "/metrics/x", "/sleep",
    "/v1/load_lora_adapter", "/v1/chat/../../abort_requests", "/v1/chat/completions/..%2f..%2f..%2fabort_requests",
    "/v1/audio/%2e%2e/x", "//v1/embeddings", "/v1/embeddings;x", "/unknown",
)  # fmt: skip


async def test_what_is_never_relayed(passing):
    async with upstream(Script()) as engine:
        sidecar = passing(engine.url, rollout={"allow": ["/v1/embeddings", "/v1/audio/*", "/v1/chat/*"]})
        for path in NEVER:
            got = await ask(sidecar.url, [request(path, b"{}")])
            assert got.status == 404 and not engine.asked, path


async def test_credentials(passing):
    """The client's key stays here unless it is to go along; the engine's own is sent."""
    script = Script()
    script.answer = [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]
    key = [(b"authorization", b"Bearer client")]
    async with upstream(script) as engine:
        for flags, expected in (
            ({}, []),
            ({"engine_api_key": "e"}, [b"Bearer e"]),
            ({"rollout": {"forward-authorization": True}}, [b"Bearer client"]),
            ({"rollout": {"forward-authorization": True}, "engine_api_key": "e"}, [b"Bearer client"]),
        ):
            sidecar = passing(engine.url, **flags)
            await ask(sidecar.url, [request(CHAT, b"{}", headers=[*key, (b"x-request-id", b"mine")])])
            assert engine.asked[-1].all(b"authorization") == expected
            (sent,) = engine.asked[-1].all(b"x-request-id")
            assert sent.startswith(b"mine-") and len(sent) == len(b"mine-") + 16


async def test_an_engine_that_is_not_there(passing):
    sidecar = passing("http://127.0.0.1:9")
    got = await ask(sidecar.url, [request(CHAT, b"{}")])
    assert got.status == 503 and b'"ServiceUnavailableError"' in got.body


async def test_limits_hold_for_bodies_that_are_passed(passing):
    async with upstream(Script()) as engine:
        sidecar = passing(engine.url, max_body_size=10_000)
        body = request(CHAT, headers=[(b"transfer-encoding", b"chunked")], length=False)
        got = await ask(sidecar.url, [body + b"".join(chunked([b"x" * 4000] * 3)[:-1])])  # and would go on
        assert got.status == 413


async def test_a_client_that_takes_nothing_is_dropped(passing):
    closed = asyncio.Event()

    async def flood(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            closed.set()

    async with upstream(flood) as engine:
        sidecar = passing(engine.url, client_stall_timeout=0.5)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(sidecar.url.rpartition(":")[2]), limit=1024)
        writer.write(request(CHAT, b"{}"))
        await reader.readexactly(10)
        async with asyncio.timeout(5):
            await closed.wait()
        writer.close()


async def test_several_engines(passing):
    """The least loaded takes the request, and one that cannot be reached is passed over."""
    gate = asyncio.Event()

    def engine(name: bytes):
        async def handler(asked: Message, reader: Reader, writer: Writer) -> None:
            await read_body(reader, asked, to_end=False)
            if b"wait" in asked.body:
                await gate.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + name)

        return handler

    async with upstream(engine(b"a")) as one, upstream(engine(b"b")) as two:
        sidecar = passing(f"http://127.0.0.1:9,{one.url},{two.url}")
        slow = [asyncio.create_task(ask(sidecar.url, [request(CHAT, b'"wait"')])) for _ in range(6)]
        await until(lambda: len(one.asked) == len(two.asked) == 3)
        gate.set()
        assert sorted([(await task).body for task in slow]) == [b"a"] * 3 + [b"b"] * 3
        for _ in range(6):
            assert (await ask(sidecar.url, [request(CHAT, b"{}")])).body in (b"a", b"b")
        assert all(member.running == 0 for member in sidecar.parts.engine.members)


async def test_the_end_of_a_drain(passing):
    """A relayed stream that outlives the drain ends as the others do, and the engine is let go."""
    closed = asyncio.Event()

    async def endless(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + chunked([b"data: 1\n\n"])[0])
        await reader.read(1)
        closed.set()
        writer.close()

    async with upstream(endless) as engine:
        sidecar = passing(engine.url)
        asked = asyncio.create_task(ask(sidecar.url, [request(CHAT, b"{}")]))
        await until(lambda: bool(engine.asked) and len(sidecar.parts.drain.open) == 1)
        await asyncio.sleep(0.1)
        sidecar.parts.drain.hurry()
        got = await asked
        async with asyncio.timeout(2):
            await closed.wait()
    assert got.complete and got.body.startswith(b"data: 1\n\ndata: {") and got.body.endswith(b"data: [DONE]\n\n")
    assert b"shutting down" in got.body
