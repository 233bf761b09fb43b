"""Where a request goes: to the handlers of this proxy, to the engine as it is, or to the engine with a shadow."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.errors import RequestError, UpstreamError, body_of
from proxy.observe.logs import Record
from proxy.rollout.canary import Plan
from proxy.rollout.control import Rollout
from proxy.rollout.options import CHOICE_ROUTES
from proxy.rollout.relay import Relay
from proxy.rollout.shadow import open_shadow

log = logging.getLogger("derender")


class Dispatch:
    """ASGI middleware before the routes. ``own``: paths that this proxy answers itself."""

    def __init__(self, app: ASGIApp, *, rollout: Rollout, own: Collection[str]) -> None:
        self.app = app
        self.rollout = rollout
        self.own = frozenset(own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        relay = self.rollout.relay
        if scope["type"] != "http" or relay is None:
            await self.app(scope, receive, send)
            return
        if _wants_websocket(scope):
            await _refuse_websocket(scope, receive, send)
            return
        path, plan = scope["path"], self.rollout.plan
        record: Record = scope["derender.record"]
        if path in CHOICE_ROUTES:
            if scope["method"] == "POST":
                await self._choose(plan, relay, record, scope, receive, send)
                return
            relayed = plan.base(path) != "derender"  # OPTIONS and the like: as the engine has them
        else:
            relayed = path not in self.own and plan.options.allows(path) and _is_plain(scope)
        if not relayed:
            await self.app(scope, receive, send)
            return
        record.mode = "passthrough"
        if path in plan.options.allow:  # a label from a bounded set
            record.route = record.path = path
        await self._pass(plan, relay, record, scope, receive, send)

    async def _choose(
        self, plan: Plan, relay: Relay, record: Record, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = Headers(scope=scope)
        body = await read(receive) if plan.needs_body else None
        mode = plan.choose(scope["path"], headers, record.id, body)
        record.mode = mode
        if mode == "derender":
            inner = receive if body is None else replay(body, receive)
            await self._derender(plan, relay, record, scope, inner, send)
        elif mode == "shadow":
            body = await read(receive) if body is None else body
            await self._shadow(plan, relay, record, scope, receive, send, body)
        else:
            await self._pass(plan, relay, record, scope, receive, send, body)

    async def _pass(
        self,
        plan: Plan,
        relay: Relay,
        record: Record,
        scope: Scope,
        receive: Receive,
        send: Send,
        body: bytes | None = None,
    ) -> None:
        forward = plan.options.forward_authorization
        await relay(scope, receive, send, record=record, forward_authorization=forward, body=body)

    async def _shadow(
        self, plan: Plan, relay: Relay, record: Record, scope: Scope, receive: Receive, send: Send, body: bytes
    ) -> None:
        path, rollout = scope["path"], self.rollout
        opened = open_shadow(body, path, plan.options, rollout.counters)
        if opened is None:
            await self._pass(plan, relay, record, scope, receive, send, body)
            return
        forward = plan.options.forward_authorization
        try:
            await relay(
                *(scope, receive, send),
                record=record,
                forward_authorization=forward,
                body=opened.body,
                tap=opened.tap,
            )
        finally:
            rollout.shadow.submit(opened, request_id=record.id, path=path, body=body)

    async def _derender(
        self, plan: Plan, relay: Relay, record: Record, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The handlers; where the engine does not offer what they need, what the plan has for the others."""
        if plan.base(scope["path"]) == "derender":
            await self.app(scope, receive, send)  # nobody has said that passing through will do
            return
        rollout = self.rollout
        breaker, counters = rollout.breaker, rollout.counters
        if not breaker.admits():
            counters.fallbacks["open"] += 1
            record.mode = "passthrough"
            await self._pass(plan, relay, record, scope, receive, send)
            return
        parts: list[bytes] = []

        async def kept() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                parts.append(message.get("body", b""))
            return message

        # Without handlers in the scope the route lets its exceptions through.
        inner = {**scope, "starlette.exception_handlers": ({}, {})}
        if breaker.open:
            onward = scope.get("derender.send", send)

            def noting(message: Message) -> Awaitable[None]:
                if message["type"] == "http.response.start":
                    self._closed()
                return onward(message)  # type: ignore[no-any-return]

            inner["derender.send"] = send = noting
        try:
            await self.app(inner, kept, send)
        except UpstreamError as error:
            if error.not_offered is None or record.code:
                raise
            counters.fallbacks[str(error.not_offered)] += 1
            breaker.trip(plan.options.fallback_seconds)
            counters.breaker_open = True
            log.warning("engine does not offer generate, passing through", extra={"fields": {"id": record.id}})
        else:
            return
        finally:
            breaker.undecided()
        record.mode, record.error = "passthrough", None
        await self._pass(plan, relay, record, scope, receive, send, b"".join(parts))

    def _closed(self) -> None:
        self.rollout.breaker.close()
        self.rollout.counters.breaker_open = False


async def read(receive: Receive) -> bytes:
    """The whole body; what lies before this bounds it. RequestError if the client leaves first."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client closed the connection.", status=499)
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives ``body`` once more, then what comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _is_plain(scope: Scope) -> bool:
    """Whether the path means the same to everyone: no encoded slashes or dots, which an engine may resolve."""
    raw = (scope.get("raw_path") or b"").lower()
    return not any(code in raw for code in (b"%2f", b"%5c", b"%2e", b"%00", b"%3b", b";"))


def _wants_websocket(scope: Scope) -> bool:
    return any(name == b"upgrade" and b"websocket" in value.lower() for name, value in scope["headers"])


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    error = RequestError("WebSocket connections are not taken here.", status=501)
    response = Response(body_of(error), status_code=501, media_type="application/json", headers={"connection": "close"})
    await response(scope, receive, send)
