"""What every request passes on its way in: pure ASGI, so that it costs a stream nothing per chunk.

``Front`` gives the request its id and its record, and is where whatever went wrong ends; then keys, body size and
the limit on concurrent streams. Each knows its own business only.
"""

from __future__ import annotations

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
from proxy.routes.context import REQUEST_ID
from proxy.routes.responses import ClientLeft, JsonBytes, error_response

PROBES = frozenset({"/live", "/health", "/ready", "/metrics"})
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
        extra: dict[str, Any] | None = None,
    ) -> None:
        """``extra`` goes into the scope of every request."""
        self.app = app
        self.extra = {"app": self, **(extra or {})}
        self.header = header.lower()
        self._name = self.header.encode()
        self.routes = frozenset(routes)
        self.metrics = metrics

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
            probe=path in PROBES,
        )
        scope["derender.record"] = record
        # ASGI has no way to cut a connection whose peer takes nothing; closing would wait for it. uvicorn's has.
        scope["derender.transport"] = getattr(getattr(send, "__self__", None), "transport", None)
        started = False

        def with_id(message: Message) -> Any:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.code = record.code or message["status"]
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                if header_of(message, self._name) is None:
                    headers.raw.append((self._name, record.id.encode()))
                else:
                    headers[self.header] = record.id
                message["headers"] = headers.raw
                if record.mode != "derender" or path in GENERATING:
                    headers["x-derender-mode"] = record.mode
            return send(message)

        # A stream sends through this and past what lies between, which matters only before its headers.
        scope["derender.send"] = with_id
        try:
            await self.app(scope, receive, with_id)
        except ClientLeft:
            record.code = 499
            self.metrics.client_disconnects += 1
        except Exception as error:
            logs.failure(error, record)
            record.code = 500
            record.error = "internal"
            if started:
                # Only a stream can have begun: its end must not look like a success.
                await send({"type": "http.response.body", "body": error_event(None), "more_body": False})
            else:
                await JsonBytes(INTERNAL_ERROR, status_code=500)(scope, receive, with_id)
        finally:
            record.duration = time.perf_counter() - began
            self.metrics.requests[record.route, record.mode, str(record.code)] += 1
            logs.access(record)

    def _given_id(self, scope: Scope) -> str | None:
        given = header_of(scope, self._name)
        return given if given is not None and REQUEST_ID.fullmatch(given) else None


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
            and not self._known(Headers(scope=scope).get("authorization", ""))
        ):
            error = RequestError(
                "No valid API key was given.",
                status=401,
                headers={"www-authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _known(self, header: str) -> bool:
        scheme, _, key = header.partition(" ")
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
