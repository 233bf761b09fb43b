"""What every request passes on its way in: pure ASGI, so that it costs a stream nothing per chunk.

``Front`` gives the request its id and its record, and is where whatever went wrong ends; then keys, body size and
the limit on concurrent streams. Each knows its own business only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.errors import INTERNAL_ERROR, RequestError, error_event
from proxy.observe import logs
from proxy.observe.logs import Record
from proxy.observe.metrics import Metrics
from proxy.observe.tracing import Tracing
from proxy.routes.context import REQUEST_ID
from proxy.routes.responses import ClientLeft, JsonBytes, error_response
from proxy.serving.drain import LAST_WORDS, Drain

PROBES = frozenset({"/live", "/health", "/ready", "/metrics"})
# Pages that ask again every second: no line each, not counted as open, and there while the server drains.
DEBUG = frozenset({"/debug", "/debug/ui", "/debug/shadow", "/debug/inspect"})
GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/inference/v1/generate"})


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header ``name`` (lower case, as ASGI has them); a tenth of what a ``Headers`` object costs."""
    for key, value in scope.get("headers", ()):
        if key == name:
            return bytes(value).decode("latin-1")
    return None


class Front:
    """Request id, access line, counters, and the last resort for exceptions."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        header: str,
        routes: Collection[str],
        metrics: Metrics,
        drain: Drain | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """``extra`` goes into the scope of every request; ``drain`` knows those that are not probes while they run."""
        self.app = app
        self.extra = {"app": self, **(extra or {})}
        self.header = header.lower()
        self._name = self.header.encode()
        self.routes = frozenset(routes)
        self.metrics = metrics
        self.drain = drain or Drain()
        self.tracing: Tracing | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.update(self.extra)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        path = scope["path"]
        given = self._given_id(scope)
        scope["derender.made_id"] = given is None
        record = Record(
            id=given or secrets.token_hex(16),
            method=scope["method"],
            path=path if path in self.routes else "other",
            route=path if path in self.routes else "other",
            probe=path in PROBES or path in DEBUG,
        )
        scope["derender.record"] = record
        # ASGI has no way to cut a connection whose peer takes nothing; closing would wait for it. uvicorn's has.
        scope["derender.cycle"] = cycle = getattr(send, "__self__", None)
        scope["derender.transport"] = getattr(cycle, "transport", None)
        if self.tracing is not None and not record.probe:
            record.trace = self.tracing.request(scope["headers"], record)
        drain = self.drain
        start: Message | None = None  # of the answer, and the latest of its body
        latest: Message = {}

        def with_id(message: Message) -> Any:
            nonlocal start, latest
            latest = message
            if message["type"] == "http.response.start":
                start = message
                record.code = record.code or message["status"]
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                if header_of(message, self._name) is None:
                    headers.raw.append((self._name, record.id.encode()))
                else:
                    headers[self.header] = record.id
                if drain.begun:
                    # Whoever keeps connections shall make the next one elsewhere.
                    headers["connection"] = "close"
                message["headers"] = headers.raw
                if record.mode != "derender" or path in GENERATING:
                    headers["x-derender-mode"] = record.mode
            return send(message)

        # A stream sends through this and past what lies between, which matters only before its headers.
        scope["derender.send"] = with_id
        opened = None if record.probe else drain.enter(record)
        try:
            if opened is not None and drain.refusing:
                record.error = "shutdown"
                await error_response(_going())(scope, receive, with_id)
            else:
                await self.app(scope, receive, with_id)
        except asyncio.CancelledError:
            if opened is None or not opened.cut or opened.task is None:
                raise
            opened.task.uncancel()  # it was meant for what is done now, not for what is still to be said
            record.code, record.error = 503, "shutdown"
            await self._last_words(scope, receive, with_id, start, latest)
        except ClientLeft:
            record.code = 499
            self.metrics.client_disconnects += 1
        except Exception as error:
            logs.failure(error, record)
            record.code = 500
            record.error = "internal"
            if start is not None:
                # Only a stream can have begun: its end must not look like a success.
                await send({"type": "http.response.body", "body": error_event(None), "more_body": False})
            else:
                await JsonBytes(INTERNAL_ERROR, status_code=500)(scope, receive, with_id)
        finally:
            if opened is not None:
                drain.leave(opened)
            record.duration = time.perf_counter() - began
            if record.trace is not None:
                record.trace.end(record)
            record.watched = record.trace = None
            self.metrics.requests[record.route, record.mode, str(record.code)] += 1
            logs.access(record)

    async def _last_words(
        self, scope: Scope, receive: Receive, send: Send, start: Message | None, latest: Message
    ) -> None:
        """What a client gets whose answer the deadline of the drain has cut short."""
        error = RequestError(
            "This server is shutting down; the answer could not be completed.", status=503, headers={"retry-after": "1"}
        )
        transport = scope["derender.transport"]
        try:
            async with asyncio.timeout(LAST_WORDS / 2):
                if start is None:
                    await error_response(error)(scope, receive, send)
                    return
                if latest is not start and not latest.get("more_body"):
                    return  # it was complete after all
                between_events = latest is start or latest.get("body", b"").endswith(b"\n\n")
                if between_events and (header_of(start, b"content-type") or "").startswith("text/event-stream"):
                    await send({"type": "http.response.body", "body": error_event(error), "more_body": False})
                    return
        except TimeoutError:
            pass  # it takes nothing
        # In the middle of an event, or of a body that has no way to say so.
        if transport is not None:
            transport.abort()
            await asyncio.sleep(0)

    def _given_id(self, scope: Scope) -> str | None:
        given = header_of(scope, self._name)
        return given if given is not None and REQUEST_ID.fullmatch(given) else None


def _going() -> RequestError:
    return RequestError(
        "This server is shutting down. Try again; another one will answer.",
        status=503,
        headers={"retry-after": "1", "connection": "close"},
    )


class ApiKeys:
    """Bearer keys, for everything but probes, metrics and CORS preflights."""

    OPEN = PROBES | {"/version"}

    def __init__(self, app: ASGIApp, *, keys: Iterable[str]) -> None:
        self.app = app
        self.digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and self.digests
            and scope["method"] != "OPTIONS"
            and scope["path"] not in self.OPEN
            and not self._known(Headers(scope=scope).get("authorization", ""), basic=self._for_browsers(scope))
        ):
            error = RequestError(
                "No valid API key was given.",
                status=401,
                headers={"www-authenticate": "Basic" if self._for_browsers(scope) else "Bearer"},
            )
            await error_response(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    @staticmethod
    def _for_browsers(scope: Scope) -> bool:
        """Pages are for people, whose browser asks them for a password: a key, with any user."""
        return scope["path"] in DEBUG

    def _known(self, header: str, *, basic: bool = False) -> bool:
        scheme, _, key = header.partition(" ")
        if basic and scheme.lower() == "basic":
            with contextlib.suppress(ValueError):
                key = base64.b64decode(key, validate=True).decode().partition(":")[2]
                scheme = "bearer"
        digest = hashlib.sha256(key.strip().encode()).digest()
        # Every key is compared, whichever fits, so that time tells nothing.
        fits = [hmac.compare_digest(digest, known) for known in self.digests]
        return scheme.lower() == "bearer" and any(fits)


class BodyLimit:
    """Refuses bodies over ``limit`` bytes: by their declared length, else as soon as they exceed it."""

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = header_of(scope, b"content-length")
        if declared is not None and declared.isdecimal() and int(declared) > self.limit:
            await error_response(self._error())(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self.limit:
                    raise self._error()
            return message

        await self.app(scope, limited, send)

    def _error(self) -> RequestError:
        return RequestError(
            f"The request body is larger than the {self.limit} bytes that this server takes (--max-body-size).",
            status=413,
            headers={"connection": "close"},
        )


class Shortcut:
    """Hands POSTs for ``endpoints`` (path to ASGI application that tells its own failures) on without a router."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self.app = app
        self.endpoints = dict(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoints.get(scope.get("path", ""))
        if endpoint is not None and scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class StreamLimit:
    """At most ``limit`` requests are generated at one time; more are told to come back."""

    def __init__(self, app: ASGIApp, *, limit: int, metrics: Metrics) -> None:
        self.app = app
        self.limit = limit
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in GENERATING or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if self.limit and self.metrics.streams_active >= self.limit:
            error = RequestError(
                f"This server generates {self.limit} answers at one time (--max-concurrent-streams). Try again later.",
                status=429,
                headers={"retry-after": "1"},
            )
            await error_response(error)(scope, receive, send)
            return
        self.metrics.streams_active += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.metrics.streams_active -= 1
