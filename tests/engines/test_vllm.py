"""What the vLLM client asks, and how it takes every way an engine can fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from proxy.engines.base import GenerateRequest
from proxy.engines.vllm import VLLMEngine, VLLMOptions
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent
from tests.engines.raw_server import (
    DONE,
    SSE_HEAD,
    Asked,
    RawServer,
    Step,
    engine_for,
    event,
    http_chunk,
    plain,
    serving,
    sse,
)

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"


async def collect(engine: VLLMEngine, request: GenerateRequest, seen: list[int] | None = None) -> list[GenerateEvent]:
    """All events; ids of those that came before a fault are in ``seen``."""
    got: list[GenerateEvent] = []
    async with engine.generate(request) as stream:
        async for events in stream:
            got += events
            if seen is not None:
                seen += [token for one in events for choice in one.choices for token in choice.token_ids or ()]
    return got


def generate_only(steps: list[Step]) -> Any:
    return lambda asked: steps if asked.path == GENERATE else plain(200, b"")


async def fail(steps: list[Step], n: int = 1, **options: Any) -> tuple[UpstreamError, list[int], RawServer]:
    """The failure that an engine playing ``steps`` causes, and the ids handed out before it."""
    seen: list[int] = []
    async with serving(generate_only(steps)) as server:
        async with engine_for(server.url, **options) as engine:
            with pytest.raises(UpstreamError) as caught:
                await collect(engine, GenerateRequest("r-1", [1], {"n": n}), seen)
    return caught.value, seen, server


async def test_the_request_as_vllm_wants_it() -> None:
    request = GenerateRequest(
        request_id="r-1",
        token_ids=[5, 6],
        sampling_params={"max_tokens": 3, "n": 1, "something_new": [1]},
        model="m",
        cache_salt="s",
        priority=2,
        kv_transfer_params={"a": 1},
        features={"image": []},
        reasoning_ended=False,
        reasoning_parser_kwargs={"k": {}},
        extra={
            "unknown": {"x": 1},
            "stream": False,
            "request_id": "theirs",
            "output_mode": "text",
            "stream_options": 1,
        },
        headers={
            "traceparent": "00-1-2-01",
            "baggage": "a=b",
            "X-Request-Id": "theirs",
            "Authorization": "Bearer theirs",
            "x-odd": "a\nb",
            "x-umlaut": "ü",
        },
    )
    async with serving(generate_only(sse(event(7, finish="stop"), DONE))) as server:
        async with engine_for(server.url, api_key="key") as engine:
            await collect(engine, request)
    asked = server.asked[0]
    assert asked.json == {
        "unknown": {"x": 1},
        "request_id": "r-1",
        "token_ids": [5, 6],
        "sampling_params": {"max_tokens": 3, "n": 1, "something_new": [1]},
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
        "model": "m",
        "cache_salt": "s",
        "priority": 2,
        "kv_transfer_params": {"a": 1},
        "features": {"image": []},
        "reasoning_ended": False,
        "reasoning_parser_kwargs": {"k": {}},
    }
    assert asked.headers["x-request-id"] == "r-1"
    assert asked.headers["authorization"] == "Bearer key"
    assert asked.headers["traceparent"] == "00-1-2-01"
    assert asked.headers["baggage"] == "a=b"
    assert asked.headers["content-type"] == "application/json"
    assert not {"x-odd", "x-umlaut"} & asked.headers.keys()


async def test_ids_that_cannot_stand_in_a_header_are_the_same_in_header_and_body() -> None:
    async with serving(generate_only(sse(event(7, finish="stop"), DONE))) as server, engine_for(server.url) as engine:
        await collect(engine, GenerateRequest("ü x\r\ny: 1", [1], continuous_usage=True))
    assert server.asked[0].headers["x-request-id"] == "__x__y:_1"
    assert server.asked[0].json["request_id"] == "__x__y:_1"
    assert server.asked[0].json["stream_options"]["continuous_usage_stats"] is True


async def test_all_events_of_one_read_come_in_one_list() -> None:
    reads = [event(1) + event(2) + event(3)[:20], event(3)[20:] + event(4, finish="length")]
    steps: list[Step] = [
        SSE_HEAD,
        http_chunk(reads[0]),
        0.05,
        http_chunk(reads[1]),
        0.05,
        http_chunk(DONE),
        b"0\r\n\r\n",
    ]
    async with serving(generate_only(steps)) as server, engine_for(server.url) as engine:
        async with engine.generate(GenerateRequest("r", [1])) as stream:
            lists = [[choice.token_ids for one in events for choice in one.choices] async for events in stream]
            assert stream.ended
    assert lists == [[[1], [2]], [[3], [4]]]
    assert [asked.path for asked in server.asked] == [GENERATE]


@pytest.mark.parametrize("ending", [b"", DONE, DONE + DONE])
async def test_done_may_be_missing_or_doubled_once_all_have_finished(ending: bytes) -> None:
    async with (
        serving(generate_only(sse(event(7, finish="stop") + ending))) as server,
        engine_for(server.url) as engine,
    ):
        assert len(await collect(engine, GenerateRequest("r", [1]))) == 1
    assert len(server.asked) == 1


async def test_a_connection_lost_after_the_last_finish_is_an_end() -> None:
    steps: list[Step] = [*sse(event(7, finish="stop"), end=False), 0.02, "reset"]
    async with serving(generate_only(steps)) as server, engine_for(server.url) as engine:
        assert len(await collect(engine, GenerateRequest("r", [1]))) == 1


async def test_what_is_said_of_a_choice_after_its_finish_is_dropped() -> None:
    body = event(1, finish="stop") + event(2) + event(3, index=7) + event(4, index=1, finish="length") + DONE
    async with serving(generate_only(sse(body))) as server, engine_for(server.url) as engine:
        got = await collect(engine, GenerateRequest("r", [1], {"n": 2}))
    assert [choice.token_ids for one in got for choice in one.choices] == [[1], [4]]


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (sse(event(1), event(2)), "eof"),
        (sse(event(1) + event(2) + DONE), "eof"),
        (sse(event(1) + event(2), event(3, finish="stop")[:-1]), "eof"),  # the last event is cut off
        ([*sse(event(1) + event(2), end=False), "close"], "eof"),
        ([*sse(event(1) + event(2), end=False), "reset"], "eof"),
        (sse(event(1) + event(2) + b"data: {nope\n\n" + event(3, finish="stop") + DONE), "protocol"),
        (sse(event(1) + event(2) + b'data: {"choices":[{"index":0,"token_ids":["x"]}]}\n\n'), "protocol"),
        (sse(event(1) + event(2) + b'data: {"choices":[{"index":0,"token_ids":[true]}]}\n\n'), "protocol"),
        (sse(event(1) + event(2) + b"data: \xff\xfe\n\n"), "protocol"),
        (sse(event(1) + event(2) + b"data: 17\n\n"), "protocol"),
        (
            sse(event(1) + event(2) + b'data: {"error":{"message":"boom","code":500}}\n\n' + DONE),
            "error_event",
        ),
    ],
)
async def test_faults_in_the_stream_come_after_what_was_decoded(steps: list[Step], kind: str) -> None:
    error, seen, server = await fail(steps)
    assert (error.kind, error.status) == (kind, 502)
    assert seen == [1, 2]
    aborted = [asked for asked in server.asked if asked.path == ABORT]
    assert len(aborted) == (0 if kind == "error_event" else 1)


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_what_came_before_a_break_is_not_lost_to_a_slow_reader(ending: str) -> None:
    steps: list[Step] = [SSE_HEAD, http_chunk(event(1)), 0.02, http_chunk(event(2) + event(3)), 0.02, ending]
    async with serving(generate_only(steps)) as server, engine_for(server.url) as engine:
        async with engine.generate(GenerateRequest("r", [1])) as stream:
            await anext(stream)
            await asyncio.sleep(0.1)
            late = await anext(stream)
            assert [choice.token_ids for one in late for choice in one.choices] == [[2], [3]]
            with pytest.raises(UpstreamError) as caught:
                await anext(stream)
    assert caught.value.kind == "eof"


async def test_one_of_two_choices_unfinished_is_no_end() -> None:
    error, seen, _ = await fail(sse(event(1, finish="stop"), event(2, index=1), DONE), n=2)
    assert (error.kind, seen) == ("eof", [1, 2])


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (
            {"error": {"message": "Token id 9 is out of vocabulary", "type": "BadRequestError", "code": 400}},
            400,
            "Token id 9",
        ),
        ({"error": {"message": "slow down", "type": "RateLimitError", "code": "429"}}, 429, "slow down"),
        ({"error": {"message": "secret", "type": "InternalServerError", "code": 500}}, 502, "failed"),
        ({"error": {"message": "retry", "type": "ServiceUnavailableError", "code": 503}}, 503, "not available"),
        (
            {"error": {"message": "retry", "type": "ServiceUnavailableError", "code": "busy"}},
            503,
            "not available",
        ),
        ({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, 400, "too long"),
        ({"error": "secret"}, 502, "failed"),
        ({"detail": "secret"}, 502, "failed"),
        ({"error": {"message": "key", "code": 401}}, 502, "failed"),
        ({"error": 5}, 502, "failed"),
    ],
)
async def test_a_first_event_that_is_an_error_has_its_status(data: dict[str, Any], status: int, message: str) -> None:
    error, seen, server = await fail(sse(b"data: " + json.dumps(data).encode() + b"\n\n" + DONE))
    assert (error.status, error.kind, seen) == (status, "error_event", [])
    assert message in error.message
    assert "secret" not in error.message
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "body", "becomes", "message"),
    [
        (400, {"error": {"message": "bad n", "type": "BadRequestError", "param": "n", "code": 400}}, 400, "bad n"),
        (400, {"object": "error", "message": "flat", "type": "BadRequestError", "code": 400}, 400, "flat"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "too big", "type": "x"}]}, 422, "body.n: too big"),
        (403, {"error": "no"}, 403, "no"),
        (404, {"error": {"message": "no model", "type": "NotFoundError", "code": 404}}, 404, "no model"),
        (404, {"detail": "Not Found"}, 502, "no such route"),
        (404, {"error": {"message": "Not Found", "type": "Not Found", "code": 404}}, 502, "no such route"),
        (405, "", 502, "no such route"),
        (401, {"error": "Unauthorized"}, 502, "credentials"),
        (413, "<html>too large</html>", 413, "refused"),
        (429, {"detail": "busy"}, 429, "busy"),
        (500, {"error": {"message": "secret", "type": "InternalServerError", "code": 500}}, 502, "failed"),
        (502, "secret", 502, "failed"),
        (503, {"error": {"message": "secret"}}, 503, "not available"),
        (504, "secret", 504, "in time"),
        (307, "", 502, "failed"),
    ],
)
async def test_statuses(status: int, body: str | dict[str, Any], becomes: int, message: str) -> None:
    error, _, server = await fail(plain(status, body))
    assert (error.status, error.kind) == (becomes, "status")
    assert message in error.message
    assert "secret" not in error.message
    assert len(server.asked) == 1


async def test_messages_are_scrubbed() -> None:
    text = "cannot open /srv/models/qwen/config.json at http://10.0.0.7:8000/x (10.0.0.7:8200) <Engine at 0x7f3a2b>"
    error, _, _ = await fail(plain(400, {"error": {"message": text, "type": "BadRequestError", "code": 400}}))
    assert error.message == "cannot open <path> at <url> (<address>) <Engine>"


async def test_nobody_listens() -> None:
    async with serving(lambda asked: []) as server:
        url = server.url
    async with engine_for(url) as engine:
        for call in (collect(engine, GenerateRequest("r", [1])), engine.generate_full(GenerateRequest("r", [1]))):
            with pytest.raises(UpstreamError) as caught:
                await call
            assert (caught.value.kind, caught.value.status) == ("connect", 503)
        assert not await engine.healthy()
        with pytest.raises(UpstreamError):
            await engine.models()


async def test_nobody_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, contextlib.ExitStack() as fillers:
        for _ in range(4):  # until the kernel drops what knocks
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        async with engine_for(url, connect_timeout=0.2) as engine:
            for call in (collect(engine, GenerateRequest("r", [1])), engine.generate_full(GenerateRequest("r", [1]))):
                with pytest.raises(UpstreamError) as caught:
                    await call
                assert (caught.value.kind, caught.value.status) == ("timeout_connect", 504)


async def test_closed_without_an_answer_is_tried_once_more() -> None:
    answers: list[list[Step]] = [["close"], sse(event(7, finish="stop"), DONE)]
    async with serving(lambda asked: answers.pop(0)) as server, engine_for(server.url) as engine:
        assert len(await collect(engine, GenerateRequest("r", [1]))) == 1
    assert len(server.asked) == 2
    error, _, server = await fail(["close"])
    assert (error.kind, error.status) == ("connect", 502)
    assert [asked.path for asked in server.asked] == [GENERATE, GENERATE]


async def test_first_token_timeout_is_not_put_off_by_comments() -> None:
    plans: list[list[Step]] = [[5.0], [SSE_HEAD, *[http_chunk(b": ping\n\n"), 0.04] * 20], [SSE_HEAD, 5.0]]
    for steps in plans:
        error, seen, server = await fail(steps, first_token_timeout=0.15)
        assert (error.kind, error.status, seen) == ("timeout_first_token", 504, [])
        assert [asked.path for asked in server.asked] == [GENERATE, ABORT]


async def test_idle_timeout_is_put_off_by_comments() -> None:
    comments: list[Step] = [http_chunk(b": ping\n\n"), 0.06] * 5
    steps: list[Step] = [
        SSE_HEAD,
        http_chunk(event(1)),
        *comments,
        http_chunk(event(2, finish="stop") + DONE),
        b"0\r\n\r\n",
    ]
    async with serving(generate_only(steps)) as server, engine_for(server.url, idle_timeout=0.2) as engine:
        assert len(await collect(engine, GenerateRequest("r", [1]))) == 2
    error, seen, server = await fail([SSE_HEAD, http_chunk(event(1)), 5.0], idle_timeout=0.1)
    assert (error.kind, error.status, seen) == ("timeout_idle", 504, [1])
    assert server.asked[-1].json == {"request_ids": ["generate-tokens-r"]}


async def test_a_slow_reader_is_not_an_idle_engine() -> None:
    steps: list[Step] = [SSE_HEAD, http_chunk(event(1)), 0.02, http_chunk(event(2, finish="stop") + DONE), b"0\r\n\r\n"]
    async with serving(generate_only(steps)) as server, engine_for(server.url, idle_timeout=0.1) as engine:
        async with engine.generate(GenerateRequest("r", [1])) as stream:
            assert len(await anext(stream)) == 1
            await asyncio.sleep(0.3)
            assert len(await anext(stream)) == 1


@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_long_frames(size: int) -> None:
    first = event(9707, prompt_token_ids=[1] * (size // 3))
    body = first + event(1879, finish="stop") + DONE
    async with serving(generate_only(sse(*[body[at : at + 65536] for at in range(0, len(body), 65536)]))) as server:
        async with engine_for(server.url) as engine:
            got = await collect(engine, GenerateRequest("r", [1]))
            assert [choice.token_ids for one in got for choice in one.choices] == [[9707], [1879]]
        async with engine_for(server.url, max_event_bytes=100_000) as engine:
            with pytest.raises(UpstreamError) as caught:
                await collect(engine, GenerateRequest("r", [1]))
    assert caught.value.kind == "too_large"


ENDLESS: list[Step] = [SSE_HEAD, *[http_chunk(event(1)), 0.01] * 500]


async def test_leaving_early_closes_and_aborts_by_the_engines_id() -> None:
    async with serving(generate_only(ENDLESS)) as server, engine_for(server.url, api_key="k") as engine:
        async with engine.generate(GenerateRequest("r-1", [1])) as stream:
            await anext(stream)
        async with asyncio.timeout(1):
            await server.asked[0].left.wait()
        (abort,) = await server.wait_for(ABORT)
        assert abort.json == {"request_ids": ["generate-tokens-r"]}
        assert abort.headers["authorization"] == "Bearer k"


@pytest.mark.parametrize("steps", [[5.0], [SSE_HEAD, 5.0], ENDLESS])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_task_closes_and_aborts(steps: list[Step], streamed: bool) -> None:
    async with serving(generate_only(steps)) as server, engine_for(server.url) as engine:
        request = GenerateRequest("r-1", [1])
        task = asyncio.ensure_future(collect(engine, request) if streamed else engine.generate_full(request))
        await server.wait_for(GENERATE)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1):
            await server.asked[0].left.wait()
        (abort,) = await server.wait_for(ABORT)
    told = streamed and steps is ENDLESS
    assert abort.json == {"request_ids": ["generate-tokens-r"] if told else ["generate-tokens-r-1", "r-1"]}


async def test_the_older_abort_route_is_found_and_remembered() -> None:
    def answer(asked: Asked) -> list[Step]:
        return ENDLESS if asked.path == GENERATE else plain(404 if asked.path == ABORT else 200, b"")

    async with serving(answer) as server, engine_for(server.url) as engine:
        for count in (1, 2):
            async with engine.generate(GenerateRequest("r-1", [1])) as stream:
                await anext(stream)
            await server.wait_for("/abort_requests", count)
        assert len(await server.wait_for(ABORT)) == 1


async def test_close_sends_the_aborts_still_under_way() -> None:
    async with serving(generate_only(ENDLESS)) as server:
        async with engine_for(server.url) as engine:
            async with engine.generate(GenerateRequest("r-1", [1])) as stream:
                await anext(stream)
        assert [asked.path for asked in server.asked] == [GENERATE, ABORT]


async def test_many_streams_at_once() -> None:
    steps: list[Step] = [SSE_HEAD, http_chunk(event(1)), 0.5, http_chunk(event(2, finish="stop") + DONE), b"0\r\n\r\n"]
    async with serving(generate_only(steps)) as server, engine_for(server.url) as engine:
        async with asyncio.timeout(10):
            got = await asyncio.gather(*[collect(engine, GenerateRequest(f"r-{i}", [1])) for i in range(300)])
        assert [len(events) for events in got] == [2] * 300
        assert server.connections == 300


async def test_old_servers_logprobs() -> None:
    content = [
        {
            "token": "token_id:785",
            "logprob": -0.5,
            "bytes": None,
            "top_logprobs": [{"token": "token_id:785", "logprob": -0.5}, {"token": "odd", "logprob": -1.0}],
        },
        {"token": " by text", "logprob": -0.25, "top_logprobs": []},
    ]
    choice = {"index": 0, "token_ids": [785, 786], "finish_reason": "stop", "logprobs": {"content": content}}
    body = b"data: " + json.dumps({"request_id": "x", "choices": [choice]}).encode() + b"\n\n"
    async with serving(generate_only(sse(body))) as server, engine_for(server.url) as engine:
        (got,) = await collect(engine, GenerateRequest("r", [1]))
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token_id, entry.logprob) for entry in logprobs.content] == [(785, -0.5), (786, -0.25)]
    assert [(top.token_id, top.logprob) for top in logprobs.content[0].top_logprobs] == [(785, -0.5)]


async def test_full_answers_that_are_not() -> None:
    for body, kind in [
        ({"choices": [{"index": 0, "token_ids": [1], "finish_reason": None}]}, "eof"),
        ({"error": {"message": "m", "code": 500}}, "error_event"),
        ("not json", "protocol"),
    ]:
        async with serving(generate_only(plain(200, body))) as server, engine_for(server.url) as engine:
            with pytest.raises(UpstreamError) as caught:
                await engine.generate_full(GenerateRequest("r", [1]))
        assert (caught.value.kind, caught.value.status) == (kind, 502)
        assert len(server.asked) == 1
    async with serving(generate_only(plain(200, {"choices": []}))) as server:
        async with engine_for(server.url, max_answer_bytes=5) as engine:
            with pytest.raises(UpstreamError) as caught:
                await engine.generate_full(GenerateRequest("r", [1]))
    assert caught.value.kind == "too_large"
    async with serving(generate_only([5.0])) as server, engine_for(server.url, full_timeout=0.1) as engine:
        with pytest.raises(UpstreamError) as caught:
            await engine.generate_full(GenerateRequest("r", [1]))
        assert caught.value.status == 504
        await server.wait_for(ABORT)


async def test_models_health_metrics() -> None:
    cards = {"object": "list", "data": [{"id": "m", "root": "r", "parent": None, "max_model_len": 64}, {"id": "lora"}]}
    answers = {"/v1/models": plain(200, cards), "/health": plain(200, b""), "/metrics": plain(200, "a 1\n")}
    async with serving(lambda asked: answers[asked.path]) as server, engine_for(server.url, api_key="k") as engine:
        models = await engine.models()
        assert [(card.id, card.root, card.max_model_len) for card in models] == [("m", "r", 64), ("lora", None, None)]
        assert await engine.healthy()
        assert await engine.metrics() == b"a 1\n"
        assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer k"}
        answers["/health"] = plain(503, b"")
        assert not await engine.healthy()
        answers["/v1/models"] = plain(200, "[]")
        with pytest.raises(UpstreamError):
            await engine.models()


async def test_an_engine_under_a_path() -> None:
    async with serving(lambda asked: sse(event(7, finish="stop"), DONE)) as server:
        async with engine_for(server.url + "/some/path/") as engine:
            await collect(engine, GenerateRequest("r", [1]))
            assert await engine.healthy()
    assert [asked.path for asked in server.asked] == ["/some/path" + GENERATE, "/some/path/health"]


async def test_not_started() -> None:
    engine = VLLMEngine(VLLMOptions(url="http://127.0.0.1:1"))
    with pytest.raises(RuntimeError):
        await engine.healthy()
    with pytest.raises(RuntimeError):
        await collect(engine, GenerateRequest("r", [1]))
    await engine.close()
