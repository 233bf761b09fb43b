"""Spans of requests and engine calls, in memory and at a collector; and nothing of it where nobody asks."""

import http.server
import subprocess
import sys
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy.config import EX_USAGE, ConfigError, load
from proxy.observe import tracing
from proxy.observe.tracing import Tracing
from tests.e2e.wire import chat_body, completion_body, post, stream, until
from tests.servers import DEMO_MODEL, DEMO_NAME, ROOT, Process, Sidecar, Simulator, free_port

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "baggage": "user=1"}


@pytest.fixture
def traced(simulator):
    """``traced(**flags)``: a sidecar that keeps its spans, which ``spans()`` gives: of the request, of its calls."""
    running = []

    def begin(**flags):
        sidecar = Sidecar(engine_url=simulator.url, reasoning_parser="qwen3", **flags)
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        sidecar.parts.tracing = Tracing(provider, "vllm")
        sidecar.start()
        running.append(sidecar)

        def spans():
            def request():
                return [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]

            until(request)
            (server,) = request()
            calls = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
            exporter.clear()
            return server, calls

        return sidecar, spans

    yield begin
    for sidecar in running:
        sidecar.stop()


def child_of(span, parent):
    return span.parent.span_id == parent.context.span_id and span.context.trace_id == parent.context.trace_id


@pytest.mark.parametrize("streamed", [True, False])
def test_a_chat(traced, simulator, streamed):
    sidecar, spans = traced()
    body = chat_body("<think>\na b\n</think>\n\nc d", xargs={"itl": 0.01, "cached_tokens": 3})
    ask = stream if streamed else post
    ask(sidecar.url, body, headers=CONTEXT | {"x-request-id": f"trace-{streamed}"})
    span, (call,) = spans()
    assert (span.name, f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == ("chat demo", TRACE, PARENT)
    found = dict(span.attributes)
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.provider.name"] == "vllm"
    assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == "demo"
    assert found["gen_ai.request.stream"] is streamed
    assert found["gen_ai.response.id"] == f"chatcmpl-trace-{streamed}"
    assert found["gen_ai.usage.output_tokens"] > found["gen_ai.usage.reasoning.output_tokens"] > 0
    assert found["gen_ai.usage.input_tokens"] > found["gen_ai.usage.cache_read.input_tokens"] == 3
    assert 0 < found["gen_ai.response.time_to_first_chunk"] < 5
    assert (found["http.route"], found["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert "Hi" not in str(found) and "a b" not in str(found)
    assert child_of(call, span) and span.start_time <= call.start_time < call.end_time <= span.end_time
    # The engine's spans become children of the call; what is not ours to say goes on as it came.
    headers = simulator.only(f"trace-{streamed}")["headers"]
    assert headers["traceparent"] == f"00-{TRACE}-{call.context.span_id:016x}-01"
    assert (headers["tracestate"], headers["baggage"]) == ("vendor=1", "user=1")


def test_a_call_for_each_prompt_and_a_trace_of_its_own(traced):
    sidecar, spans = traced()
    post(sidecar.url, completion_body(prompt=["a", "b"]), "/v1/completions")
    span, calls = spans()
    assert span.name == "text_completion demo" and span.parent is None
    assert len(calls) == 2 and all(child_of(call, span) for call in calls)


def test_failures(traced):
    sidecar, spans = traced()
    post(sidecar.url, chat_body("a b c", xargs={"fault": "eof", "fault_after": 1}) | {"stream": True})
    span, (call,) = spans()
    assert span.status.status_code is call.status.status_code is StatusCode.ERROR
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("eof", 502)
    post(sidecar.url, chat_body(n=0))
    span, calls = spans()
    assert span.status.status_code is StatusCode.UNSET and not calls
    assert span.attributes["error.type"] == "400" and span.events == ()


def test_a_client_that_does_not_sample(traced, simulator):
    sidecar, _ = traced()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00", "x-request-id": "trace-no"}
    post(sidecar.url, chat_body(), headers=headers)
    sent = simulator.only("trace-no")["headers"]["traceparent"]
    assert sent.startswith(f"00-{TRACE}-") and sent.endswith("-00")


def test_passing_through():
    with Simulator(DEMO_MODEL, served_model_name=(DEMO_NAME,), coupled=True) as engine:
        sidecar = Sidecar(engine_url=engine.url, mode="passthrough")
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        sidecar.parts.tracing = Tracing(provider, "vllm")
        with sidecar:
            assert post(sidecar.url, chat_body(), headers=CONTEXT).status_code == 200
            until(lambda: len(exporter.get_finished_spans()) == 2)
            call, span = exporter.get_finished_spans()
            assert child_of(call, span) and span.attributes["derender.mode"] == "passthrough"


@pytest.fixture
def collector():
    """A collector over HTTP; its URL and the spans it got."""
    spans = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                labels = {item.key: item.value.string_value for item in resource.resource.attributes}
                spans.extend((labels, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", spans
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_of_workers_reach_a_collector_before_the_process_ends(simulator, collector):
    endpoint, spans = collector
    port = free_port()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=pod-1"}
    flags = ("--host", "127.0.0.1", "--port", str(port), "--engine-url", simulator.url, "--workers", "2")
    with Process("serve", str(DEMO_MODEL), *flags, env=env) as process:
        process.wait_for_url(f"http://127.0.0.1:{port}/ready")
        for _ in range(8):
            assert post(f"http://127.0.0.1:{port}", chat_body()).status_code == 200
        process.process.terminate()
        assert process.wait() == 0
    assert sorted(span.name for _, span in spans) == ["chat demo"] * 8 + ["engine generate"] * 8
    assert all(labels["service.name"] == "derender-proxy" and labels["k8s.pod.name"] == "pod-1" for labels, _ in spans)


def test_nothing_is_imported_where_nobody_asks():
    code = (
        "import sys; from proxy import app, config;"
        f"parts = app.load(config.load({{'model': {str(DEMO_MODEL)!r}}})); app.server(parts);"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_without_the_packages(monkeypatch, caplog):
    monkeypatch.setattr(tracing, "PACKAGES", ("no_such_package.sdk",))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert tracing.start(None, "vllm") is None and caplog.records[0].getMessage() == "no traces"
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not tracing.is_wanted("http://collector:4318/v1/traces")
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    from proxy import app

    # Asked for by a flag, it is a fault.
    with pytest.raises(ConfigError, match="derender-proxy\\[otel\\]"):
        app.load(load({"model": str(DEMO_MODEL), "otlp_traces_endpoint": "http://collector:4318/v1/traces"}))
    assert EX_USAGE == 64
