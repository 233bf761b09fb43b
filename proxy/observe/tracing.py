"""OpenTelemetry, for those who ask for it: a span for each request, with a child for each call of the engine.

Asked for means ``--otlp-traces-endpoint``, or ``OTEL_EXPORTER_OTLP_ENDPOINT`` / ``..._TRACES_ENDPOINT``, and the
optional extra ``otel``; else nothing of it is imported. Sampler, headers, resource and the rest are OpenTelemetry's own
variables. Attributes follow its conventions for GenAI; prompts and answers are in none of them. The W3C context comes
in with a request and goes on to the engine, which makes its spans children of ours; without tracing the client's
context is handed on as it came.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING

from proxy import __version__
from proxy.observe.logs import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("derender")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
MISSING = "the packages for it are not installed: pip install 'derender-proxy[otel]'"
FLUSH_MILLIS = 3000  # at the end of the process, for spans that have not been sent

# What a route does in the conventions' words, and how ids of its answers begin.
OPERATIONS = {
    "/v1/chat/completions": ("chat", "chatcmpl-"),
    "/v1/completions": ("text_completion", "cmpl-"),
    "/inference/v1/generate": ("generate_content", "generate-tokens-"),
}


def is_wanted(endpoint: str | None) -> bool:
    """Whether anybody has said where spans go: the flag, or a variable."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return bool(endpoint) or any(os.environ.get(name) for name in ENDPOINTS)


def is_installed() -> bool:
    try:
        return all(importlib.util.find_spec(package) is not None for package in PACKAGES)
    except ModuleNotFoundError:  # of a parent package
        return False


def start(endpoint: str | None, provider_name: str) -> Tracing | None:
    """Tracing as configured, in the process that serves: the exporter has a thread, which no fork would take along."""
    if not is_wanted(endpoint):
        return None
    if not is_installed():
        # The variables may be everyone's in this cluster; that is no reason not to serve.
        log.warning("no traces", extra={"fields": {"why": MISSING}})
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "derender-proxy"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None)))
    return Tracing(provider, provider_name)


class Tracing:
    """Makes the spans of requests. ``provider_name``: what the engine is, ``gen_ai.provider.name``."""

    def __init__(self, provider: TracerProvider, provider_name: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = provider
        self.provider_name = provider_name
        self.tracer = provider.get_tracer("derender-proxy", __version__)
        self.propagator = TraceContextTextMapPropagator()

    def request(self, headers: Iterable[tuple[bytes, bytes]], record: Record) -> RequestTrace:
        """The span of a request that has come in."""
        context = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        return RequestTrace(self, context, record)

    async def close(self) -> None:
        def flush() -> None:
            self.provider.force_flush(FLUSH_MILLIS)
            self.provider.shutdown()

        await asyncio.to_thread(flush)


class RequestTrace:
    """The span of one request, and those of its calls of the engine."""

    def __init__(self, tracing: Tracing, context: dict[str, str], record: Record) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._tracing = tracing
        self._record = record
        self._client = SpanKind.CLIENT
        parent = tracing.propagator.extract(context)
        self.span = tracing.tracer.start_span(f"{record.method} {record.route}", parent, SpanKind.SERVER)
        self._context = set_span_in_context(self.span)
        self._in_span = set_span_in_context
        self._calls: list[Span] = []

    def to_engine(self, headers: MutableMapping[str, str]) -> None:
        """A call of the engine begins; ``headers`` get its context in place of the client's."""
        span = self._tracing.tracer.start_span("engine generate", self._context, self._client)
        if self._tracing.provider_name:
            span.set_attribute("gen_ai.provider.name", self._tracing.provider_name)
        self._calls.append(span)
        headers.pop("tracestate", None)
        self._tracing.propagator.inject(headers, self._in_span(span))

    def engine_ended(self) -> None:
        """All calls of the engine have ended."""
        from opentelemetry.trace import Status, StatusCode

        for span in self._calls:
            if self._record.error is not None:
                span.set_status(Status(StatusCode.ERROR))
            span.end()
        self._calls.clear()

    def end(self, record: Record) -> None:
        """The request has been answered; ``record`` says how."""
        from opentelemetry.trace import Status, StatusCode

        span = self.span
        self.engine_ended()
        if span.is_recording():
            operation, _ = OPERATIONS.get(record.route, ("", ""))
            if operation:
                span.update_name(f"{operation} {record.model}" if record.model else operation)
            for name, value in self._attributes(record).items():
                if value is not None:
                    span.set_attribute(name, value)
            if record.code >= 500:
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _attributes(self, record: Record) -> dict[str, str | int | float | bool | list[str] | None]:
        found: dict[str, str | int | float | bool | list[str] | None] = {
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.code or None,
            "error.type": record.error or (str(record.code) if record.code >= 400 else None),
            "derender.request_id": record.id,
            "derender.mode": record.mode,
        }
        operation, prefix = OPERATIONS.get(record.route, (None, ""))
        if operation is None:
            return found
        generation = record.watched
        return found | {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": self._tracing.provider_name or None,
            "gen_ai.request.model": record.model,
            "gen_ai.request.stream": record.stream,
            "gen_ai.request.choice.count": record.n if record.n != 1 else None,
            "gen_ai.response.id": prefix + record.id if record.mode == "derender" and record.code == 200 else None,
            "gen_ai.response.model": record.model if record.code == 200 else None,
            "gen_ai.response.finish_reasons": record.finish.split(",") if record.finish else None,
            "gen_ai.response.time_to_first_chunk": record.ttft,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": getattr(generation, "cached_tokens", None),
            "gen_ai.usage.reasoning.output_tokens": getattr(generation, "reasoning_tokens", None) or None,
        }
