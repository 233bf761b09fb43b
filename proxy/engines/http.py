"""What the clients of all dialects share: the connection pool, sending, refusals, whole answers, probes, aborts.

A dialect is a subclass: it names its route, makes the body, reads events and answers, and knows how to abort.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import aiohttp
import httpx
import msgspec

from proxy.engines import failures, transport
from proxy.engines.base import Engine, GenerateRequest, ModelCard
from proxy.engines.sse import MAX_EVENT_BYTES
from proxy.engines.stream import HTTPStream, StreamLimits
from proxy.errors import RequestError, UpstreamError
from proxy.protocol.generate import GenerateEvent

log = logging.getLogger("derender")

MAX_ERROR_BYTES = 64 * 1024  # of an error body
PROBE_SECONDS = 5.0  # /health, /v1/models, /metrics and the abort routes
_UNSAFE_IN_ID = re.compile(r"[^\x21-\x7e]")
_OURS = frozenset({"x-request-id", "authorization", "content-type", "content-length", "host", "connection", "accept"})


@dataclass(frozen=True)
class EngineOptions:
    """Where the engine is and how long it may take, in seconds (0: for ever).

    ``first_token_timeout`` runs from sending the request to the first event, comments or not. ``idle_timeout`` is
    the longest silence after that; comments break it. ``full_timeout`` is for answers in one piece.
    ``max_model_len``: the context length, for dialects that need it where the engine does not tell.
    """

    url: str
    api_key: str | None = None
    connect_timeout: float = 5.0
    first_token_timeout: float = 600.0
    idle_timeout: float = 120.0
    full_timeout: float = 3600.0
    max_event_bytes: int = MAX_EVENT_BYTES
    max_answer_bytes: int = 256 * 1024 * 1024
    max_model_len: int | None = None


class Reader(Protocol):
    """Reads the events of one stream, of which it may remember what it needs."""

    def event(self, raw: bytes) -> GenerateEvent:
        """The event in ``raw``; the engine's error, if it tells of one, is in ``error``. Raises UpstreamError."""


class HTTPEngine(Engine):
    """Client of one engine over HTTP."""

    route: ClassVar[str]  # where tokens are asked for

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._client: transport.EngineClient | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._limits = StreamLimits(options.first_token_timeout, options.idle_timeout, options.max_event_bytes)

    # -- what a dialect says -------------------------------------------------------------------------------

    @abc.abstractmethod
    def body_for(self, request: GenerateRequest, *, stream: bool) -> dict[str, Any]:
        """The JSON body. Raises RequestError for what this dialect cannot do."""

    @abc.abstractmethod
    def reader(self, request: GenerateRequest) -> Reader:
        """For one stream."""

    @abc.abstractmethod
    def read_answer(self, request: GenerateRequest, raw: bytes) -> GenerateEvent:
        """An answer in one piece. Raises UpstreamError."""

    @abc.abstractmethod
    def abort(self, request: GenerateRequest, reader: Reader | None, told_id: str | None) -> None:
        """Tell the engine, in the background, that nobody waits for this request.

        ``told_id`` is what the engine calls it, where an event has told.
        """

    # -- generating ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._client is None:
            options = self.options
            self._client = transport.EngineClient(
                options.url, api_key=options.api_key, connect_timeout=options.connect_timeout
            )
            self._generate_url = self._client.url(self.route)

    async def close(self) -> None:
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=PROBE_SECONDS)
        for task in self._aborts:
            task.cancel()
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    @property
    def client(self) -> transport.EngineClient:
        """The HTTP client. Raises RuntimeError before ``start`` and after ``close``."""
        if self._client is None:
            raise RuntimeError("the engine client is not started")
        return self._client

    def generate(self, request: GenerateRequest) -> HTTPStream:
        body = msgspec.json.encode(self.body_for(request, stream=True))
        reader = self.reader(request)
        return HTTPStream(
            choices=request.choices,
            send=lambda: self._send(request, body),
            decode=reader.event,
            abort=lambda told_id: self.abort(request, reader, told_id),
            limits=self._limits,
        )

    async def generate_full(self, request: GenerateRequest) -> GenerateEvent:
        content = msgspec.json.encode(self.body_for(request, stream=False))
        running = True  # the engine may be at work on it
        try:
            async with asyncio.timeout(self.options.full_timeout or None):
                body = await self._read_full(await self._send(request, content))
            running = False
            event = self.read_answer(request, body)
        except UpstreamError as error:
            running = error.kind in ("eof", "too_large")
            raise
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:  # asyncio's TimeoutError is an OSError
            failure = failures.from_exception(error)
            running = failure.kind not in ("connect", "timeout_connect")
            raise failure from error
        finally:
            if running:
                self.abort(request, None, None)
        if event.error is not None:
            raise failures.from_event(event.error)
        if set(range(request.choices)) - {choice.index for choice in event.choices if choice.finish_reason is not None}:
            raise UpstreamError("The engine's answer is not complete.", status=502, kind="eof")
        return event

    async def _read_full(self, response: httpx.Response) -> bytes:
        raw: aiohttp.ClientResponse = response.extensions["aiohttp"]
        body = bytearray()
        try:
            while chunk := await raw.content.readany():
                body += chunk
                if len(body) > self.options.max_answer_bytes:
                    raise UpstreamError("The engine's answer is too large.", status=502, kind="too_large")
        except (aiohttp.ClientError, ConnectionError) as error:
            raise failures.from_exception(error, sent=True) from error
        finally:
            if not raw.content.is_eof():
                raw.close()
        return bytes(body)

    async def _send(self, request: GenerateRequest, body: bytes) -> httpx.Response:
        """The response to ``request``, its head read and its status checked.

        Raises UpstreamError for a status that is not 2xx, httpx's and aiohttp's exceptions for the rest.
        """
        headers = {name: value for name, value in request.headers.items() if _may_go_along(name, value)}
        headers["content-type"] = "application/json"
        headers["x-request-id"] = safe_id(request.request_id)
        for attempt in (1, 2):
            try:
                response = await self.client.post(self._generate_url, body, headers)
                break
            except httpx.HTTPError as error:
                # A kept connection that the engine closed as we wrote to it. Nothing was answered: once more, anew.
                if attempt == 2 or not _was_stale(error.__cause__):
                    raise
        if response.status_code == 200:
            return response
        raise await self._refusal(response)

    async def _refusal(self, response: httpx.Response) -> UpstreamError:
        raw: aiohttp.ClientResponse = response.extensions["aiohttp"]
        body = bytearray()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                while len(body) < MAX_ERROR_BYTES and (chunk := await raw.content.readany()):
                    body += chunk
        except (aiohttp.ClientError, OSError):
            pass  # the status says enough
        finally:
            if not raw.content.is_eof():
                raw.close()
        return failures.from_response(response.status_code, bytes(body))

    # -- questions -----------------------------------------------------------------------------------------

    async def models(self) -> list[ModelCard]:
        try:
            return msgspec.json.decode(await self._get("/v1/models"), type=_ModelList).data
        except msgspec.DecodeError as error:
            raise UpstreamError("The engine's list of models cannot be read.", status=502) from error

    async def healthy(self) -> bool:
        try:
            await self._get("/health")
        except UpstreamError:
            return False
        return True

    async def metrics(self) -> bytes:
        return await self._get("/metrics")

    async def _get(self, path: str) -> bytes:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self.client.http.get(path)
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise failures.from_exception(error) from error
        if response.status_code != 200:
            raise failures.from_response(response.status_code, response.content)
        return response.content

    async def status_of(self, path: str, body: object) -> int:
        """The status with which the engine answers a POST of ``body`` as JSON. Raises UpstreamError."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return (await self.client.http.post(path, json=body)).status_code
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise failures.from_exception(error) from error

    # -- aborting ------------------------------------------------------------------------------------------

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, for which ``close`` waits within a bound."""
        task = asyncio.get_running_loop().create_task(work)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def post_abort(self, route: str, body: object) -> bool | None:
        """Whether the engine has ``route``; None where it does not answer, and its connection closed says the same."""
        try:
            return await self.status_of(route, body) not in (404, 405)
        except (UpstreamError, RuntimeError) as error:
            log.debug("abort could not be sent: %s", type(error).__name__)
            return None


class _ModelList(msgspec.Struct):
    data: list[ModelCard]


def safe_id(request_id: str) -> str:
    """``request_id`` as it can stand in a header: visible ASCII. The body carries the same, so that they agree."""
    return _UNSAFE_IN_ID.sub("_", request_id)


def renamed(params: Mapping[str, Any], names: Mapping[str, str], dialect: str) -> dict[str, Any]:
    """vLLM's sampling parameters under a dialect's ``names``; those that ask for nothing are left out.

    Raises RequestError for one that the dialect does not have: dropping it would change the answer unseen.
    """
    result: dict[str, Any] = {}
    for name, value in params.items():
        if name in names:
            if value is not None:
                result[names[name]] = value
        elif value not in (None, False, [], {}, ""):
            raise refused(name, dialect)
    return result


def refused(name: str, dialect: str) -> RequestError:
    """What a client is told of a field that the engine behind cannot take."""
    name = "vllm_xargs" if name == "extra_args" else name  # as the client writes it
    return RequestError(f"`{name}` is not supported: the engine ({dialect}) cannot do it.", param=name)


def _may_go_along(name: str, value: str) -> bool:
    return name.lower() not in _OURS and name.isascii() and value.isascii() and (name + value).isprintable()


def _was_stale(error: BaseException | None) -> bool:
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
