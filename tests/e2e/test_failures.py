"""What goes wrong: bad requests, engine faults, clients that leave; over HTTP, against the simulator."""

import json
import socket
import time

import httpx
import pytest

from tests.e2e.wire import WEATHER, chat_body, completion_body, events, post, stream, until
from tests.servers import Sidecar, free_port


@pytest.fixture
def plain(sidecars):
    return sidecars()


def error_of(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == status and error["message"]
    assert "Traceback" not in response.text and "/proxy/" not in response.text
    return error


BAD_CHAT = [
    (b"{", None),
    (b"[]", None),
    (b'{"messages": "hi"}', "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stop_token_ids": [-1]}, None),
    ({"stop_token_ids": [10**9]}, None),
    ({"logit_bias": {"999999999": 1}}, None),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"max_tokens": 10**7}, "max_tokens"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
]


@pytest.mark.parametrize(("change", "param"), BAD_CHAT)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_bad_chat_request_names_its_field_and_asks_the_engine_nothing(sidecar, simulator, change, param, streamed):
    before = len(simulator.requests())
    if isinstance(change, bytes):
        response = httpx.post(f"{sidecar.url}/v1/chat/completions", content=change)
    else:
        response = post(sidecar.url, chat_body() | {"stream": streamed} | change)
    error = error_of(response, 400)
    if param is not None:
        assert error["param"] == param
    assert len(simulator.requests()) == before


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [[1], []], [-1], [True], [1.0], [2**64], [10**9], [[1], ["x"]], {"a": 1}, None]
)
def test_a_bad_prompt_is_refused(sidecar, prompt):
    error = error_of(post(sidecar.url, completion_body(prompt=prompt), "/v1/completions"), 400)
    assert (error["param"] or "").startswith("prompt")


def test_token_zero_is_a_prompt(sidecar):
    for prompt in ([0], [0, 0], [[0]]):
        assert post(sidecar.url, completion_body(prompt=prompt), "/v1/completions").status_code == 200


def test_unknown_model(sidecar):
    assert error_of(post(sidecar.url, chat_body(model="nope")), 404)["param"] == "model"
    assert error_of(post(sidecar.url, completion_body(model="nope"), "/v1/completions"), 404)["param"] == "model"
    body = chat_body()
    del body["model"]
    assert post(sidecar.url, body).json()["model"] == "demo"


def test_context_length(sidecars, simulator):
    url = sidecars(max_model_len=16).url
    rows = [(10, 6, 200), (15, 1, 200), (16, 1, 400), (17, 1, 400)]
    for length, max_tokens, status in rows:
        body = completion_body(prompt=[65] * length, max_tokens=max_tokens)
        assert post(url, body, "/v1/completions").status_code == status, (length, max_tokens)


def test_unknown_paths_and_methods(sidecar):
    error_of(httpx.get(f"{sidecar.url}/v1/nothing"), 404)
    response = httpx.get(f"{sidecar.url}/v1/chat/completions")
    error_of(response, 405)
    assert response.headers["allow"]
    error_of(httpx.post(f"{sidecar.url}/inference/v1/abort_requests", json={"request_ids": ["x"]}), 404)


def test_body_limit(sidecars):
    url = sidecars(max_body_size=2000).url
    assert "2000" in error_of(post(url, chat_body("x" * 3000)), 413)["message"]

    def pieces():
        for _ in range(100):
            yield b" " * 100

    error_of(httpx.post(f"{url}/v1/chat/completions", content=pieces()), 413)
    assert post(url, chat_body("x")).status_code == 200


def test_api_keys(sidecars):
    url = sidecars(api_key=["one", "two"]).url
    response = post(url, chat_body("x"))
    error_of(response, 401)
    assert response.headers["www-authenticate"] == "Bearer"
    error_of(post(url, chat_body("x"), headers={"authorization": "Bearer three"}), 401)
    error_of(httpx.get(f"{url}/v1/models"), 401)
    assert post(url, chat_body("x"), headers={"authorization": "Bearer two"}).status_code == 200
    for path in ("/live", "/health", "/ready", "/metrics"):
        assert httpx.get(url + path).status_code == 200


def test_too_many_streams(simulator):
    with Sidecar(engine_url=simulator.url, max_concurrent_streams=1) as sidecar:
        slow = chat_body("a b c d e f", xargs={"itl": 0.2}) | {"stream": True}
        with httpx.stream("POST", f"{sidecar.url}/v1/chat/completions", json=slow) as response:
            reads = response.iter_raw()
            next(reads)
            refused = post(sidecar.url, chat_body("x"))
            assert "--max-concurrent-streams" in error_of(refused, 429)["message"]
            assert refused.headers["retry-after"] == "1"
        until(lambda: post(sidecar.url, chat_body("x")).status_code == 200)


# -- the engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ({"fault": "http", "fault_status": 400, "fault_message": "bad things"}, 400),
        ({"fault": "http", "fault_status": 503}, 503),
        ({"fault": "http", "fault_status": 500}, 502),
        ({"fault": "first_event", "fault_status": 400, "fault_message": "bad things"}, 400),
        ({"fault": "first_event", "fault_status": 500}, 502),
        ({"fault": "reset"}, 502),
        ({"fault": "close"}, 502),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_failure_before_the_first_token_keeps_its_status(plain, fault, status, streamed):
    error = error_of(post(plain.url, chat_body("a b c", xargs=fault) | {"stream": streamed}), status)
    if status == 400:
        assert error["message"] == "bad things"


@pytest.mark.parametrize(
    "fault", ["error_event", "reset", "close", "eof", "half_frame", "done_early", "garbage"]
)
def test_a_failure_after_tokens_is_an_event(plain, fault):
    body = chat_body("one two three four five", xargs={"fault": fault, "fault_after": 2, "itl": 0.03})
    response = post(plain.url, body | {"stream": True})
    assert response.status_code == 200
    *chunks, error, done = events(response.text)
    assert done == "DONE" and error.keys() == {"error"}
    assert error["error"].keys() == {"message", "type", "param", "code"} and error["error"]["code"] >= 500
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text and "one two three four five".startswith(text)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert post(plain.url, body).status_code == 502


def test_an_engine_that_is_not_there():
    with Sidecar(engine_url=f"http://127.0.0.1:{free_port()}", ready=False) as sidecar:
        response = post(sidecar.url, chat_body("x"))
        error_of(response, 503)
        assert response.headers["retry-after"]
        assert httpx.get(f"{sidecar.url}/health").status_code == 503
        assert httpx.get(f"{sidecar.url}/ready").status_code == 503
        assert httpx.get(f"{sidecar.url}/live").status_code == 200
        assert "derender_build_info" in httpx.get(f"{sidecar.url}/metrics").text


def test_silence_before_the_first_token(sidecars):
    url = sidecars(first_token_timeout=0.3, sse_keep_alive_interval=0).url
    for streamed in (True, False):
        error_of(post(url, chat_body("x", xargs={"ttft": 5}) | {"stream": streamed}), 504)


def test_silence_between_tokens(sidecars):
    url = sidecars(idle_timeout=0.3).url
    response = post(url, chat_body("a b c", xargs={"fault": "stall", "fault_after": 1}) | {"stream": True})
    assert events(response.text)[-2]["error"]["code"] == 504


def test_a_failure_after_the_keep_alive_is_an_event(sidecars):
    url = sidecars(sse_keep_alive_interval=0.1).url
    fault = {"fault": "slow_headers", "fault_delay": 0.4}
    response = post(url, chat_body("x", xargs=fault) | {"stream": True})
    assert response.text.startswith(": keep-alive\n\n") and events(response.text)[-1] == "DONE"
    fault = {"fault": "http", "fault_status": 503, "fault_delay": 0.4}
    response = post(url, chat_body("x", xargs=fault) | {"stream": True})
    assert response.status_code == 200 and events(response.text)[0]["error"]["code"] == 503


# -- our own faults -----------------------------------------------------------------------------------------


def test_a_parser_that_raises_ends_its_choice_in_an_error_and_spares_the_other(plain, monkeypatch, caplog):
    from proxy.derender.stream import ChatStream

    real = ChatStream.feed

    def feed(self, ids, *rest, **named):
        deltas = real(self, ids, *rest, **named)
        if any(delta.content and "bomb" in delta.content for delta in deltas):
            raise ValueError("secret bomb text")
        return deltas

    monkeypatch.setattr(ChatStream, "feed", feed)
    body = chat_body(["good words to the end", "a bomb b c d"], n=2, temperature=1, xargs={"chunk": 100})
    *chunks, error, done = events(post(plain.url, body | {"stream": True}).text)
    assert error["error"]["message"] == "Internal server error" and done == "DONE"
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            assert choice["index"] == 0 or choice["finish_reason"] is None
    assert texts[0] == "good words to the end"
    error_of(post(plain.url, body), 500)
    assert "secret" not in str([record.__dict__ for record in caplog.records])


# -- clients that leave -------------------------------------------------------------------------------------


def leave_after(url, body, *, reads=0, seconds=0.0, request_id):
    """Send a request over a bare socket, read a little or wait, and close."""
    host, port = url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {request_id}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + raw)
        for _ in range(reads):
            assert connection.recv(65536)
        time.sleep(seconds)
    return time.time()


LONG = "word " * 400


@pytest.mark.parametrize(
    ("body", "reads", "seconds"),
    [
        pytest.param(chat_body(LONG, xargs={"itl": 0.05}) | {"stream": True}, 3, 0, id="streamed"),
        pytest.param(chat_body(LONG, xargs={"itl": 0.05}), 0, 0.2, id="whole"),
        pytest.param(chat_body(LONG, xargs={"ttft": 30}) | {"stream": True}, 0, 0.2, id="before the first token"),
        pytest.param(chat_body([LONG, LONG], n=2, temperature=1, xargs={"itl": 0.05}) | {"stream": True}, 3, 0, id="n"),
        pytest.param(chat_body(LONG, kv_transfer_params={"a": 1}, xargs={"itl": 0.05}), 0, 0.2, id="in one piece"),
        pytest.param(completion_body(LONG, prompt=["a", "b", "c"], xargs={"itl": 0.05}), 0, 0.3, id="prompts"),
        pytest.param(
            completion_body(LONG, prompt=["a", "b", "c"], xargs={"itl": 0.05}) | {"stream": True}, 3, 0,
            id="prompts streamed",
        ),
    ],
)  # fmt: skip
def test_the_engine_is_told_within_a_second(sidecar, simulator, request, body, reads, seconds):
    name = "leave-" + request.node.callspec.id.replace(" ", "-")
    left = leave_after(sidecar.url, body, reads=reads, seconds=seconds, request_id=name)
    count = len(body["prompt"]) if "prompt" in body else 1
    until(lambda: all(found["aborted"] for found in simulator.requests(name)), 3)
    found = simulator.requests(name)
    assert len(found) == count
    assert all(one["aborted_at"] - left < 1 for one in found)
    until(lambda: sidecar.parts.metrics.streams_active == 0)
    assert post(sidecar.url, chat_body("x")).status_code == 200


def test_a_client_that_leaves_after_the_keep_alive(sidecars, simulator):
    sidecar = sidecars(sse_keep_alive_interval=0.1)
    body = chat_body(LONG, xargs={"ttft": 30}) | {"stream": True}
    left = leave_after(sidecar.url, body, reads=2, request_id="leave-keepalive")
    until(lambda: simulator.only("leave-keepalive")["aborted"], 3)
    assert simulator.only("leave-keepalive")["aborted_at"] - left < 1


def test_departures_are_counted(sidecar):
    before = sidecar.parts.metrics.client_disconnects
    leave_after(sidecar.url, chat_body(LONG, xargs={"itl": 0.05}), seconds=0.2, request_id="count-1")
    leave_after(
        sidecar.url, chat_body(LONG, xargs={"itl": 0.05}) | {"stream": True}, reads=2, request_id="count-2"
    )
    until(lambda: sidecar.parts.metrics.client_disconnects == before + 2)
    assert sidecar.parts.metrics.requests["/v1/chat/completions", "derender", "499"] >= 2


def test_a_client_that_takes_nothing_is_dropped(simulator):
    """Nothing is read from the engine for it either, so nothing piles up here."""
    with Sidecar(engine_url=simulator.url, client_stall_timeout=1.0) as sidecar:
        # 20,000 events of 2 kB each way: far more than the kernel buffers.
        body = chat_body("word " * 20_000, logprobs=True, top_logprobs=20) | {"stream": True}
        host, port = sidecar.url.removeprefix("http://").split(":")
        raw = json.dumps(body).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: stall\r\n"
        connection.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        until(lambda: simulator.requests("stall") and simulator.only("stall")["events"])
        counts = [0, 1]
        while counts[-1] != counts[-2]:
            time.sleep(0.3)
            counts.append(simulator.only("stall")["events"])
        assert counts[-1] < 20_000
        until(lambda: simulator.only("stall")["aborted"], 8)
        connection.close()
        until(lambda: sidecar.parts.metrics.streams_active == 0)


def test_streams_of_one_request_end_with_it(sidecar, simulator):
    stream(sidecar.url, chat_body("x", tools=[WEATHER]), headers={"x-request-id": "clean-1"})
    assert simulator.only("clean-1")["aborted"] is None
