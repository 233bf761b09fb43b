"""The engine's own endpoints, byte for byte: what the engine would have answered without this proxy in between.

Rules:

1. The body is not touched, in either direction, and neither is what the engine wrote about it: status, headers,
   content-encoding, SSE framing. Left out are the headers of one connection only (RFC 9110, 7.6.1); the request id is
   ours; of two ``date`` headers the engine's is kept.
2. Nothing is stored. A body that has come whole is sent as it is (and once more, if a kept connection turns out to be
   closed); a longer one is handed on piece by piece. A slow reader on one side slows down the other.
3. Whoever leaves takes the other side along: a client that goes closes the connection to the engine, which aborts
   there; an engine whose answer breaks off has the client's connection cut, since a clean end would be a lie.
4. Trailers go through, in both directions, but for those that frame or describe the message. The engine is told that
   they are welcome (``te``) where the client says so.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import yarl
from multidict import CIMultiDict
from starlette.types import Message, Receive, Scope, Send

from proxy.engines import failures
from proxy.engines.transport import KEEP_ALIVE_SECONDS, READ_BUFFER_BYTES
from proxy.errors import RequestError, UpstreamError
from proxy.observe.logs import Record
from proxy.observe.metrics import Metrics
from proxy.rollout.canary import MODE_HEADER
from proxy.rollout.trailers import Connector, Response, Upload, end_to_end
from proxy.serving.protocol import end_with

HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
# Ours to say to the engine, or already answered here.
_NOT_FORWARDED = frozenset({b"host", b"expect", b"authorization", MODE_HEADER.encode()})
ANSWER_SECONDS = 3600.0  # to the status line; an answer in one piece has it at its end
MAX_HELD_BYTES = 256 * 1024 * 1024  # of an answer in one piece that a tap rewrites
Headers = list[tuple[bytes, bytes]]


class Tap(Protocol):
    """Listens to an answer on its way and may rewrite it. Must not raise."""

    def start(self, status: int, headers: Headers) -> bool:
        """Whether the answer is to be held until its end, its length being set anew."""

    def feed(self, data: bytes) -> bytes:
        """What to send now; the rest is held back until more comes."""

    def end(self) -> bytes:
        """What is still to be sent."""


class Target(Protocol):
    """One engine of several. ``running``: requests under way there, which the relay counts with."""

    url: str
    running: int


class Targets(Protocol):
    """Several engines: the one to ask next, None when all are in ``without``."""

    def choose(self, without: Sequence[Any] = ()) -> Target | None: ...


@dataclass(slots=True)
class _Only:
    """The engine where there is but one."""

    url: str
    running: int = 0

    def choose(self, without: Sequence[Any] = ()) -> Target | None:
        return None if without else self


@dataclass(frozen=True)
class RelayOptions:
    """``url``: the engine's, without a slash at its end. ``stall_timeout`` (seconds): for clients that take nothing."""

    url: str
    api_key: str | None = None
    connect_timeout: float = 5.0
    stall_timeout: float = 60.0
    request_id_header: str = "x-request-id"


class Relay:
    """Relays requests to one engine, or to the least loaded of ``targets``."""

    def __init__(self, options: RelayOptions, metrics: Metrics, targets: Targets | None = None) -> None:
        self.options = options
        self.targets: Targets = targets or _Only(options.url)
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=Connector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ttl_dns_cache=10),
            response_class=Response,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.options.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        record: Record,
        forward_authorization: bool = False,
        body: bytes | None = None,
        path: bytes | None = None,
        tap: Tap | None = None,
    ) -> None:
        """Relay one request. ``body``: it, if it has been read; ``path``: another than the request's.

        Raises UpstreamError where no answer has begun, and RequestError where ``receive`` does.
        """
        exchange = _Exchange(self, scope, receive, send, record, tap)
        work = asyncio.ensure_future(exchange.run(body, path, forward_authorization))
        watch = asyncio.ensure_future(exchange.watch())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            watch.result()
            record.code = 499
            self._metrics.client_disconnects += 1
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def status_of(self, path: str, body: bytes) -> int:
        """The HTTP status of the engine's answer to a POST. Raises UpstreamError."""
        headers = {"content-type": "application/json"}
        if self.options.api_key:
            headers["authorization"] = f"Bearer {self.options.api_key}"
        target = self.targets.choose()
        url = self.options.url if target is None else target.url
        try:
            async with self.session.post(url + path, data=body, headers=headers) as response:
                return response.status
        except (aiohttp.ClientError, OSError) as error:
            raise failures.from_exception(error) from error

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP client. Raises RuntimeError before ``start`` and after ``close``."""
        if self._session is None:
            raise RuntimeError("the relay is not started")
        return self._session

    def request_headers(
        self, scope: Scope, record: Record, *, sized: bool, plain: bool, authorization: bool
    ) -> CIMultiDict[str]:
        """Headers for the engine. ``sized``: the client library sets the body's length; ``plain``: no compression."""
        given: Headers = scope["headers"]
        dropped = _of_connection(given) | _NOT_FORWARDED | {self.options.request_id_header.lower().encode()}
        if sized:
            dropped |= {b"content-length"}
        if plain:
            dropped |= {b"accept-encoding"}
        headers: CIMultiDict[str] = CIMultiDict()
        for name, value in given:
            if name.lower() not in dropped or (authorization and name == b"authorization"):
                headers.add(name.decode("latin-1"), _text(value))
        if any(name == b"te" and b"trailers" in value.lower() for name, value in given):
            headers["te"] = "trailers"
            headers["connection"] = "te"
        if self.options.api_key and not (authorization and "authorization" in headers):
            headers["authorization"] = f"Bearer {self.options.api_key}"
        # A random part, as on the other path: nobody may abort another's request by choosing its id.
        headers[self.options.request_id_header] = f"{record.id}-{secrets.token_hex(8)}"
        if record.trace is not None:
            record.trace.to_engine(headers)
        return headers


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, relay: Relay, scope: Scope, receive: Receive, send: Send, record: Record, tap: Tap | None
    ) -> None:
        self._relay = relay
        self._scope = scope
        self._receive = receive
        self._send = send
        self._record = record
        self._tap = tap
        self._uploaded = asyncio.Event()
        self._failed_upload: RequestError | None = None
        self._target: Target | None = None
        self._sending_since = 0.0  # perf_counter; 0: no send is under way

    async def run(self, body: bytes | None, path: bytes | None, authorization: bool) -> None:
        if body is None:
            body, more = await self._first_part()
        else:
            more = False
        if not more:
            self._uploaded.set()
        began = time.perf_counter()
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._ask(body, more, path, authorization)
            self._record.ttft = time.perf_counter() - began
            await self._answer(response)
        finally:
            if self._target is not None:
                self._target.running -= 1
            if response is not None:
                # Not read to its end: closing is what tells the engine to stop.
                if not response.content.is_eof():
                    response.close()
                else:
                    response.release()

    async def watch(self) -> None:
        """Return when the client has left, or takes nothing for too long."""
        await self._uploaded.wait()
        left = asyncio.ensure_future(self._left())
        limit = self._relay.options.stall_timeout
        try:
            while not left.done():
                await asyncio.wait((left,), timeout=limit / 4)
                if self._sending_since and time.perf_counter() - self._sending_since > limit:
                    await self._cut()
                    return
        finally:
            left.cancel()

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _first_part(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            # ``watch`` is not waiting yet; let it see what there is to see.
            self._uploaded.set()
            await asyncio.sleep(3600)
        return message.get("body", b""), bool(message.get("more_body"))

    async def _upload(self, first: bytes, more: bool) -> AsyncGenerator[bytes, None]:
        if first:
            yield first
        while more:
            try:
                message: Message = await self._receive()
            except RequestError as error:  # a body that exceeds the limit while it comes
                self._failed_upload = error
                raise
            if message["type"] == "http.disconnect":
                self._uploaded.set()
                await asyncio.sleep(3600)  # until ``watch`` has ended all this
            more = bool(message.get("more_body"))
            if message.get("body"):
                yield message["body"]
        self._uploaded.set()

    async def _ask(self, body: bytes, more: bool, path: bytes | None, authorization: bool) -> aiohttp.ClientResponse:
        relay, scope = self._relay, self._scope
        trailers: Headers = scope.get("derender.trailers", [])  # more may come with the end of the body
        sized = not more and not end_to_end(trailers)
        headers = relay.request_headers(
            scope, self._record, sized=sized, plain=self._tap is not None, authorization=authorization
        )
        where = path if path is not None else scope.get("raw_path") or scope["path"].encode()
        if path is None and scope["query_string"]:
            where += b"?" + scope["query_string"]
        tried: list[Target] = []
        failure: BaseException | None = None
        stale = False
        while stale or self._choose(tried):
            assert self._target is not None
            url = yarl.URL(self._target.url + where.decode("latin-1"), encoded=True)
            data: Upload | bytes | None = body or None
            if not sized:
                data = Upload(self._upload(body, more), trailers)
            if data is None and scope["method"] == "POST":
                data = b""
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await relay.session.request(
                        scope["method"], url, headers=headers, data=data, allow_redirects=False
                    )
            except (aiohttp.ClientError, OSError, RequestError) as error:
                if self._failed_upload is not None:
                    raise self._failed_upload from None
                failure = error
                # A kept connection that the engine closed as it was written to: once more, on another.
                stale = not stale and not more and _was_stale(error)
                if more or not (stale or isinstance(error, aiohttp.ClientConnectorError)):
                    break
        assert failure is not None
        raise failures.from_exception(failure) from failure

    def _choose(self, tried: list[Target]) -> bool:
        """Turn to the next engine; False when there is none left."""
        if self._target is not None:
            self._target.running -= 1
        self._target = self._relay.targets.choose(tried)
        if self._target is None:
            return False
        self._target.running += 1
        tried.append(self._target)
        return True

    async def _answer(self, response: aiohttp.ClientResponse) -> None:
        headers = answer_headers(response.raw_headers)
        if any(name.lower() == b"date" for name, _ in headers):
            _drop_own_date(self._scope)
        start: Message = {"type": "http.response.start", "status": response.status, "headers": headers}
        if self._tap is not None and self._tap.start(response.status, headers):
            await self._answer_whole(response, start, self._tap)
            return
        await self._send(start)
        # Frames of a stream go past what lies between, which matters only before the headers.
        send = self._scope.get("derender.send", self._send)
        feed = self._tap.feed if self._tap is not None else None
        now = time.perf_counter
        try:
            while chunk := await response.content.readany():
                received = now()
                if feed is not None:
                    chunk = feed(chunk)
                    if not chunk:
                        continue
                self._sending_since = now()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._sending_since = 0.0
                self._relay._metrics.added_latency.observe(now() - received)
        except (aiohttp.ClientError, OSError) as error:
            failure = failures.from_exception(error, sent=True)
            self._record.error = failure.kind
            self._relay._metrics.engine_errors[failure.kind] += 1
            await self._cut()
            return
        last = self._tap.end() if self._tap is not None else b""
        trailers = end_to_end(response.scanner.fields) if isinstance(response, Response) else []
        if trailers:
            if last:
                await send({"type": "http.response.body", "body": last, "more_body": True})
                last = b""
            end_with(self._scope.get("derender.cycle"), trailers)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _answer_whole(self, response: aiohttp.ClientResponse, start: Message, tap: Tap) -> None:
        size = 0
        try:
            while chunk := await response.content.readany():
                tap.feed(chunk)
                size += len(chunk)
                if size > MAX_HELD_BYTES:
                    raise UpstreamError("The engine's answer is too large.", kind="too_large")
        except (aiohttp.ClientError, OSError) as error:
            raise failures.from_exception(error, sent=True) from error
        body = tap.end()
        length = (b"content-length", str(len(body)).encode())
        start["headers"] = [length if name == b"content-length" else (name, value) for name, value in start["headers"]]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _cut(self) -> None:
        """End the client's connection in the middle of its answer."""
        transport = self._scope.get("derender.transport")
        if transport is None:
            raise UpstreamError("The connection to the engine broke off.", kind="eof")
        transport.abort()
        await asyncio.sleep(0)  # the server notes it, and does not complain about an unfinished answer


def answer_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """An answer's headers without those of the connection, in their order."""
    headers = [(bytes(name), bytes(value)) for name, value in raw]
    dropped = _of_connection(headers)
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


def _of_connection(headers: Headers) -> frozenset[bytes]:
    """Names of the headers that are for one connection only: the known ones and those that ``connection`` lists."""
    named = {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    }
    return HOP_BY_HOP | named


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")  # as which the client library encodes it
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _was_stale(error: BaseException) -> bool:
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)


def _drop_own_date(scope: Scope) -> None:
    """Keep uvicorn from adding a second ``date``; where the server is another, there are two."""
    cycle = scope.get("derender.cycle")
    if cycle is not None and getattr(cycle, "default_headers", None):
        cycle.default_headers = [item for item in cycle.default_headers if item[0].lower() != b"date"]
