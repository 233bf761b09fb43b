"""The simulated engine: a scripted ``vllm serve --tokens-only``, for demos, tests and benchmarks.

Beside the engine's own routes, ``GET /simulator/requests`` tells what was asked and what became of it, newest last
(``?request_id=`` for those whose engine id holds that text), ``DELETE`` forgets it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from proxy.simulator import sglang
from proxy.simulator.dialects import DIALECTS, parsed
from proxy.simulator.model import load
from proxy.simulator.openai import Coupled
from proxy.simulator.options import Options
from proxy.simulator.run import Run, respond
from proxy.simulator.script import Script
from proxy.simulator.validation import Query, Refusal, check

GENERATE = "/inference/v1/generate"
CONVERSATIONS = ("/v1/chat/completions", "/v1/completions")
MAX_BODY_BYTES = 256 * 1024 * 1024
NO_TOKENIZER = Refusal("Tokenizer not available when `skip_tokenizer_init=True`")
# What the real engine answers on chat completions: an internal error without a message.
NO_CHAT = Refusal("", status=500, kind="InternalServerError")
KEPT_HEADERS = ("x-request-id", "traceparent", "tracestate", "baggage", "x-data-parallel-rank")


class Simulator(Starlette):
    """The application; the generate route is raw ASGI, past Starlette's middleware."""

    def __init__(self, options: Options) -> None:
        if options.dialect not in DIALECTS:
            raise ValueError(f"there is no dialect {options.dialect}; there are {', '.join(DIALECTS)}")
        super().__init__(routes=_routes(self, options.dialect))
        self.options = options
        self.model = load(options)
        self.script = Script(options, self.model)
        self.requests: deque[dict[str, Any]] = deque(maxlen=options.keep_requests)
        self.dialect = DIALECTS[options.dialect]
        self.coupled = Coupled(options, self.model, self.script) if options.coupled else None
        self.running: dict[str, Run] = {}
        self.finished: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.generated_tokens = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
        elif not self._allowed(scope):
            await respond(send, 401, b'{"error":"Unauthorized"}')
        elif scope["path"] == self.dialect.route and scope["method"] == "POST":
            await self.generate(scope, receive, send)
        elif self.coupled is not None and scope["path"] in CONVERSATIONS and scope["method"] == "POST":
            await self.converse(self.coupled, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        if not self.options.api_key or not scope["path"].startswith(("/v1", "/inference")):
            return True
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return given.removeprefix("Bearer ") in self.options.api_key

    async def generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The route of the dialect: ``POST /inference/v1/generate`` and its like."""
        body = await _read(receive)
        if body is None:
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        record: dict[str, Any] = {
            "request_id": None,
            "headers": {name: headers[name] for name in KEPT_HEADERS if name in headers},
            "body": None,
            "started": time.time(),
            "ended": None,
            "aborted": None,
            "aborted_at": None,
            "events": 0,
            "tokens": 0,
            "finish": [],
            "refused": None,
        }
        self.requests.append(record)
        try:
            fields, translated = parsed(self.dialect, body)
            query = check(translated, self.model, self.options)
            behaviour = self.script.behaviour(query)
        except Refusal as refusal:
            record["refused"], record["ended"] = refusal.status, time.time()
            record["body"] = body.decode("utf-8", "replace")[:10_000]
            await respond(send, refusal.status, self.dialect.refusal(refusal))
            return
        engine_id = self._engine_id(headers, query)
        record["request_id"], record["body"] = engine_id, body
        writer = self.dialect.writer(fields, query, behaviour, self.model, self.options)
        run = Run(query=query, behaviour=behaviour, engine_id=engine_id, model=self.model, record=record, writer=writer)
        self.running[engine_id] = run
        try:
            await run.answer(receive, send)
        finally:
            if self.running.get(engine_id) is run:
                del self.running[engine_id]
            self.finished.update(["abort"] if record["aborted"] else record["finish"])
            self.prompt_tokens += len(query.token_ids)
            self.generated_tokens += record["tokens"]

    def _engine_id(self, headers: dict[str, str], query: Query) -> str:
        """vLLM goes by the header before the body, SGLang by the body alone; what is random, the others' are."""
        if self.dialect.owner == "sglang":
            return query.request_id or secrets.token_hex(16)
        own = headers.get("x-request-id") or query.request_id or secrets.token_hex(8)
        return own if self.options.lean else self.dialect.id_prefix + own

    async def converse(self, coupled: Coupled, scope: Scope, receive: Receive, send: Send) -> None:
        """``POST /v1/chat/completions`` and ``/v1/completions`` of the coupled mode."""
        body = await _read(receive)
        if body is None:
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        record: dict[str, Any] = {
            "request_id": headers.get("x-request-id"),
            "path": scope["path"],
            "headers": headers,
            "body": body,
            "aborted": None,
            "refused": None,
        }
        self.requests.append(record)
        try:
            exchange = (coupled.chat if scope["path"] == CONVERSATIONS[0] else coupled.completion)(body)
        except Refusal as refusal:
            record["refused"] = refusal.status
            await respond(send, refusal.status, refusal.body())
            return
        await exchange.answer(receive, send, record)

    def metrics(self) -> str:
        """A few of the engine's series, in Prometheus text."""
        label = f'{{engine="0",model_name="{self.model.names[0]}"}}'
        series = [
            ("gauge", "vllm:num_requests_running", label, len(self.running)),
            ("gauge", "vllm:num_requests_waiting", label, 0),
            ("gauge", "vllm:kv_cache_usage_perc", label, 0.0),
            ("counter", "vllm:prompt_tokens_total", label, self.prompt_tokens),
            ("counter", "vllm:generation_tokens_total", label, self.generated_tokens),
        ]
        for reason in ("stop", "length", "abort"):
            more = label[:-1] + f',finished_reason="{reason}"}}'
            series.append(("counter", "vllm:request_success_total", more, self.finished[reason]))
        lines, seen = [], set()
        for kind, name, labels, value in series:
            if name not in seen:
                seen.add(name)
                lines += [f"# HELP {name} Simulated.", f"# TYPE {name} {kind}"]
            lines.append(f"{name}{labels} {float(value)}")
        return "\n".join(lines) + "\n"


def create_app(options: Options) -> Simulator:
    """The application. Raises OSError or ValueError for a model or script that cannot be read."""
    return Simulator(options)


async def _read(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body") or len(body) > MAX_BODY_BYTES:
            return bytes(body)


def _routes(app: Simulator, app_dialect: str) -> list[Route]:
    async def models(request: Request) -> Response:
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": app.dialect.owner,
                "root": app.model.root,
                "parent": None,
                "max_model_len": app.model.max_model_len,
                "permission": [],
            }
            for name in app.model.names
        ]
        if not app.dialect.lengths:
            kept = ("id", "object", "created", "owned_by")
            cards = [{name: card[name] for name in kept} for card in cards]
        return JSONResponse({"object": "list", "data": cards})

    async def version(request: Request) -> Response:
        return JSONResponse({"version": app.options.version})

    async def health(request: Request) -> Response:
        return Response()

    async def metrics(request: Request) -> Response:
        return Response(app.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def abort(request: Request) -> Response:
        try:
            data = json.loads(await request.body())
        except json.JSONDecodeError as error:
            return _refused(Refusal(f"JSON decode error: {error}", kind="Bad Request"))
        ids = data.get("request_ids") if isinstance(data, dict) else None
        if ids is None:
            return _refused(Refusal("Missing 'request_ids' in request body", kind="Bad Request"))
        for engine_id in ids if isinstance(ids, list) else [ids]:
            _abort(app, lambda known, named=engine_id: known == named)  # type: ignore[misc]
        return Response()

    async def abort_one(request: Request) -> Response:
        """SGLang's: all whose id begins so; those of parallel samples begin with that of their request."""
        rid = (json.loads(await request.body()) or {}).get("rid") or ""
        _abort(app, lambda known: known.startswith(rid) or (len(known) == 32 and rid.startswith(known)))
        return Response()

    async def server_info(request: Request) -> Response:
        return Response(sglang.server_info(app.options), media_type="application/json")

    async def not_offered(request: Request) -> Response:
        return _refused(Refusal("This server does not offer generate.", status=403, kind="Forbidden"))

    async def no_tokenizer(request: Request) -> Response:
        return _refused(NO_TOKENIZER)

    async def no_chat(request: Request) -> Response:
        return _refused(NO_CHAT)

    async def requests(request: Request) -> Response:
        if request.method == "DELETE":
            app.requests.clear()
            return Response(status_code=204)
        part = request.query_params.get("request_id", "")
        found = [_shown(record) for record in list(app.requests) if part in (record["request_id"] or "")]
        return JSONResponse({"running": list(app.running), "requests": found})

    async def unknown(request: Request) -> Response:
        if app.options.dialect.startswith("vllm"):
            return _refused(Refusal("Not Found", status=404, kind="Not Found"))
        return JSONResponse({"detail": "Not Found"}, status_code=404)

    posts = {}
    gets = {"/v1/models": models, "/version": version, "/health": health, "/metrics": metrics}
    aborts = {"/inference/v1/abort_requests": abort, "/abort_requests": abort}
    if app_dialect == "vllm":
        texts = ("completions", "chat/completions/render", "completions/render")
        posts = {f"/v1/{text}": no_tokenizer for text in texts}
        posts |= {f"/v1/{text}/derender": no_tokenizer for text in ("chat/completions", "completions")}
        posts |= {"/v1/chat/completions": no_chat, **aborts}
    elif app_dialect == "vllm-completions":
        posts = {GENERATE: not_offered}
    elif app_dialect.startswith("sglang"):
        posts = {"/abort_request": abort_one}
        gets |= {"/server_info": server_info}
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
        Route("/simulator/requests", requests, methods=["GET", "DELETE"]),
        Route("/{path:path}", unknown, methods=["GET", "POST"]),
    ]


def _refused(refusal: Refusal) -> Response:
    return Response(refusal.body(), status_code=refusal.status, media_type="application/json")


def _abort(app: Simulator, meant: Callable[[str], bool]) -> None:
    for engine_id, run in list(app.running.items()):
        if meant(engine_id):
            run.stop("route")
    for record in app.requests:  # one that has closed the connection before is known to be aborted twice
        if record["request_id"] and meant(record["request_id"]):
            record["abort_asked"] = True


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    body = record["body"]
    return {**record, "body": json.loads(body) if isinstance(body, bytes) else body}
