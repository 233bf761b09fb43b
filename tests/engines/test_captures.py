"""Answers of real engines, recorded, played from a real socket in many cuts, and read by the client."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.engines.base import GenerateRequest
from proxy.engines.vllm import VLLMEngine
from proxy.errors import UpstreamError
from tests.engines.raw_server import SSE_HEAD, Asked, Step, engine_for, http_chunk, plain, serving, sse

DATA = Path(__file__).parent.parent / "data"


@dataclass
class Told:
    """What an engine said of a request, folded."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    finish: dict[int, tuple[str, Any]] = field(default_factory=dict)
    logprobs: list[tuple[int, float]] = field(default_factory=list)
    usage: tuple[int, int, int] | None = None
    error: str | None = None
    status: int | None = None


@dataclass
class Capture:
    name: str
    path: str
    request: Any
    status: int
    body: bytes

    @property
    def streamed(self) -> bool:
        return self.body.startswith(b"data:")

    @property
    def choices(self) -> int:
        params = self.request.get("sampling_params") if isinstance(self.request, dict) else None
        return int(params.get("n", 1)) if isinstance(params, dict) else 1


def read_capture(path: Path) -> Capture:
    text = path.read_bytes()
    head, _, answer = text.partition(b"\n\n")
    route, body = re.findall(rb"^>>> ?(.*)$", head, re.M)[:2]
    status_line, _, rest = answer.partition(b"\n")
    try:
        request = json.loads(body)
    except ValueError:
        request = None
    content = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)
    return Capture(
        name=path.stem,
        path=route.split()[1].decode(),
        request=request,
        status=int(status_line.split()[1]),
        body=content[1] if len(content) > 1 else b"",
    )


SKIP_FORM = ("tok033_timed_recv", "tok033_stream_n1_raw_chunked")  # hold the framing of HTTP too; tested below
READ = (read_capture(path) for path in sorted((DATA / "captures").glob("*.txt")) if path.stem not in SKIP_FORM)
CAPTURES = {capture.name: capture for capture in READ if not capture.path.startswith("/v1/chat")}  # not an engine's
STREAMS = [name for name, capture in CAPTURES.items() if capture.streamed and capture.request]
GENERATE = [name for name, c in CAPTURES.items() if c.path == "/inference/v1/generate" and c.request is not None]
FULL = [name for name in GENERATE if not CAPTURES[name].streamed and CAPTURES[name].status == 200]
REFUSED = [name for name in GENERATE if CAPTURES[name].status != 200]


def expected(body: bytes) -> Told:
    """The capture read by a second, plainer reader."""
    told = Told()
    for line in re.split(rb"\r\n|\n|\r", body):
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        data = json.loads(line[5:])
        if "error" in data:
            told.error, told.status = data["error"]["message"], data["error"]["code"]
            continue
        fold(told, data)
    return told


def fold(told: Told, data: dict[str, Any]) -> None:
    for choice in data["choices"]:
        told.ids.setdefault(choice["index"], []).extend(choice["token_ids"])
        if choice.get("finish_reason"):
            told.finish[choice["index"]] = (choice["finish_reason"], choice.get("stop_reason"))
        for entry in (choice.get("logprobs") or {}).get("content", ()):
            told.logprobs.append((entry["token_id"], entry["logprob"]))
    if data.get("usage"):
        usage = data["usage"]
        told.usage = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


async def read(engine: VLLMEngine, choices: int) -> Told:
    told = Told()
    request = GenerateRequest("r-1", [1, 2], {"n": choices})
    try:
        async with engine.generate(request) as stream:
            async for events in stream:
                assert events
                for event in events:
                    for choice in event.choices:
                        told.ids.setdefault(choice.index, []).extend(choice.token_ids or ())
                        if choice.finish_reason:
                            told.finish[choice.index] = (choice.finish_reason, choice.stop_reason)
                        content = choice.logprobs.content if choice.logprobs else None
                        told.logprobs += [(entry.token_id, entry.logprob) for entry in content or ()]
                    if event.usage:
                        usage = event.usage
                        told.usage = (usage.prompt_tokens, usage.completion_tokens or 0, usage.total_tokens)
    except UpstreamError as error:
        told.error, told.status = error.message, error.status
    return told


def random_cuts(data: bytes, rng: random.Random, size: int) -> list[bytes]:
    cuts, at = [], 0
    while at < len(data):
        step = rng.randint(1, size)
        cuts.append(data[at : at + step])
        at += step
    return cuts


@pytest.mark.parametrize("name", STREAMS)
async def test_streams(name: str) -> None:
    capture = CAPTURES[name]
    rng = random.Random(name)
    events = [part + b"\n\n" for part in capture.body.split(b"\n\n") if part.strip()]
    plans = [[capture.body], events, random_cuts(capture.body, rng, 700), random_cuts(capture.body, rng, 90)]
    if len(capture.body) < 3_000:
        plans.append([bytes([byte]) for byte in capture.body])
    plan: list[bytes] = []

    def answer(asked: Asked) -> list[Step]:
        return sse(*plan) if asked.path.endswith("generate") else plain(200, b"")

    async with serving(answer) as server, engine_for(server.url) as engine:
        for plan[:] in plans:
            assert await read(engine, capture.choices) == expected(capture.body)
        if not expected(capture.body).error:
            assert server.connections <= 2  # the connection of a stream read to its end is used again


@pytest.mark.parametrize("name", ["tok033_timed_recv", "tok033_stream_n1_raw_chunked"])
async def test_reads_as_they_were_on_the_wire(name: str) -> None:
    raw = (DATA / "captures" / f"{name}.txt").read_bytes()
    if name == "tok033_timed_recv":
        reads = [raw[m.end() : m.end() + int(m[1])] for m in re.finditer(rb"--- t=[\d.]+ ms recv (\d+) bytes.*\n", raw)]
    else:
        reads = [raw[raw.index(b"HTTP/1.1") :]]
    steps: list[Step] = [step for read in reads for step in (read, 0.001)]

    async with serving(lambda asked: steps) as server, engine_for(server.url) as engine:
        told = await read(engine, 1)
    assert told == expected(raw)
    assert told.finish


@pytest.mark.parametrize("name", FULL)
async def test_answers_in_one_piece(name: str) -> None:
    capture = CAPTURES[name]
    data = json.loads(capture.body)
    want = Told()
    fold(want, data)
    async with serving(lambda asked: plain(200, capture.body)) as server, engine_for(server.url) as engine:
        event = await engine.generate_full(GenerateRequest("r-1", [1], {"n": capture.choices}))
        assert server.asked[0].json["stream"] is False
    assert {choice.index: choice.token_ids for choice in event.choices} == want.ids
    assert {choice.index: (choice.finish_reason, choice.stop_reason) for choice in event.choices} == want.finish
    assert event.prompt_logprobs == data.get("prompt_logprobs")
    assert event.prompt_token_ids == data.get("prompt_token_ids")


@pytest.mark.parametrize("name", REFUSED)
async def test_refusals_keep_status_message_and_parameter(name: str) -> None:
    capture = CAPTURES[name]
    want = json.loads(capture.body)["error"]
    async with serving(lambda asked: plain(capture.status, capture.body)) as server, engine_for(server.url) as engine:
        for call in (read_raising, lambda engine: engine.generate_full(GenerateRequest("r", [1]))):
            with pytest.raises(UpstreamError) as caught:
                await call(engine)
            error = caught.value
            assert (error.status, error.message, error.type, error.param) == (
                capture.status,
                want["message"],
                want["type"],
                want["param"],
            )
            assert error.kind == "status"
        assert len(server.asked) == 2  # nothing runs, nothing is aborted


async def read_raising(engine: VLLMEngine) -> None:
    async with engine.generate(GenerateRequest("r", [1])) as stream:
        async for _ in stream:
            pass


CASES = {case["id"]: case for case in json.loads((DATA / "sse_cases.json").read_text())}


@pytest.mark.parametrize("name", CASES)
async def test_cases_from_the_field(name: str) -> None:
    case = CASES[name]
    reads = [bytes.fromhex(read) for read in case["reads_hex"]]
    steps = [step for read in reads for step in (http_chunk(read), 0.003)]
    ending: list[Step] = ["reset"] if case["note"] else [b"0\r\n\r\n"]

    def answer(asked: Asked) -> list[Step]:
        return [SSE_HEAD, *steps, *ending] if asked.path.endswith("generate") else plain(200, b"")

    async with serving(answer) as server, engine_for(server.url) as engine:
        told = await read(engine, 1)
        aborts = len(await server.wait_for("/inference/v1/abort_requests")) if told.error else 0
    want = expected(b"\n".join(reads)) if name not in ("transport-01", "transport-05", "transport-06") else told
    assert told.ids == want.ids
    if name.startswith("errors"):
        assert (told.status, told.finish) == (502, {})
        assert told.error
        assert aborts == 1
    else:
        assert told.error is None
        assert told.finish == {0: (case["finish_reason"], None)}
        assert told.ids[0][0] == 9707
    if case["usage"]:
        assert told.usage == (3, 2, 5)
