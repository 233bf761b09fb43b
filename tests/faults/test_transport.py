"""Cases about the bytes between engine, sidecar and client, with an engine that plays them read by read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from proxy.engines.events import decode_event
from proxy.engines.sse import SSEDecoder
from tests.engines.raw_server import DONE, SSE_HEAD, Asked, Step, event, http_chunk, sse
from tests.faults import cases, checks, checks_details, checks_service  # noqa: F401
from tests.faults.cases import encode, encode_demo
from tests.faults.evidence import Evidence, judge
from tests.faults.exchange import CHAT, Client, Exchange, script
from tests.faults.expectation import check, check_chunks
from tests.faults.fleet import Fleet, RawEngine, playing
from tests.faults.shape import check_stream
from tests.servers import DEMO_MODEL, free_port

CASES = (
    *("errors-01", "errors-03", "errors-05", "transport-01", "transport-03", "transport-05"),
    *("transport-06", "transport-08", "transport-09", "transport-10"),
)
PROMPT = "Hello, world"  # three tokens, as the usage of transport-10 has it
PAUSE = 0.3
USAGE = {"include_usage": True}


def said(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], **fields}


def reads_of(name: str) -> list[bytes]:
    return [bytes.fromhex(read) for read in cases.load()[name].input["reads_hex"]]


def cuts_of(reads: list[bytes]) -> dict[str, list[bytes]]:
    """The reads given, all bytes in one, and each byte by itself."""
    whole = b"".join(reads)
    return {"given": reads, "all in one": [whole], "bytes": [whole[at : at + 1] for at in range(len(whole))]}


@pytest.fixture
def client(fleet: Fleet, raw_engine: RawEngine) -> Client:
    return fleet.client(fleet.sidecar("qwen3", raw_engine.url))


def ask(client: Client, stream: bool) -> Exchange:
    return client.ask(said(stream=True, stream_options=USAGE) if stream else said())


@pytest.mark.parametrize("name", ["transport-03", "transport-05", "transport-06", "transport-10"])
def test_readable_streams(fleet: Fleet, raw_engine: RawEngine, client: Client, name: str) -> None:
    """Streams that are unusual and right, in every cut."""
    case = cases.load()[name]
    evidence = Evidence(case)
    for cut in cuts_of(reads_of(name)).values():
        raw_engine.play = playing(sse(*cut))
        streamed, whole = ask(client, True), ask(client, False)
        check_stream(streamed, usage=True)
        for answer in (streamed, whole):
            check(case, answer)
        evidence.streamed.append((None, streamed))
        evidence.whole.append((None, whole))
        if "request_id" in case.expected:
            decoder = SSEDecoder()
            (data,) = [found for read in cut for found in decoder.feed(read)]
            assert decode_event(data).request_id == case.expected["request_id"]
    if name == "transport-03":
        evidence.facts["separators"] = separators(fleet)
    if name == "transport-06":
        evidence.facts |= comments(fleet, raw_engine)
    judge(evidence)
    checks.modes_agree(evidence)


def separators(fleet: Fleet) -> tuple[str, list[Exchange]]:
    text = "one\u2028two\u2029three\x85four\x0bfive"
    client = fleet.client(fleet.sidecar("qwen3", fleet.simulator("qwen3").url))
    ids = encode("qwen3", text)
    answers = [client.ask(said(vllm_xargs=script(ids, chunk=chunk), stream=stream))
               for chunk in (1, 2, len(ids)) for stream in (True, False)]  # fmt: skip
    return text, answers


def comments(fleet: Fleet, raw_engine: RawEngine) -> dict[str, Any]:
    """Silence that is longer than the idle timeout, with comments in it and without."""
    timeout, interval, count = 0.4, 0.15, 5
    one, two = encode_demo("Hello"), encode_demo(" you")
    client = fleet.client(fleet.sidecar(DEMO_MODEL, raw_engine.url, idle_timeout=timeout))
    answers = []
    for comment in (b": ping\n\n", b""):
        steps: list[Step] = [SSE_HEAD, http_chunk(event(*one))]
        for _ in range(count):
            steps += [interval, *([http_chunk(comment)] if comment else [])]
        steps += [http_chunk(event(*two, finish="stop") + DONE), b"0\r\n\r\n"]
        raw_engine.play = playing(steps)
        answers.append(ask(client, True))
    return {"quiet, timeout, answer": (interval * count, timeout, answers[0]), "without comments": answers[1]}


def test_crlf(raw_engine: RawEngine, client: Client) -> None:
    case = cases.load()["transport-01"]
    evidence = Evidence(case, facts={"pause": PAUSE})
    *head, last = reads_of("transport-01")
    first, rest = last.split(b"\r\n\r\n", 1)

    end: list[Step] = [b"0\r\n\r\n"]
    # the first event is complete with the reads before the last: nothing more comes for a while
    paused = [SSE_HEAD, *(step for read in head for step in (http_chunk(read), 0.01)), PAUSE, http_chunk(last), *end]
    split = [SSE_HEAD, http_chunk(b"".join(head) + first + b"\r\n\r"), PAUSE, http_chunk(b"\n" + rest), *end]
    for steps in (paused, split):
        raw_engine.play = playing(steps)
        evidence.streamed.append((None, ask(client, True)))
    for _, answer in evidence.streamed:
        check_stream(answer, usage=True)
        check(case, answer)
    judge(evidence)
    for cut in cuts_of(reads_of("transport-01")).values():
        raw_engine.play = playing(sse(*cut))
        for stream in (True, False):
            check(case, ask(client, stream))


def test_reset_in_mid_stream(raw_engine: RawEngine, client: Client) -> None:
    case = cases.load()["errors-01"]
    reads = reads_of("errors-01")
    evidence = Evidence(case)
    for cut in cuts_of(reads).values():
        # what was sent is to arrive: a reset drops what the kernel still holds
        raw_engine.play = playing([*sse(*cut, end=False), 0.1, "reset"])
        answer = client.ask(said(stream=True))
        check_stream(answer, failed=True)
        check_chunks([{"delta": {"role": "assistant", "content": ""}}, *case.expected["chunks_like"]], answer)
        evidence.streamed.append((None, answer))
        whole = ask(client, False)
        assert whole.status == 502
        evidence.whole.append((None, whole))
    with openai.OpenAI(base_url=client.url + "/v1", api_key="x", max_retries=0) as official, pytest.raises(
        openai.APIError
    ) as raised:
        list(official.chat.completions.create(model="raw", messages=[{"role": "user", "content": "x"}], stream=True))
    evidence.facts["raised by openai"] = raised.type.__name__
    judge(evidence)


def test_end_without_finish(raw_engine: RawEngine, client: Client) -> None:
    case = cases.load()["errors-05"]
    evidence = Evidence(case)
    started = time.monotonic()
    (read,) = reads_of("errors-05")
    without_done = read.removesuffix(b"data: [DONE]\n\n")
    endings: list[list[Step]] = [sse(read), sse(without_done), [*sse(without_done, end=False), 0.05, "close"]]
    for steps in endings:
        raw_engine.play = playing(list(steps))
        streamed = client.ask(said(stream=True))
        check_stream(streamed, failed=True)
        assert streamed.only.content == "Hello"
        evidence.streamed.append((None, streamed))
        evidence.whole.append((None, ask(client, False)))
    evidence.facts["seconds"] = time.monotonic() - started
    judge(evidence)


def test_errors_before_the_first_chunk(fleet: Fleet, raw_engine: RawEngine, client: Client) -> None:
    case = cases.load()["errors-03"]
    wanted = case.expected["http"]
    body = {**case.input["body"], "model": "raw"}
    before = len(raw_engine.asked())
    answer = client.ask(body)
    assert answer.status == wanted["status"]
    assert answer.headers["content-type"].startswith(wanted["content_type"])
    assert wanted["body_has"] == ["error.message"] and answer.json["error"]["message"]
    assert len(raw_engine.asked()) == before

    simulator = fleet.simulator("qwen3")
    simulated = fleet.client(fleet.sidecar("qwen3", simulator.url))
    started = time.monotonic()
    slow = simulated.ask(said(stream=True, vllm_xargs=script([9707], ttft=PAUSE)))
    fault = script([9707], fault="first_event", fault_status=400)
    failed = simulated.ask(said(stream=True, vllm_xargs=fault))
    assert failed.error is not None and failed.headers["content-type"].startswith("application/json")

    nowhere = f"http://127.0.0.1:{free_port()}"
    lost = fleet.client(fleet.sidecar(DEMO_MODEL, nowhere, ready=False, max_model_len=64, served_model_name=["m"]))
    statuses = [lost.ask(said(model="m", stream=stream, max_tokens=4)).status for stream in (True, False)]
    facts = {
        "first event and headers": (PAUSE, slow.headers_at - started),
        "failed first event": failed.status,
        "unreachable": statuses,
    }
    judge(Evidence(case, facts=facts))


def test_long_frames(fleet: Fleet, raw_engine: RawEngine, client: Client) -> None:
    case = cases.load()["transport-08"]
    evidence = Evidence(case)
    for size in (200_000, 3_000_000):
        frames = long_event(size, 9707) + event(1879, finish="stop") + DONE
        cut = [frames[at : at + 65_536] for at in range(0, len(frames), 65_536)]
        raw_engine.play = playing(sse(*cut))
        streamed, whole = ask(client, True), ask(client, False)
        check_stream(streamed, usage=True)
        for answer in (streamed, whole):
            check(case, answer)
        evidence.streamed.append((None, streamed))
        evidence.whole.append((None, whole))
    evidence.facts["seconds for one and four"] = tuple(
        min(seconds_to_decode(size) for _ in range(3)) for size in (1_000_000, 4_000_000)
    )
    bounded = fleet.client(fleet.sidecar(DEMO_MODEL, raw_engine.url, max_event_size=100_000))
    one = encode_demo("Hello")
    too_long = []
    for before in (b"", event(*one)):
        raw_engine.play = playing(sse(before + long_event(200_000, one[0]), DONE))
        too_long += [ask(bounded, stream) for stream in (True, False)]
    evidence.facts["too long"] = too_long
    judge(evidence)
    checks.modes_agree(Evidence(case, streamed=evidence.streamed[:1], whole=evidence.whole[:1]))


def long_event(size: int, token: int) -> bytes:
    """An event whose line has ``size`` bytes."""
    head = b'data: {"request_id":"r1","prompt_token_ids":[1'
    tail = b'],"choices":[{"index":0,"token_ids":[%d],"finish_reason":null}]}' % token
    filler = b",1" * ((size - len(head) - len(tail)) // 2)
    return head + filler + b" " * (size - len(head) - len(filler) - len(tail)) + tail + b"\n\n"


def seconds_to_decode(size: int) -> float:
    decoder, data = SSEDecoder(), long_event(size, 9707)
    started = time.perf_counter()
    found = [decoded for at in range(0, len(data), 512) for decoded in decoder.feed(data[at : at + 512])]
    assert len(found) == 1
    return time.perf_counter() - started


def test_nothing_is_buffered(raw_engine: RawEngine, client: Client) -> None:
    case = cases.load()["transport-09"]
    sent: list[float] = []
    words = [ids for word in " a b c d e f g h".split() for ids in [encode("qwen3", " " + word)]]
    assert len(words) == 8

    def paced(asked: Asked) -> Iterator[Step]:
        yield SSE_HEAD
        for number, ids in enumerate(words):
            yield 0.25
            sent.append(time.monotonic())
            yield http_chunk(event(*ids, finish="stop" if number == 7 else None))
        yield http_chunk(DONE)
        yield b"0\r\n\r\n"

    raw_engine.play = paced
    answer = client.ask(said(stream=True), headers={"accept-encoding": "gzip, deflate, br"})
    check_stream(answer)
    assert answer.only.content == " a b c d e f g h"
    judge(Evidence(case, streamed=[(None, answer)], facts={"sent": sent}))


def test_headers_of_a_whole_answer(raw_engine: RawEngine, client: Client) -> None:
    raw_engine.play = playing(sse(event(9707, finish="stop"), DONE))
    with httpx.Client(trust_env=False) as plain_client:
        answer = plain_client.post(client.url + CHAT, json=said(), headers={"accept-encoding": "gzip"})
    assert answer.headers["content-type"].startswith("application/json")
    assert int(answer.headers["content-length"]) == len(answer.content)
