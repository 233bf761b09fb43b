"""Scripts, timing and faults of the simulated engine, read by the proxy's own engine client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from proxy.engines.base import GenerateRequest
from proxy.engines.vllm import VLLMEngine
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent
from proxy.simulator.frames import logprob_entry
from tests.engines.raw_server import engine_for
from tests.simulator.serving import MODEL, simulator

TOKENIZER = Tokenizer.from_file(f"{MODEL}/tokenizer.json")
EOS = TOKENIZER.token_to_id("<|im_end|>")
GENERATE = "/inference/v1/generate"


@contextlib.asynccontextmanager
async def pair(
    engine_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[VLLMEngine, httpx.AsyncClient]]:
    async with simulator(**options) as client, engine_for(str(client.base_url), **(engine_options or {})) as engine:
        yield engine, client


def asking(args: dict[str, Any], prompt: list[int] | None = None, **params: Any) -> GenerateRequest:
    return GenerateRequest("r-1", prompt or [1, 2, 3], {**params, "extra_args": args})


async def lists_of(engine: VLLMEngine, request: GenerateRequest) -> list[list[GenerateEvent]]:
    async with engine.generate(request) as stream:
        return [events async for events in stream]


async def choices_of(
    engine: VLLMEngine, request: GenerateRequest
) -> list[tuple[int, list[int] | None, str | None, Any]]:
    return [
        (choice.index, choice.token_ids, choice.finish_reason, choice.stop_reason)
        for events in await lists_of(engine, request)
        for event in events
        for choice in event.choices
    ]


async def record(client: httpx.AsyncClient) -> dict[str, Any]:
    (found,) = (await client.get("/simulator/requests")).json()["requests"]
    return dict(found)


@pytest.mark.parametrize(
    ("args", "params", "want"),
    [
        ({"force_ids": [5, 6]}, {}, [(0, [5], None, None), (0, [6], "stop", None)]),
        ({"force_ids": "[5, 6]"}, {}, [(0, [5], None, None), (0, [6], "stop", None)]),
        ({"force_ids": [5, EOS, 6]}, {}, [(0, [5], None, None), (0, [EOS], "stop", EOS)]),
        ({"force_ids": [5, 9, 6]}, {"stop_token_ids": [9]}, [(0, [5], None, None), (0, [9], "stop", 9)]),
        ({"force_ids": [9, 5, 9], "chunk": 3}, {"stop_token_ids": [9], "min_tokens": 2}, [(0, [9, 5, 9], "stop", 9)]),
        ({"force_ids": [5, 6, 7]}, {"max_tokens": 2}, [(0, [5], None, None), (0, [6], "length", None)]),
        (
            {"force_ids": [5, EOS], "chunk": 9},
            {"ignore_eos": True, "max_tokens": 3},
            [(0, [5, EOS, 5], "length", None)],
        ),
        ({"force_ids": [1, 2, 3, 4], "chunk": [3, 1]}, {}, [(0, [1, 2, 3], None, None), (0, [4], "stop", None)]),
        ({"force_ids": [1, 2, 3, 4], "chunk": [1]}, {}, [(0, [1], None, None), (0, [2, 3, 4], "stop", None)]),
        ({"force_ids": [], "finish_reason": "abort"}, {}, [(0, [], "abort", None)]),
        ({"force_ids": [5], "finish_reason": "length"}, {}, [(0, [5], "length", None)]),
        ({"force_ids": [5], "finish_alone": True}, {}, [(0, [5], None, None), (0, [], "stop", None)]),
        ({"force_ids": [5], "stop_reason": "END"}, {}, [(0, [5], "stop", "END")]),
        ({"fault": "abort", "fault_after": 1, "force_ids": [5, 6]}, {}, [(0, [5], None, None), (0, [], "abort", None)]),
        (
            {"force_ids": [[1, 2, 3], [4]]},
            {"n": 2},
            [(0, [1], None, None), (1, [4], "stop", None), (0, [2], None, None), (0, [3], "stop", None)],
        ),
        (
            {"force_ids": "[[1], [2]]"},
            {"n": 3},
            [(0, [1], "stop", None), (1, [2], "stop", None), (2, [1], "stop", None)],
        ),
    ],
)
async def test_scripts_of_ids(args: dict[str, Any], params: dict[str, Any], want: list[Any]) -> None:
    async with pair() as (engine, client):
        assert await choices_of(engine, asking(args, **params)) == want
        if "fault" not in args:
            full = await engine.generate_full(asking(args, **params))
            for choice in full.choices:
                mine = [said for said in want if said[0] == choice.index]
                assert choice.token_ids == [token for said in mine for token in said[1]]
                assert (choice.finish_reason, choice.stop_reason) == mine[-1][2:]


async def test_scripts_of_text() -> None:
    text = "<think>\nHm.\n</think>\n\nGrüße 👋<tool_call>\n{}\n</tool_call>"
    async with pair() as (engine, _):
        said = await choices_of(engine, asking({"force_text": text}))
        ids = [token for _, part, _, _ in said for token in part or ()]
        assert ids == [*TOKENIZER.encode(text).ids, EOS]
        assert said[-1][2:] == ("stop", EOS)
        said = await choices_of(engine, asking({"force_text": ["a", "b"], "finish_reason": "length"}, n=2))
        assert [(index, finish) for index, _, finish, _ in said] == [(0, "length"), (1, "length")]


async def test_the_default_answer_repeats_the_question() -> None:
    prompt = TOKENIZER.encode("<|im_start|>user\nIs it late?<|im_end|>\n<|im_start|>assistant\n").ids
    closed = prompt + TOKENIZER.encode("<think>\n\n</think>\n\n").ids
    async with pair() as (engine, _):
        for ids, want in [
            (prompt, "<think>\nThe question is to be repeated.\n</think>\n\nYou said: Is it late?<|im_end|>"),
            (closed, "You said: Is it late?<|im_end|>"),
        ]:
            said = await choices_of(engine, asking({}, prompt=ids))
            told = [token for _, part, _, _ in said for token in part or ()]
            assert TOKENIZER.decode(told, skip_special_tokens=False) == want
    async with pair(model=None) as (engine, _):
        assert (await choices_of(engine, asking({"chunk": 9})))[0][1] == [1, 2, 3]


ENTRIES: list[dict[str, Any]] = [
    {"order": 0, "ids": [1]},
    {"match": "weather", "text": "sunny", "finish_reason": "length", "chunk": 100},
    {"match": "fail", "fault": "http", "fault_status": 503},
    {"ids": [2, 3], "chunk": 2, "finish_reason": "abort"},
]


@pytest.mark.parametrize("suffix", ["jsonl", "yaml"])
async def test_script_files(tmp_path: Path, suffix: str) -> None:
    script = tmp_path / f"script.{suffix}"
    script.write_text("\n".join(json.dumps(e) for e in ENTRIES) if suffix == "jsonl" else json.dumps(ENTRIES))
    async with pair(script=str(script)) as (engine, _):
        weather = TOKENIZER.encode("the weather in Rome").ids
        assert await choices_of(engine, asking({}, prompt=weather)) == [(0, [1], "stop", None)]
        said = await choices_of(engine, asking({}, prompt=weather))
        assert said == [(0, TOKENIZER.encode("sunny").ids, "length", None)]
        assert await choices_of(engine, asking({})) == [(0, [2, 3], "abort", None)]
        assert (await choices_of(engine, asking({"force_ids": [9], "chunk": 1})))[0][1] == [9]  # the request wins
        with pytest.raises(UpstreamError) as caught:
            await choices_of(engine, asking({}, prompt=TOKENIZER.encode("please fail").ids))
        assert caught.value.status == 503


async def test_a_bad_script_file_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text("[1]\n")
    with pytest.raises(ValueError, match="list of objects"):
        async with simulator(script=str(script)):
            pass


@pytest.mark.parametrize("k", [0, 1, 5])
async def test_logprobs(k: int) -> None:
    async with pair() as (engine, _):
        ids = list(range(20, 40))
        (events,) = await lists_of(engine, asking({"force_ids": ids, "chunk": 20}, logprobs=k))
        logprobs = events[0].choices[0].logprobs
        assert logprobs is not None
        content = logprobs.content or []
        assert [entry.token_id for entry in content] == ids
        for entry in content:
            top = entry.top_logprobs
            assert (top[0].token_id, top[0].logprob, top[0].rank) == (entry.token_id, entry.logprob, entry.rank)
            by_rank = sorted(top, key=lambda candidate: candidate.rank or 0)
            assert [c.logprob for c in by_rank] == sorted((c.logprob for c in top), reverse=True)
            assert len({c.token_id for c in top}) == len(top) == (max(k, 1) if (entry.rank or 0) <= k else k + 1)
        assert {entry.rank for entry in content} == {1, 3}
    assert logprob_entry(20, 0, k, 6080) == logprob_entry(20, 0, k, 6080)


async def test_usage() -> None:
    async with pair(cached_tokens=2) as (engine, _):
        events = [e for part in await lists_of(engine, asking({"force_ids": [5, 6]}, n=2)) for e in part]
        usage = events[-1].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 4, 7)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 2
        request = asking({"force_ids": [5, 6]})
        request.continuous_usage = True
        events = [e for part in await lists_of(engine, request) for e in part]
        assert [e.usage.completion_tokens for e in events if e.usage] == [1, 2, 2]


async def test_lean_events() -> None:
    async with simulator(lean=True) as client:
        body = {
            "request_id": "x",
            "token_ids": [1],
            "stream": True,
            "sampling_params": {"extra_args": {"force_ids": [5, 6]}},
        }
        text = (await client.post(GENERATE, json=body)).text
    assert text == (
        'data: {"request_id":"x","choices":[{"index":0,"token_ids":[5]}]}\n\n'
        'data: {"request_id":"x","choices":[{"index":0,"finish_reason":"stop","token_ids":[6],'
        '"weight_versions":[{"version":"default","start":0,"end":2}]}]}\n\n'
        "data: [DONE]\n\n"
    )


@pytest.mark.parametrize("newline", ["lf", "crlf", "cr"])
async def test_framing(newline: str) -> None:
    args = {"force_ids": [1, 2, 3], "newline": newline, "comment_every": 2, "comments": 2, "pad_bytes": 70_000}
    async with pair() as (engine, client):
        assert [part for _, part, _, _ in await choices_of(engine, asking(args))] == [[1], [2], [3]]
        body = {"token_ids": [1], "stream": True, "sampling_params": {"extra_args": args}}
        raw = (await client.post(GENERATE, json=body)).content
    assert raw.count(b": keep-alive") == 5
    assert len(raw) > 210_000
    assert (b"\r" in raw, b"\n" in raw) == {"lf": (False, True), "crlf": (True, True), "cr": (True, False)}[newline]


async def test_latency_and_bursts() -> None:
    async with pair() as (engine, _):
        start = time.monotonic()
        async with engine.generate(
            asking({"force_ids": [1, 2, 3, 4], "ttft": 0.15, "itl": 0.05, "burst": 2})
        ) as stream:
            arrivals = [(time.monotonic() - start, sum(len(e.choices) for e in events)) async for events in stream]
        assert arrivals[0][0] >= 0.15
        assert arrivals[1][0] - arrivals[0][0] >= 0.04
        assert sum(count for _, count in arrivals) == 4
        assert arrivals[0][1] == 2


@pytest.mark.parametrize(
    ("args", "kind", "status", "ids"),
    [
        ({"fault": "http", "fault_status": 429}, "status", 429, []),
        ({"fault": "http", "fault_body": "<html>", "fault_status": 500}, "status", 502, []),
        ({"fault": "first_event", "fault_status": 400}, "error_event", 400, []),
        ({"fault": "first_event", "fault_status": 503}, "error_event", 503, []),
        ({"fault": "error_event", "fault_after": 2}, "error_event", 502, [1, 2]),
        ({"fault": "reset", "fault_after": 2}, "eof", 502, [1, 2]),
        ({"fault": "close", "fault_after": 2}, "eof", 502, [1, 2]),
        ({"fault": "eof", "fault_after": 2}, "eof", 502, [1, 2]),
        ({"fault": "eof", "fault_after": 0}, "eof", 502, []),
        ({"fault": "half_frame", "fault_after": 2}, "eof", 502, [1, 2]),
        ({"fault": "done_early", "fault_after": 2}, "eof", 502, [1, 2]),
        ({"fault": "garbage", "fault_after": 2, "burst": 3}, "protocol", 502, [1, 2]),
        ({"fault": "stall", "fault_after": 2}, "timeout_idle", 504, [1, 2]),
        ({"fault": "stall"}, "timeout_first_token", 504, []),
        ({"fault": "slow_headers", "fault_delay": 5}, "timeout_first_token", 504, []),
    ],
)
async def test_faults(args: dict[str, Any], kind: str, status: int, ids: list[int]) -> None:
    seen: list[int] = []
    async with pair({"idle_timeout": 0.2, "first_token_timeout": 0.4}) as (engine, _):
        with pytest.raises(UpstreamError) as caught:
            async with engine.generate(asking({"force_ids": [1, 2, 3, 4], **args})) as stream:
                async for events in stream:
                    seen += [token for event in events for choice in event.choices for token in choice.token_ids or ()]
    assert (caught.value.kind, caught.value.status, seen) == (kind, status, ids)


@pytest.mark.parametrize("fault", ["no_done", "no_usage"])
async def test_faults_that_are_none(fault: str) -> None:
    async with pair() as (engine, _):
        assert len(await choices_of(engine, asking({"force_ids": [1, 2], "fault": fault}))) == 2


@pytest.mark.parametrize(
    ("fault", "status"), [("http", 400), ("error_event", 400), ("reset", 502), ("close", 502), ("abort", None)]
)
async def test_faults_of_answers_in_one_piece(fault: str, status: int | None) -> None:
    async with pair() as (engine, _):
        request = asking({"force_ids": [1], "fault": fault, "fault_status": 400})
        if status is None:
            assert (await engine.generate_full(request)).choices[0].finish_reason == "abort"
            return
        with pytest.raises(UpstreamError) as caught:
            await engine.generate_full(request)
        assert caught.value.status == status


async def test_records_what_became_of_a_request() -> None:
    async with pair() as (engine, client):
        request = asking({"force_ids": [1, 2]})
        request.headers = {"traceparent": "00-1"}
        await choices_of(engine, request)
        told = await record(client)
        assert told["request_id"] == "generate-tokens-r-1"
        assert told["body"]["sampling_params"] == {"extra_args": {"force_ids": [1, 2]}}
        assert told["headers"] == {"x-request-id": "r-1", "traceparent": "00-1"}
        assert (told["aborted"], told["tokens"], told["events"]) == (None, 2, 2)
        assert told["ended"] >= told["started"]
        assert (await client.delete("/simulator/requests")).status_code == 204
        assert (await client.get("/simulator/requests")).json() == {"running": [], "requests": []}


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_aborts(streamed: bool) -> None:
    async with pair() as (engine, client):
        request = asking({"force_ids": [1] * 1_000, "itl": 0.01})
        task = asyncio.ensure_future(lists_of(engine, request) if streamed else engine.generate_full(request))
        await asyncio.sleep(0.15)
        assert (await client.get("/simulator/requests")).json()["running"] == ["generate-tokens-r-1"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.15)
        told = await record(client)
        assert told["aborted"] in ("close", "route")
        assert told["tokens"] < 100
        assert told["abort_asked"]
        assert (await client.get("/simulator/requests")).json()["running"] == []


@pytest.mark.parametrize(
    "args", [{"force_ids": [1] * 1_000, "itl": 0.01}, {"force_ids": [1] * 30_000, "pad_bytes": 999}]
)
async def test_the_abort_route_ends_the_stream_as_the_engine_does(args: dict[str, Any]) -> None:
    async with pair() as (engine, client):
        async with engine.generate(asking(args, n=2)) as stream:
            await anext(stream)
            await client.post("/inference/v1/abort_requests", json={"request_ids": ["other", "generate-tokens-r-1"]})
            rest = [choice for events in [e async for e in stream] for event in events for choice in event.choices]
        assert [(choice.index, choice.token_ids, choice.finish_reason) for choice in rest[-2:]] == [
            (0, [], "abort"),
            (1, [], "abort"),
        ]
        assert (await record(client))["aborted"] == "route"


async def test_a_closed_connection_alone_aborts() -> None:
    async with simulator() as client:
        args = {"force_ids": [1] * 1_000, "itl": 0.01}
        body = {"token_ids": [1], "stream": True, "sampling_params": {"extra_args": args}}
        async with client.stream("POST", GENERATE, json=body) as response:
            await anext(response.aiter_raw())
        await asyncio.sleep(0.1)
        told = await record(client)
        assert (told["aborted"], "abort_asked" in told) == ("close", False)
        assert told["aborted_at"] >= told["started"]
        assert 0 < told["tokens"] < 100
