"""Expositions put together, read back by Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from proxy.observe.exposition import added, joined
from proxy.observe.metrics import Metrics

ENGINE = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP vllm:request_success_total Finished.
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop"} 5.0
# HELP vllm:request_success_created Finished.
# TYPE vllm:request_success_created gauge
vllm:request_success_created{finished_reason="stop"} 1.7e+09
# HELP vllm:ttft_seconds Time.
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{le="0.1"} 1.0
vllm:ttft_seconds_bucket{le="+Inf"} 2.0
vllm:ttft_seconds_count 2.0
vllm:ttft_seconds_sum 0.5
# HELP python_info Python.
# TYPE python_info gauge
python_info{implementation="CPython"} 1.0
"""


def parsed(text):
    return list(text_string_to_metric_families(text.decode()))


def values(text):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in parsed(text) for s in family.samples}


def counted(requests, streams):
    metrics = Metrics()
    metrics.requests["/v1/completions", "derender", "200"] = requests
    metrics.requests["/v1/completions", "derender", str(400 + requests)] = 1
    metrics.streams_active = streams
    metrics.added_latency.observe(0.00002, requests)
    return metrics.exposition()


def test_the_engines_text_comes_untouched():
    own = Metrics().exposition()
    assert joined(own, ENGINE) == own + ENGINE
    assert joined(own, ENGINE + b"# EOF\n") == own + ENGINE
    assert joined(own, b"") == own
    assert joined(own, ENGINE.replace(b"\n", b"\r\n")) == own + ENGINE


def test_no_family_comes_twice():
    lines = ENGINE.splitlines(keepends=True)
    scattered = ENGINE + b"".join(lines[:2]) + b'vllm:num_requests_running{engine="1",model_name="m"} 4.0\n'
    scattered += b'vllm:ttft_seconds_bucket{le="0.1",engine="1"} 1.0\nno_head_total{a="b"} 4\n'
    own = counted(1, 0)
    # An engine behind a sidecar of its own has families of our names.
    text = joined(own, scattered + counted(70, 9))
    names = [family.name for family in parsed(text)]
    assert len(names) == len(set(names))
    found = values(text)
    assert found["derender_streams_active", ()] == 0
    assert found["vllm:num_requests_running", (("engine", "1"), ("model_name", "m"))] == 4
    assert found["vllm:ttft_seconds_bucket", (("engine", "1"), ("le", "0.1"))] == 1
    assert found["no_head_total", (("a", "b"),)] == 4
    assert text.count(b"# TYPE vllm:num_requests_running ") == text.count(b"# HELP vllm:ttft_seconds ") == 1


def test_workers_add_up():
    found = values(added([counted(2, 3), counted(5, 4)], past=[counted(10, 99)]))

    def requests(code):
        return found["derender_requests_total", (("code", code), ("mode", "derender"), ("route", "/v1/completions"))]

    assert requests("200") == 17  # the dead one's counts stay
    assert (requests("402"), requests("405"), requests("410")) == (1, 1, 1)
    assert found["derender_streams_active", ()] == 7  # what it had open is gone
    assert found["derender_added_latency_seconds_bucket", (("le", "2.5e-05"),)] == 17
    assert found["derender_added_latency_seconds_count", ()] == 17
    (build,) = [value for (name, _), value in found.items() if name == "derender_build_info"]
    assert build == 1


def test_adding_one_changes_nothing():
    text = counted(3, 1)
    assert values(added([text])) == values(text)
    assert [(f.name, f.type, f.documentation) for f in parsed(added([text]))] == [
        (f.name, f.type, f.documentation) for f in parsed(text)
    ]
