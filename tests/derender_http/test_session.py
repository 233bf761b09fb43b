"""The streaming session: engine events in, chat chunks out, in one request."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest
from tokenizers import Tokenizer

from tests.derender_http.replicas import CHAT
from tests.servers import DEMO_MODEL, DEMO_NAME, Sidecar

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
ASKED = {"model": DEMO_NAME, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "stream": True}
OPENING = {"chat_request": ASKED, "prompt_token_ids": [1, 2, 3]}
TEXT = 'Thinking.</think>\n\nSo:\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
SSE, NDJSON = "text/event-stream", "application/x-ndjson"


@pytest.fixture(scope="module")
def server() -> Iterator[Sidecar]:
    with Sidecar(
        DEMO_MODEL,
        engine_url="none",
        max_model_len=4096,
        served_model_name=[DEMO_NAME],
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        max_event_size=65536,
    ) as running:
        yield running


def events(text: str = TEXT, finish: str | None = "stop", n: int = 1) -> list[dict[str, Any]]:
    """What an engine sends: one event per token and choice, then usage."""
    ids = list(Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    found: list[dict[str, Any]] = []
    for at, token_id in enumerate(ids):
        last = finish if at == len(ids) - 1 else None
        for index in range(n):
            choice = {"index": index, "token_ids": [token_id], "finish_reason": last, "stop_reason": None}
            found.append({"request_id": "generate-tokens-1", "choices": [choice]})
    usage = {"prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids)}
    return [*found, {"request_id": "generate-tokens-1", "choices": [], "usage": usage}]


def frame(item: Any, media: str) -> bytes:
    data = item.encode() if isinstance(item, str) else json.dumps(item).encode()
    return b"data: " + data + b"\n\n" if media == SSE else data + b"\n"


def post(server: Sidecar, content: bytes, media: str) -> tuple[int, list[Any]]:
    """Status and events of the answer."""
    answer = httpx.post(server.url + CHAT, content=content, headers={"content-type": media})
    if answer.status_code != 200:
        return answer.status_code, [answer.json()]
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return 200, [json.loads(line) for line in lines[:-1]]


def folded(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    whole: dict[str, Any] = {"reasoning": "", "content": "", "arguments": "", "names": [], "finish": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            whole["reasoning"] += delta.get("reasoning") or ""
            whole["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if "name" in call["function"]:
                    whole["names"].append(call["function"]["name"])
                whole["arguments"] += call["function"]["arguments"]
            whole["finish"] = choice["finish_reason"] or whole["finish"]
    return whole


EXPECTED = {
    "reasoning": "Thinking.",
    "content": "\n\nSo:\n",
    "names": ["get_weather"],
    "arguments": '{"city": "Bern"}',
    "finish": "tool_calls",
}


@pytest.mark.parametrize("media", [SSE, NDJSON])
@pytest.mark.parametrize("done", [True, False])
def test_a_captured_stream(server: Sidecar, media: str, done: bool) -> None:
    items: list[Any] = [OPENING, *events(), *(["[DONE]"] if done else [])]
    status, chunks = post(server, b"".join(frame(item, media) for item in items), media)
    assert status == 200
    assert folded(chunks) == EXPECTED
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["id"] == "generate-tokens-1" and chunks[0]["model"] == DEMO_NAME
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens"] == 3


def test_choices_interleaved(server: Sidecar) -> None:
    opening = {**OPENING, "chat_request": {**ASKED, "n": 2}}
    status, chunks = post(server, b"".join(frame(item, SSE) for item in [opening, *events(n=2), "[DONE]"]), SSE)
    assert status == 200
    assert folded(chunks, 0) == folded(chunks, 1) == EXPECTED


def test_an_event_is_answered_before_the_next_is_sent(server: Sidecar) -> None:
    """Both directions at once: the client waits for each answer."""
    address = urlparse(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    connection.putrequest("POST", CHAT)
    connection.putheader("content-type", SSE)
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()

    def send(data: bytes) -> None:
        connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    send(frame(OPENING, SSE))
    response = None
    frames = b""
    said = ""
    for event in events("Thinking.", None)[:-1]:
        before = said
        data = frame(event, SSE)
        send(data[:9])  # cut anywhere
        send(data[9:])
        response = response or connection.getresponse()
        while said == before:
            frames += response.read1(65536)
            whole = [json.loads(line[6:]) for line in frames.decode().split("\n\n")[:-1]]
            said = folded(whole)["reasoning"]
        assert "Thinking.".startswith(said)
    assert said == "Thinking."
    connection.close()


def test_a_client_that_sends_everything_first(server: Sidecar) -> None:
    """More answer than socket buffers hold waits here until the client reads."""
    many = events("hello " * 800, "length")
    status, chunks = post(server, b"".join(frame(item, NDJSON) for item in [OPENING, *many]), NDJSON)
    assert status == 200
    assert folded(chunks)["reasoning"] == "hello " * 800


@pytest.mark.parametrize(
    ("items", "status", "param"),
    [
        ([], 400, None),
        (["{}"], 400, "chat_request"),
        ([{"chat_request": ASKED}], 400, "prompt_token_ids"),
        ([{**OPENING, "model": "nope"}], 404, "model"),
        ([{**OPENING, "prompt_token_ids": [-1]}], 400, "prompt_token_ids[0]"),
        ([{**OPENING, "chat_request": {"messages": 3}}], 400, "chat_request.messages"),
        (["no json"], 400, None),
    ],
)
def test_faults_before_the_answer(server: Sidecar, items: list[Any], status: int, param: str | None) -> None:
    got, (answer,) = post(server, b"".join(frame(item, SSE) for item in items), SSE)
    assert (got, answer["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ([], 502),  # the engine's stream ends without a finish
        (["no json"], 502),
        ([{"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}], 500),
        ([{"choices": [{"index": 1, "token_ids": [5]}]}], 400),
        ([{"choices": [{"index": 0, "token_ids": [10**9]}]}], 400),
        ([{"choices": [{"index": 0, "token_ids": [5] * 5000}]}], 400),
        ([{"choices": [], "padding": "x" * 70000}], 413),
    ],
)
def test_faults_behind_the_headers_are_events(server: Sidecar, more: list[Any], code: int) -> None:
    items = [OPENING, *events("Thinking.", None)[:-1], *more]
    status, chunks = post(server, b"".join(frame(item, SSE) for item in items), SSE)
    assert status == 200
    assert chunks[-1]["error"]["code"] == code
    assert folded([chunk for chunk in chunks if "choices" in chunk])["reasoning"] == "Thinking."
