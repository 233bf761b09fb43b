"""The one place where the parts meet: settings in, ASGI application out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import uvicorn
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from proxy import parsers
from proxy.config import ConfigError, Settings
from proxy.derender.derenderer import Derenderer, UnknownFormat
from proxy.derender.vocabulary import Vocabulary
from proxy.engines.base import Engine
from proxy.engines.clients import engine_for
from proxy.engines.http import EngineOptions
from proxy.engines.pool import Pool
from proxy.engines.resuming import Resuming
from proxy.errors import RequestError, UpstreamError
from proxy.observe import tracing
from proxy.observe.engines import Upstreams
from proxy.observe.metrics import Metrics
from proxy.protocol.checks import Limits
from proxy.render.renderer import Renderer, RenderOptions
from proxy.rollout.control import Rollout
from proxy.rollout.dispatch import Dispatch
from proxy.rollout.relay import RelayOptions
from proxy.routes import chat, completions, debug, generate, inspect, models, ops, render
from proxy.routes.context import Parts, record_of
from proxy.routes.derender import DerenderEndpoint
from proxy.routes.derender_tier import Tier
from proxy.routes.generation import failure_of, finish_closing
from proxy.routes.middleware import PROBES, ApiKeys, BodyLimit, Front, Shortcut, StreamLimit
from proxy.routes.registry import ModelRegistry
from proxy.routes.responses import error_response
from proxy.routes.sse_chunks import dumps
from proxy.serving.control import Control
from proxy.serving.drain import Drain
from proxy.serving.protocol import Protocol
from proxy.serving.server import Server
from proxy.serving.siblings import Siblings
from proxy.serving.tls import TLS

log = logging.getLogger("derender")

DERENDER_ROUTES = [
    Route("/v1/chat/completions/derender", DerenderEndpoint(chat=True), methods=["POST"]),
    Route("/v1/completions/derender", DerenderEndpoint(chat=False), methods=["POST"]),
]
ROUTES = [
    *DERENDER_ROUTES,
    Route("/v1/chat/completions", chat.chat_completions, methods=["POST"]),
    Route("/v1/chat/completions/render", render.render_chat, methods=["POST"]),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/v1/completions/render", render.render_completion, methods=["POST"]),
    Route("/inference/v1/generate", generate.generate, methods=["POST"]),
    Route("/v1/models", models.models, methods=["GET"]),
    Route("/tokenize", models.tokenize, methods=["POST"]),
    Route("/detokenize", models.detokenize, methods=["POST"]),
    Route("/version", models.version, methods=["GET"]),
    Route("/live", ops.live, methods=["GET"]),
    Route("/health", ops.health, methods=["GET"]),
    Route("/ready", ops.ready, methods=["GET"]),
]
# For those who look after the process: at the admin port, where there is one.
ADMIN_ROUTES = [
    Route("/metrics", ops.metrics, methods=["GET"]),
    Route("/debug", debug.streams, methods=["GET"]),
    Route("/debug/ui", debug.page, methods=["GET"]),
    Route("/debug/inspect", inspect.names, methods=["GET"]),
    Route("/debug/inspect", inspect.inspect, methods=["POST"]),
    Route("/debug/shadow", debug.shadow, methods=["GET"]),
]


def load(settings: Settings) -> Parts:
    """Read the model's files and build everything that serves; raises ConfigError before anything is opened."""
    if settings.otlp_traces_endpoint and tracing.is_wanted("flag") and not tracing.is_installed():
        raise ConfigError(f"--otlp-traces-endpoint: {tracing.MISSING}")
    model = settings.model
    assert model is not None  # config.load has checked it
    try:
        renderer = Renderer(_render_options(settings))
    except (OSError, ValueError, KeyError, ImportError) as error:
        # Here the library's own text is for the operator, at start, and names the file at fault.
        raise ConfigError(f"MODEL: {settings.model} cannot be loaded: {' '.join(str(error).split())}") from error
    vocabulary = Vocabulary.load(renderer.tokenizer, renderer.vocab_size)
    try:
        choice = parsers.resolved(*settings.parser_names, renderer.tokenizer, vocabulary, renderer.template_text)
        derenderer = Derenderer(
            vocabulary,
            reasoning_parser=choice.reasoning,
            tool_parser=choice.tools,
            eos_token_ids=renderer.eos_token_ids,
            tool_call_streaming=settings.tool_call_streaming,
            framing_whitespace=settings.framing_whitespace,
            checkpoint=parsers.checkpoint_of(renderer.tokenizer),
        )
    except UnknownFormat as error:
        raise ConfigError(f"--tool-call-parser / --reasoning-parser: {error}") from None
    if derenderer.depends_on_chunks and settings.derender_state == "compact":
        raise ConfigError("--derender-state: compact does not go with vllm:NAME, whose parsers cannot be saved")
    if choice.explanation:
        log.info("parsers chosen", extra={"fields": {"why": choice.explanation}})
        names = {"reasoning_parser": choice.reasoning or "none", "tool_call_parser": choice.tools or "none"}
        settings = settings.model_copy(update=names)
        renderer.reasoning_parser, renderer.tool_call_parser = choice.reasoning, choice.tools
    metrics = Metrics()
    engine = _engine(settings)
    pool = engine if isinstance(engine, Pool) else None
    if pool is not None:
        metrics.add(Upstreams(pool.members))
    if engine is not None and settings.resume_on_engine_loss:
        engine = Resuming(engine, renderer.eos_token_ids, metrics.engine_lost)
    registry = ModelRegistry(
        engine,
        settings.served_model_name,
        fallback=model,
        max_model_len=settings.max_model_len,
        on_length=lambda length: setattr(renderer, "max_model_len", length),
        on_tokenizer=(lambda told: setattr(renderer, "engine_has_tokenizer", told))
        if settings.engine_has_tokenizer == "auto"
        else None,
    )
    limits = Limits(max_n=settings.max_n, max_prompts=settings.max_prompts)
    return Parts(
        settings=settings,
        limits=limits,
        renderer=renderer,
        derenderer=derenderer,
        engine=engine,
        models=registry,
        metrics=metrics,
        tier=Tier(settings, limits, renderer, derenderer, metrics),
        rollout=_rollout(settings, limits, renderer, derenderer, metrics, pool),
        drain=Drain(settings.shutdown_window, settings.shutdown_timeout),
        parsers_why=choice.explanation,
        tls=_tls(settings),
    )


def _tls(settings: Settings) -> TLS | None:
    if settings.ssl_certfile is None:
        return None
    try:
        return TLS(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _engine(settings: Settings) -> Engine | None:
    def options(url: str) -> EngineOptions:
        return EngineOptions(
            url=url,
            api_key=settings.engine_api_key,
            connect_timeout=settings.connect_timeout,
            first_token_timeout=settings.first_token_timeout,
            idle_timeout=settings.idle_timeout,
            max_event_bytes=settings.max_event_size,
            max_model_len=settings.max_model_len,
        )

    return engine_for(settings.engine, [options(url) for url in settings.engine_urls])


def _rollout(
    settings: Settings,
    limits: Limits,
    renderer: Renderer,
    derenderer: Derenderer,
    metrics: Metrics,
    pool: Pool | None,
) -> Rollout:
    relay = None
    if settings.engine_base_url is not None:
        relay = RelayOptions(
            url=settings.engine_base_url,
            api_key=settings.engine_api_key,
            connect_timeout=settings.connect_timeout,
            stall_timeout=settings.client_stall_timeout,
            request_id_header=settings.request_id_header,
        )
    return Rollout(
        settings.plan,
        relay,
        renderer=renderer,
        derenderer=derenderer,
        limits=limits,
        metrics=metrics,
        file=settings.config_file,
        read=settings.reread_plan,
        targets=pool,
    )


def _render_options(settings: Settings) -> RenderOptions:
    assert settings.model is not None
    reasoning, tool = (None if name == parsers.AUTO else name for name in settings.parser_names)
    has_tokenizer = {"auto": None, "true": True, "false": False}[settings.engine_has_tokenizer]
    return RenderOptions(
        model=settings.model,
        tokenizer=settings.tokenizer,
        chat_template=settings.chat_template,
        chat_template_content_format=settings.chat_template_content_format,
        default_chat_template_kwargs=settings.default_chat_template_kwargs,
        max_model_len=settings.max_model_len,
        max_logprobs=settings.max_logprobs,
        engine_has_tokenizer=has_tokenizer,
        trust_request_chat_template=settings.trust_request_chat_template,
        trust_remote_code=settings.trust_remote_code,
        generation_config=settings.generation_config,
        reasoning_parser=reasoning,
        tool_call_parser=tool,
        render_url=settings.render_url,
        threads=settings.render_threads,
    )


def build(parts: Parts) -> ASGIApp:
    """The application that serves ``parts``."""
    settings = parts.settings

    @contextlib.asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        if parts.engine is not None:
            await parts.engine.start()
        await parts.rollout.start()
        parts.tracing = parts.tracing or tracing.start(settings.otlp_traces_endpoint, _provider(parts))
        front.tracing = parts.tracing
        if parts.siblings is not None:
            await parts.siblings.start(parts.drain)
        if parts.control is not None:
            await parts.control.start()
        finding = asyncio.create_task(parts.models.discover())
        try:
            yield
        finally:
            finding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await finding
            if parts.control is not None:
                await parts.control.close()
            if parts.siblings is not None:
                await parts.siblings.close()
            await finish_closing()
            await parts.rollout.close()
            if parts.engine is not None:
                await parts.engine.close()
            await parts.renderer.close()
            if parts.tracing is not None:
                await parts.tracing.close()

    # Starlette's own stack would wrap every send of a stream three times over; these are its parts without that.
    routes = ROUTES if settings.admin_port is not None else ROUTES + ADMIN_ROUTES
    app: ASGIApp = Router(routes=routes, lifespan=lifespan, redirect_slashes=False)
    app = Dispatch(app, rollout=parts.rollout, own=[route.path for route in ROUTES + ADMIN_ROUTES])
    app = _catching(app)
    app = StreamLimit(app, limit=settings.max_concurrent_streams, metrics=parts.metrics)
    # One request per chunk: its way leads past everything that is not needed for it.
    app = Shortcut(app, {route.path: route.endpoint for route in DERENDER_ROUTES})
    front = _front(parts, app, routes)
    return front


def build_admin(parts: Parts) -> ASGIApp:
    """The application at the admin port: probes, metrics and ``/debug``."""
    routes = [*(route for route in ROUTES if route.path in PROBES), *ADMIN_ROUTES]
    return _front(parts, _catching(Router(routes=routes, redirect_slashes=False)), routes)


def _catching(app: ASGIApp) -> ASGIApp:
    return ExceptionMiddleware(
        app,
        handlers={RequestError: _known_failure, UpstreamError: _known_failure, HTTPException: _http_failure},
    )


def _front(parts: Parts, app: ASGIApp, routes: Sequence[Route]) -> Front:
    """``app`` behind what every request passes first."""
    settings = parts.settings
    app = BodyLimit(app, limit=settings.max_body_size)
    return Front(
        ApiKeys(app, keys=settings.api_key),
        header=settings.request_id_header,
        routes=[route.path for route in routes],
        metrics=parts.metrics,
        drain=parts.drain,
        extra={"derender.parts": parts},
    )


def _provider(parts: Parts) -> str:
    """What the engine is, in traces; nothing where that is not known yet."""
    return parts.settings.engine if parts.settings.engine in ("vllm", "sglang") else ""


def server(parts: Parts) -> Server:
    """A server for ``parts``; ``run(sockets=[...])`` serves until SIGTERM or SIGINT and the drain that they begin."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tls = parts.tls
    config = _config(build(parts), None if tls is None else lambda *_: tls.context)
    admin = None if parts.settings.admin_port is None else _config(build_admin(parts))
    reload = parts.rollout.reload if parts.settings.config_file is not None else None
    return Server(config, parts.drain, reload=reload, admin=admin, tls=tls)


def _config(app: ASGIApp, ssl_context: Callable[..., ssl.SSLContext] | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ssl_context_factory=ssl_context,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,  # one line a request is ours, at its end
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here depends on who the client is
        timeout_keep_alive=75,  # longer than the 60 s of common load balancers, which must be first to close
        timeout_graceful_shutdown=1,  # the drain is over by then
        backlog=2048,
    )


def worker(parts: Parts, directory: Path | None, index: int, parent: int | None = None) -> Server:
    """The server of worker ``index``, with a local socket in ``directory``; it ends when ``parent`` (a pid) has."""
    if directory is not None:
        siblings = Siblings(directory, index, parts.settings.workers, parts.metrics.exposition)
        parts.siblings = siblings if parts.settings.workers > 1 else None
        answers = {
            "metrics": siblings.exposition,
            "debug": lambda: dumps(debug.of_this_worker(parts)),
            "shadow": lambda: dumps(debug.shadow_of_this_worker(parts)),
        }
        parts.control = Control(siblings.socket_of(index), parts.drain, answers)
    made = server(parts)
    made.parent = parent
    return made


async def _known_failure(request: Request, error: Exception) -> Response:
    parts: Parts = request.scope["derender.parts"]
    told = failure_of(error, record_of(request.scope), parts.metrics)
    assert told is not None
    return error_response(told)


async def _http_failure(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, wrong method), in the shape of all others."""
    assert isinstance(error, HTTPException)
    texts = {404: "There is no such endpoint.", 405: "This endpoint does not take this method."}
    headers = dict(error.headers or {})
    message = texts.get(error.status_code, "The request cannot be served.")
    return error_response(RequestError(message, status=error.status_code, headers=headers))
