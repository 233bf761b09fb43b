"""Probes, models, tokenizing, rendering, metrics and log lines of a running sidecar."""

import json
import logging

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.wire import WEATHER, chat_body, completion_body, post, stream, until
from tests.servers import Sidecar, Simulator, free_port


def test_models(sidecar):
    answer = httpx.get(f"{sidecar.url}/v1/models").json()
    assert answer["object"] == "list"
    (card,) = answer["data"]
    assert card["id"] == "demo" and card["object"] == "model" and card["parent"] is None
    assert card["max_model_len"] == sidecar.parts.renderer.max_model_len


def test_served_names(simulator):
    with Sidecar(engine_url=simulator.url, served_model_name=["public", "alias"]) as sidecar:
        assert [card["id"] for card in httpx.get(f"{sidecar.url}/v1/models").json()["data"]] == ["public", "alias"]
        for name in ("public", "alias"):
            answer = post(sidecar.url, chat_body(model=name), headers={"x-request-id": f"names-{name}"}).json()
            assert answer["model"] == name
            assert simulator.only(f"names-{name}")["body"]["model"] == "demo"
        assert post(sidecar.url, chat_body(model="demo")).status_code == 404


def test_the_engine_may_come_up_later():
    port = free_port()
    with Sidecar(engine_url=f"http://127.0.0.1:{port}", ready=False) as sidecar:
        assert httpx.get(f"{sidecar.url}/ready").status_code == 503
        with Simulator(served_model_name=("demo",), port=port):
            for _ in range(500):
                if httpx.get(f"{sidecar.url}/ready").status_code == 200:
                    break
            assert post(sidecar.url, chat_body()).status_code == 200
        assert httpx.get(f"{sidecar.url}/ready").status_code == 503


def test_tokenize_and_back(sidecar):
    text = "Hello 日本語 <think>"
    found = post(sidecar.url, {"prompt": text}, "/tokenize").json()
    assert found["count"] == len(found["tokens"])
    assert post(sidecar.url, {"tokens": found["tokens"]}, "/detokenize").json()["prompt"] == text
    chat = post(sidecar.url, {"messages": [{"role": "user", "content": "Hi"}]}, "/tokenize").json()
    assert chat["count"] > 3
    assert post(sidecar.url, {"tokens": [10**9]}, "/detokenize").status_code == 400
    assert post(sidecar.url, {"prompt": "x", "model": "nope"}, "/tokenize").status_code == 404


def test_render_gives_what_the_engine_is_asked(sidecar, simulator):
    body = chat_body(tools=[WEATHER], temperature=0.5, max_tokens=7)
    rendered = post(sidecar.url, body, "/v1/chat/completions/render", headers={"x-request-id": "render-1"}).json()
    post(sidecar.url, body, headers={"x-request-id": "render-1"})
    asked = simulator.only("render-1")["body"]
    assert rendered["request_id"] == "chatcmpl-render-1" and rendered["model"] == "demo"
    assert rendered["token_ids"] == asked["token_ids"]
    assert rendered["sampling_params"]["temperature"] == asked["sampling_params"]["temperature"] == 0.5
    assert rendered["parse_context"]["tools"][0]["function"]["name"] == "get_weather"
    several = post(sidecar.url, completion_body(prompt=["a", "b"]), "/v1/completions/render").json()
    assert [one["request_id"][-2:] for one in several] == ["-0", "-1"]


def test_without_an_engine():
    with Sidecar(engine_url="none", max_model_len=100, served_model_name=["m"]) as sidecar:
        assert httpx.get(f"{sidecar.url}/ready").status_code == 200
        assert httpx.get(f"{sidecar.url}/v1/models").json()["data"][0]["max_model_len"] == 100
        assert post(sidecar.url, chat_body(model="m"), "/v1/chat/completions/render").status_code == 200
        assert post(sidecar.url, chat_body(model="m")).status_code == 501
        assert b"vllm:" not in httpx.get(f"{sidecar.url}/metrics").content


def samples(sidecar):
    text = httpx.get(f"{sidecar.url}/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count(simulator):
    with Sidecar(engine_url=simulator.url, reasoning_parser="qwen3") as sidecar:
        body = chat_body("<think>\na b\n</think>\n\nword " + "word " * 20, xargs={"itl": 0.002, "cached_tokens": 2})
        usage = post(sidecar.url, body).json()["usage"]
        stream(sidecar.url, body)
        post(sidecar.url, chat_body("x", xargs={"fault": "reset"}))
        found = samples(sidecar)
    route = ("route", "/v1/chat/completions")
    assert found["derender_requests_total", (("code", "200"), ("mode", "derender"), route)] == 2
    assert found["derender_requests_total", (("code", "502"), ("mode", "derender"), route)] == 1
    assert found["derender_tokens_total", (("kind", "completion"),)] == 2 * usage["completion_tokens"]
    assert found["derender_tokens_total", (("kind", "cached"),)] == 4
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert found["derender_tokens_total", (("kind", "reasoning"),)] == 2 * reasoning
    assert found["derender_time_to_first_token_seconds_count", ()] == 2
    assert 0 < found["derender_inter_token_seconds_count", ()] <= 2 * usage["completion_tokens"]
    assert found["derender_added_latency_seconds_count", ()] > 10
    assert found["derender_streams_active", ()] == 0
    assert sum(value for (name, _), value in found.items() if name == "derender_engine_errors_total") == 1
    # The engine's own series come along untouched.
    assert any(name.startswith("vllm:") for name, _ in found)


def access_lines(caplog, count):
    """The access lines logged so far, ``count`` of them; a line is written just after its answer."""

    def lines():
        return [record.fields for record in caplog.records if record.getMessage() == "request"]

    until(lambda: len(lines()) >= count)
    assert len(lines()) == count
    return lines()


def test_one_line_a_request_without_content(sidecar, caplog):
    caplog.set_level(logging.INFO, "derender")
    secret = "xyzzy-plugh"
    body = chat_body(f"<think>{secret}</think>{secret}", messages=[{"role": "user", "content": secret}])
    stream(sidecar.url, body, headers={"x-request-id": "log-1"})
    post(sidecar.url, body, headers={"x-request-id": "log-2"})
    post(sidecar.url, body | {"n": 0}, headers={"x-request-id": "log-3"})
    httpx.get(f"{sidecar.url}/health")
    lines = access_lines(caplog, 3)
    assert [(line["id"], line["code"]) for line in lines] == [("log-1", 200), ("log-2", 200), ("log-3", 400)]
    for line in lines[:2]:
        assert line["prompt_tokens"] > 0 and line["completion_tokens"] > 0 and line["duration"] > line["ttft"] > 0
        assert line["model"] == "demo"
    assert secret not in json.dumps(lines)
    assert not any(secret in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_failed_stream_is_logged_with_its_code(sidecar, caplog, streamed):
    caplog.set_level(logging.INFO, "derender")
    body = chat_body("a b c d", xargs={"fault": "eof", "fault_after": 2}) | {"stream": streamed}
    post(sidecar.url, body, headers={"x-request-id": "log-4"})
    (line,) = access_lines(caplog, 1)
    assert (line["code"], line["error"]) == (502, "eof")
