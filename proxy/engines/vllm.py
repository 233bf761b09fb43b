"""vLLM's generate dialect: ``POST /inference/v1/generate`` of 0.33, its Rust frontend, older servers, inference-sim.

Usage is always asked for: ``--enable-force-include-usage`` does not reach this route. Aborts need the id as the engine
has it: ``generate-tokens-`` and then the ``x-request-id`` header, or else the body's ``request_id``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import msgspec

from proxy.engines import failures, transport
from proxy.engines.base import Engine, GenerateRequest, ModelCard
from proxy.engines.events import decode_event
from proxy.engines.sse import MAX_EVENT_BYTES
from proxy.engines.stream import HTTPStream, StreamLimits
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent

log = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
ABORT_ROUTES = ("/inference/v1/abort_requests", "/abort_requests")
ID_PREFIX = "generate-tokens-"
MAX_ERROR_BYTES = 64 * 1024  # of an error body
PROBE_SECONDS = 5.0  # /health, /v1/models, /metrics and the abort routes
_UNSAFE_IN_ID = re.compile(r"[^\x21-\x7e]")
_OURS = frozenset({"x-request-id", "authorization", "content-type", "content-length", "host", "connection", "accept"})


@dataclass(frozen=True)
class VLLMOptions:
    """Where the engine is and how long it may take, in seconds (0: for ever).

    ``first_token_timeout`` runs from sending the request to the first event, comments or not. ``idle_timeout`` is
    the longest silence after that; comments break it. ``full_timeout`` is for answers in one piece.
    """

    url: str
    api_key: str | None = None
    connect_timeout: float = 5.0
    first_token_timeout: float = 600.0
    idle_timeout: float = 120.0
    full_timeout: float = 3600.0
    max_event_bytes: int = MAX_EVENT_BYTES
    max_answer_bytes: int = 256 * 1024 * 1024


class VLLMEngine(Engine):
    """Client of one vLLM server."""

    def __init__(self, options: VLLMOptions) -> None:
        self.options = options
        self._client: transport.EngineClient | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._abort_routes: tuple[str, ...] = ABORT_ROUTES
        self._limits = StreamLimits(options.first_token_timeout, options.idle_timeout, options.max_event_bytes)

    async def start(self) -> None:
        if self._client is None:
            options = self.options
            self._client = transport.EngineClient(
                options.url, api_key=options.api_key, connect_timeout=options.connect_timeout
            )
            self._generate_url = self._client.url(GENERATE)

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
        return HTTPStream(
            choices=request.choices,
            send=lambda: self.send(request, stream=True),
            decode=decode_event,
            abort=lambda engine_id: self.abort(request.request_id, engine_id),
            limits=self._limits,
        )

    async def generate_full(self, request: GenerateRequest) -> GenerateEvent:
        running = True  # the engine may be at work on it
        try:
            async with asyncio.timeout(self.options.full_timeout or None):
                body = await self._read_full(await self.send(request, stream=False))
            running = False
            event = decode_event(body)
        except UpstreamError as error:
            running = error.kind in ("eof", "too_large")
            raise
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:  # asyncio's TimeoutError is an OSError
            failure = failures.from_exception(error)
            running = failure.kind not in ("connect", "timeout_connect")
            raise failure from error
        finally:
            if running:
                self.abort(request.request_id, None)
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

    async def send(self, request: GenerateRequest, *, stream: bool) -> httpx.Response:
        """The response to ``request``, its head read and its status checked.

        Raises UpstreamError for a status that is not 2xx, httpx's and aiohttp's exceptions for the rest.
        """
        headers = {name: value for name, value in request.headers.items() if _may_go_along(name, value)}
        headers["content-type"] = "application/json"
        headers["x-request-id"] = safe_id(request.request_id)
        body = msgspec.json.encode(body_of(request, stream=stream))
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

    async def has_tokenizer(self) -> bool | None:
        """Rendering text is what an engine without a tokenizer refuses (400); it costs the others microseconds."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self.client.http.post("/v1/completions/render", json={"prompt": "a"})
        except (httpx.HTTPError, aiohttp.ClientError, OSError):
            return None
        return {200: True, 400: False}.get(response.status_code)

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

    def abort(self, request_id: str, engine_request_id: str | None) -> None:
        """Tell the engine, in the background, that nobody waits for this request.

        ``engine_request_id`` is what the engine calls it, where an event has told; else both forms in use are sent
        (vLLM's frontend adds a prefix, its Rust one does not). Ids carry our random suffix: no other request is hit.
        """
        ours = safe_id(request_id)
        ids = [engine_request_id] if engine_request_id is not None else [ID_PREFIX + ours, ours]
        self._spawn(self._post_abort(ids))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, ids: list[str]) -> None:
        for route in self._abort_routes:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    response = await self.client.http.post(route, json={"request_ids": ids})
            except (httpx.HTTPError, aiohttp.ClientError, OSError, RuntimeError) as error:
                # The connection is closed as well, which aborts on its own; the engine may be gone altogether.
                log.debug("abort could not be sent: %s", type(error).__name__)
                return
            if response.status_code not in (404, 405):
                self._abort_routes = (route,)  # a server has the one or the other: ask for it first from now on
                return
        self._abort_routes = ABORT_ROUTES


class _ModelList(msgspec.Struct):
    data: list[ModelCard]


def body_of(request: GenerateRequest, *, stream: bool) -> dict[str, Any]:
    """The JSON body for vLLM. Unknown fields first, so that none of them replaces one of ours."""
    body: dict[str, Any] = {name: value for name, value in request.extra.items() if name != "output_mode"}
    body["request_id"] = safe_id(request.request_id)
    body["token_ids"] = request.token_ids
    body["sampling_params"] = request.sampling_params
    body["stream"] = stream
    body.pop("stream_options", None)
    if stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": request.continuous_usage}
    for name in _OPTIONAL:
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    return body


_OPTIONAL = (
    *("model", "cache_salt", "priority", "kv_transfer_params", "ec_transfer_params", "features"),
    *("reasoning_ended", "reasoning_parser_kwargs"),
)


def safe_id(request_id: str) -> str:
    """``request_id`` as it can stand in a header: visible ASCII. The body carries the same, so that they agree."""
    return _UNSAFE_IN_ID.sub("_", request_id)


def _may_go_along(name: str, value: str) -> bool:
    return name.lower() not in _OURS and name.isascii() and value.isascii() and (name + value).isprintable()


def _was_stale(error: BaseException | None) -> bool:
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
