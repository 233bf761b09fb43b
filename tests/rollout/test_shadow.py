"""Shadow over HTTP against the coupled simulator: the client sees the engine's answer, what differs is found beside."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from proxy.rollout.counters import FIELDS
from tests.e2e.wire import WEATHER, call, chat_body, completion_body
from tests.rollout.wire import Message, Reader, Writer, ask, read_body, request, sidecar_for, until, upstream
from tests.servers import DEMO_MODEL, DEMO_NAME, Sidecar, Simulator

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
SAID = "<think>\nThe user wants weather. 日本語 😀\n</think>\n\nLet me look.\n" + call("Paris ☔", days=2)
_VARYING = re.compile(rb'"(?:chatcmpl|cmpl)-[^"]*"|"created":\d+')


@pytest.fixture(scope="module")
def coupled() -> Iterator[Simulator]:
    with Simulator(DEMO_MODEL, served_model_name=(DEMO_NAME,), coupled=True) as running:
        yield running


@pytest.fixture(scope="module")
def shadowed(coupled: Simulator) -> Iterator[Sidecar]:
    with Sidecar(engine_url=coupled.url, mode="shadow", rollout={"shadow-samples": 5}, **PARSERS) as running:
        yield running


class Since:
    """What the counters of a sidecar have counted since."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.before = self.now()

    def now(self) -> dict[str, int]:
        counters = self.sidecar.parts.rollout.counters
        return {
            "compared": counters.compared,
            **{f"mismatch {name}": count for name, count in counters.mismatch.items()},
            **{f"skipped {name}": count for name, count in counters.skipped.items()},
            **{f"dropped {name}": count for name, count in counters.dropped.items()},
        }

    def counted(self, expected: int = 1) -> dict[str, int]:
        """What has been counted, once so many answers have been dealt with."""
        deadline = time.monotonic() + 10
        while True:
            more = {name: count - self.before.get(name, 0) for name, count in self.now().items()}
            more = {name: count for name, count in more.items() if count}
            done = sum(count for name, count in more.items() if not name.startswith("mismatch"))
            if done >= expected or time.monotonic() > deadline:
                return more
            time.sleep(0.01)


def post(url: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(url + path, json=body, headers=headers, timeout=30)


REQUESTS = [
    (CHAT, chat_body(SAID, tools=[WEATHER])),
    (CHAT, chat_body(SAID)),
    (CHAT, chat_body("plain ünï 👍🏽", chat_template_kwargs={"enable_thinking": False})),
    (CHAT, chat_body([SAID, "<think>\nno\n</think>\n\nB"], tools=[WEATHER], n=2)),
    (CHAT, chat_body(SAID, tools=[WEATHER], xargs={"chunk": 5})),
    (CHAT, chat_body(SAID, tools=[WEATHER], logprobs=True)),
    (CHAT, chat_body("<think>\nunclosed", max_tokens=8)),
    (CHAT, chat_body("<think>\n</think>\n\nOne two three", stop=["two"])),
    (CHAT, chat_body(SAID, tools=[WEATHER], return_token_ids=False)),
    (CHAT, chat_body(SAID, tools=[WEATHER], return_token_ids=True)),
    (COMPLETIONS, completion_body("Hello ünï 👍🏽 there")),
    (COMPLETIONS, completion_body("abc", prompt=["one", "two"], n=2)),
    (COMPLETIONS, completion_body("Hello there", prompt=[5, 6, 7], max_tokens=3)),
    (COMPLETIONS, completion_body("One two three", stop="two")),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_the_client_sees_what_the_engine_would_have_said(coupled, shadowed, number, stream):
    """Byte for byte but for ids and times, and the derendered answer is the same."""
    path, body = REQUESTS[number]
    body = {**body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
    since = Since(shadowed)
    answer, direct = post(shadowed.url, path, body), post(coupled.url, path, body)
    assert answer.status_code == 200 and answer.headers["x-derender-mode"] == "shadow"
    assert _VARYING.sub(b"", answer.content) == _VARYING.sub(b"", direct.content)
    ours = {"x-request-id", "x-derender-mode", "date", "connection"}
    kept = {name: value for name, value in answer.headers.items() if name not in ours}
    assert kept == {name: value for name, value in direct.headers.items() if name not in ours}
    assert (b'"token_ids":[' in answer.content) == bool(body.get("return_token_ids"))
    assert since.counted() == {"compared": 1}


PLANTS = {name: {f"mismatch {name}": 1} for name in FIELDS} | {
    "arguments_json": {"mismatch arguments_json": 1, "mismatch arguments_text": 1},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("plant", PLANTS)
def test_a_difference_in_every_field_is_found(shadowed, plant, stream):
    """One is planted in the engine's answer; it is counted under its field, and nothing else is."""
    body = chat_body(SAID, tools=[WEATHER], xargs={"plant": plant}, stream=stream)
    if stream:
        body["stream_options"] = {"include_usage": True}
    since = Since(shadowed)
    assert post(shadowed.url, CHAT, body, **{"x-request-id": f"{plant}-{stream}"}).status_code == 200
    assert since.counted() == {"compared": 1, **PLANTS[plant]}
    told = httpx.get(f"{shadowed.url}/debug/shadow").json()
    samples = [sample for sample in told["samples"] if sample["request_id"] == f"{plant}-{stream}"]
    assert {f"mismatch {sample['field']}" for sample in samples} == set(PLANTS[plant])
    sample = samples[0]
    assert sample["token_ids"] and sample["prompt_tail"] and sample["stream"] is stream and sample["path"] == CHAT
    assert sample["offset"] == (-1 if plant in ("finish_reason", "usage") else sample["offset"])
    if plant in ("reasoning", "content"):
        assert (sample["offset"], sample["theirs"]) == (sample["ours"], sample["ours"] + 1)
    text = json.dumps(told["samples"], ensure_ascii=False)
    assert "weather" not in text and "Paris" not in text and len(told["samples"]) <= 5


def test_where_a_text_differs_in_tokens(coupled):
    """The offset's token, and the texts where content may be logged."""
    with Sidecar(engine_url=coupled.url, mode="shadow", rollout={"shadow-content": True}, **PARSERS) as sidecar:
        since = Since(sidecar)
        post(sidecar.url, CHAT, chat_body("<think>\nab\n</think>cd", xargs={"plant": "content"}, stream=True))
        assert since.counted()["mismatch content"] == 1
        (sample,) = sidecar.parts.rollout.shadow.samples
        assert (sample["our_text"], sample["their_text"]) == ("cd", "cd!")
        assert sample["tokens"] - 2 <= sample["token"] <= sample["tokens"] and sample["offset"] == 2


def test_completions_are_compared_too(shadowed):
    since = Since(shadowed)
    post(shadowed.url, COMPLETIONS, completion_body("hello", xargs={"plant": "finish_reason"}, stream=True))
    assert since.counted() == {"compared": 1, "mismatch finish_reason": 1}


def test_what_cannot_be_shadowed_is_served_and_counted(coupled, shadowed):
    for body, reason in (
        (chat_body(SAID, include_reasoning=False), "include_reasoning"),
        (chat_body(SAID, echo=True), "echo"),
    ):
        for stream in (True, False):
            since = Since(shadowed)
            answer = post(shadowed.url, CHAT, body | {"stream": stream})
            direct = post(coupled.url, CHAT, body | {"stream": stream})
            assert _VARYING.sub(b"", answer.content) == _VARYING.sub(b"", direct.content)
            assert since.counted() == {f"skipped {reason}": 1}
    since = Since(shadowed)
    broken = httpx.post(shadowed.url + CHAT, content=b"{")
    assert broken.status_code == 400 and since.counted() == {"skipped bad_request": 1}
    refused = Since(shadowed)
    assert post(shadowed.url, CHAT, chat_body("x", messages=[])).status_code == 400
    assert refused.counted() == {"skipped not_200": 1}
    ours = Since(shadowed)  # taken by the engine, refused by us: a difference that is worth a sample
    assert post(shadowed.url, CHAT, chat_body("x", temperature=0, top_logprobs=3)).status_code == 200
    assert ours.counted() == {"skipped refused": 1}


async def test_an_engine_that_gives_no_ids_is_no_failure():
    answers = {
        b"plain": b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}',
        b"odd": b'{"choices":[{"index":"zero"}]}',
        b"text": b"not json at all",
    }

    async def old(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        body = next((body for word, body in answers.items() if word in asked.body), b"{}")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )

    async with upstream(old) as engine, sidecar_for(engine.url, mode="shadow") as sidecar:
        for word, reason in ((b"plain", "no_ids"), (b"odd", "unreadable"), (b"text", "unreadable")):
            since = Since(sidecar)
            got = await ask(sidecar.url, [request(CHAT, b'{"x":"%s"}' % word)])
            assert got.body == answers[word] and got.complete
            assert since.counted() == {f"skipped {reason}": 1}


async def test_a_client_that_leaves_and_an_engine_that_breaks_off(coupled, shadowed):
    since = Since(shadowed)
    body = json.dumps(chat_body("word " * 100, xargs={"itl": 0.02}, stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(shadowed.url.rpartition(":")[2]))
    writer.write(request(CHAT, body, headers=[(b"x-request-id", b"shadow-leaves")]))
    await reader.readuntil(b"word")
    writer.close()
    await until(lambda: coupled.only("shadow-leaves")["aborted"] == "close")
    assert since.counted() == {"skipped incomplete": 1}

    async def breaks(asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        start = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[5]}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n" % (len(start), start))
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with upstream(breaks) as engine, sidecar_for(engine.url, mode="shadow") as sidecar:
        since = Since(sidecar)
        got = await ask(sidecar.url, [request(CHAT, b'{"stream":true}')])
        assert not got.complete and got.body.startswith(b'data: {"choices"') and got.body.endswith(b"}]}\n\n")
        assert since.counted() == {"skipped incomplete": 1}


async def test_under_load_comparisons_are_dropped_and_clients_are_not_slowed(coupled):
    """Long answers at once, room for two: clients are served as fast as when passed through, the rest is counted."""
    body = chat_body("<think>\nHm.\n</think>" + "word " * 1500, stream=True, xargs={"chunk": 400}, max_tokens=3000)

    async def burst(url: str) -> list[float]:
        async with httpx.AsyncClient(timeout=60) as http:

            async def one() -> float:
                began = time.perf_counter()
                answer = await http.post(url + CHAT, json=body)
                assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
                return time.perf_counter() - began

            return sorted(await asyncio.gather(*[one() for _ in range(24)]))

    with Sidecar(engine_url=coupled.url, mode="passthrough", **PARSERS) as sidecar:
        passed = await burst(sidecar.url)
    with Sidecar(engine_url=coupled.url, mode="shadow", rollout={"shadow-queue": 2}, **PARSERS) as sidecar:
        since = Since(sidecar)
        shadowed = await burst(sidecar.url)
        counted = await asyncio.to_thread(since.counted, 24)
    assert counted["compared"] + counted.get("dropped queue", 0) == 24 and "dropped queue" in counted
    assert counted["compared"] >= 2 and set(counted) == {"compared", "dropped queue"}
    # generous, for machines that do other things too; the simulator takes most of it in both
    assert shadowed[len(shadowed) // 2] < 2 * passed[len(passed) // 2] + 0.5


def test_an_answer_that_is_too_long_is_dropped_and_served(coupled):
    with Sidecar(engine_url=coupled.url, mode="shadow", rollout={"shadow-bytes": 500}, **PARSERS) as sidecar:
        since = Since(sidecar)
        body = chat_body("<think>\n</think>" + "word " * 200, stream=True)
        answer, direct = post(sidecar.url, CHAT, body), post(coupled.url, CHAT, body)
        assert _VARYING.sub(b"", answer.content) == _VARYING.sub(b"", direct.content)
        assert since.counted() == {"dropped too_large": 1}


def test_the_series(shadowed):
    text = httpx.get(f"{shadowed.url}/metrics").text
    assert "derender_shadow_compared_total " in text
    for name in FIELDS:
        assert f'derender_shadow_mismatch_total{{field="{name}"}}' in text
    for name in ("derender_shadow_skipped_total", "derender_fallback_breaker_open"):
        assert name in text
