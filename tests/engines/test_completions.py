"""Completions with token ids: what each server is asked, how its events are read, and what fails plainly."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.engines.base import GenerateRequest
from proxy.engines.completions import CompletionsEngine
from proxy.engines.http import EngineOptions
from proxy.errors import RequestError, UpstreamError
from tests.engines.raw_server import DONE, Asked, RawServer, Step, plain, serving, sse

OWNERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "tensorrt_llm", "somebody": "vllm"}


def frame(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "cmpl-1", "object": "text_completion", **fields}).encode() + b"\n\n"


def choice(ids: list[int] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish, **more}


END = frame(choices=[choice([9], "stop")]) + DONE


@contextlib.asynccontextmanager
async def told(
    owner: str, reply: list[Step], *, length: int | None = 100, **options: Any
) -> AsyncIterator[tuple[CompletionsEngine, RawServer]]:
    """A client that has asked ``owner``'s server for its models; completions are answered with ``reply``."""
    cards = {"data": [{"id": "m", "owned_by": owner, "max_model_len": length}]}

    def answer(asked: Asked) -> list[Step]:
        return plain(200, cards) if asked.path == "/v1/models" else reply

    async with serving(answer) as server:
        engine = CompletionsEngine(EngineOptions(url=server.url, **options))
        await engine.start()
        await engine.models()
        try:
            yield engine, server
        finally:
            await engine.close()


async def taken(engine: CompletionsEngine, request: GenerateRequest) -> list[Any]:
    async with engine.generate(request) as stream:
        return [event async for events in stream for event in events]


REQUEST = GenerateRequest(
    request_id="r-1",
    token_ids=[5, 6],
    sampling_params={"max_tokens": 3, "temperature": 0.5, "stop_token_ids": [9], "logprobs": 0, "bad_words": []},
    model="m",
    cache_salt="s",
    extra={"echo": True},
)
COMMON = {
    "model": "m", "prompt": [5, 6], "max_tokens": 3, "temperature": 0.5, "stop_token_ids": [9], "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "vllm": {
        "return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 0, "request_id": "r-1",
        "cache_salt": "s", "bad_words": [],
    },
    "sglang": {"return_token_ids": True, "logprobs": 0, "rid": "r-1", "cache_salt": "s"},
    "tensorrt_llm": {"detokenize": False, "include_stop_str_in_output": True, "logprobs": 1},
}  # fmt: skip


@pytest.mark.parametrize("owner", BODIES)
async def test_the_request_as_each_wants_it(owner: str) -> None:
    async with told(owner, sse(END)) as (engine, server):
        await taken(engine, REQUEST)
    assert server.asked[-1].json == COMMON | BODIES[owner]


@pytest.mark.parametrize(
    ("length", "configured", "wanted"), [(100, None, 98), (None, 50, 48), (None, None, None), (2, None, 1)]
)
async def test_as_many_tokens_as_fit(length: int | None, configured: int | None, wanted: int | None) -> None:
    async with told("vllm", sse(END), length=length, max_model_len=configured) as (engine, _):
        assert engine.body_for(GenerateRequest("r", [1, 2], model="m"), stream=True)["max_tokens"] == wanted


async def test_parallel_samples_of_sglang_have_no_id_of_ours() -> None:
    async with told("sglang", sse(END)) as (engine, _):
        assert "rid" not in engine.body_for(GenerateRequest("r", [1], {"n": 2}), stream=True)


@pytest.mark.parametrize(
    ("owner", "params"),
    [
        ("sglang", {"allowed_token_ids": [1]}),
        ("sglang", {"logprobs": 1}),
        ("sglang", {"prompt_logprobs": 1}),
        ("tensorrt_llm", {"extra_args": {"a": 1}}),
        ("tensorrt_llm", {"structured_outputs": {"choice": ["a"]}}),
        ("sglang", {"structured_outputs": {"choice": ["a"]}}),
        ("tensorrt_llm", {"logprobs": 1}),
        ("vllm", {"something_new": 1}),
    ],
)
async def test_what_it_does_not_have_is_refused_by_name(owner: str, params: dict[str, Any]) -> None:
    async with told(owner, sse(END)) as (engine, _):
        with pytest.raises(RequestError) as caught:
            engine.body_for(GenerateRequest("r", [1], params), stream=True)
    named = next(iter(params)).replace("extra_args", "vllm_xargs")
    assert caught.value.status == 400 and named in (caught.value.param or "")


TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("owner", "given", "wanted"),
    [
        ("vllm", {"json": {"a": 1}}, {"structured_outputs": {"json": {"a": 1}}}),
        ("sglang", {"json": {"a": 1}}, {"json_schema": '{"a":1}'}),
        ("sglang", {"regex": "a+"}, {"regex": "a+"}),
        ("sglang", {"grammar": "g"}, {"ebnf": "g"}),
        ("sglang", {"json_object": True}, {"response_format": {"type": "json_object"}}),
        ("sglang", {"structural_tag": json.dumps(TAG)}, {"response_format": TAG}),
        (
            "tensorrt_llm",
            {"json": '{"a": 1}'},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
        ),
        ("tensorrt_llm", {"grammar": "g", "choice": None}, {"response_format": {"type": "ebnf", "ebnf": "g"}}),
        ("tensorrt_llm", {"structural_tag": json.dumps(TAG)}, {"response_format": TAG}),
    ],
)
async def test_constraints_go_where_each_wants_them(owner: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    async with told(owner, sse(END)) as (engine, _):
        assert await engine.has_tokenizer() is True
        body = engine.body_for(GenerateRequest("r", [1], {"structured_outputs": given}), stream=True)
    assert {name: body[name] for name in body if name in wanted} == wanted


async def test_events_of_all_shapes() -> None:
    top = {"tokens": ["token_id:4"], "token_logprobs": [-1.5], "top_logprobs": [{"token_id:4": -1.5, "token_id:7": -1}]}
    bare = {"tokens": ["a", "b"], "token_logprobs": [-0.5, None], "top_logprobs": None, "text_offset": [-1, -1]}
    body = (
        frame(choices=[choice([4], logprobs=top, prompt_token_ids=[5, 6])])
        + frame(choices=[], usage=None)
        + frame(choices=[choice([1, 2], logprobs=bare, text="a")])
        + frame(choices=[choice(None)])
        + frame(choices=[choice([3], "stop", matched_stop=3)])
        + frame(choices=[choice([], "stop")])
        + frame(choices=[], usage={"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6})
        + DONE
    )
    async with told("sglang", sse(body)) as (engine, _):
        events = await taken(engine, GenerateRequest("r", [5, 6], {"logprobs": 0}))
    choices = [one for event in events for one in event.choices]
    assert [one.token_ids for one in choices] == [[4], [1, 2], [], [3]]
    assert choices[-1].stop_reason == 3
    assert [(entry.token_id, entry.logprob) for one in choices[:2] for entry in one.logprobs.content] == [
        (4, -1.5), (1, -0.5), (2, -9999.0),
    ]  # fmt: skip
    assert [top.token_id for top in choices[0].logprobs.content[0].top_logprobs] == [4, 7]
    assert events[-1].usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("data", "status", "kind", "message"),
    [
        (frame(choices=[choice(None, text="hello")]), 502, "protocol", "text without token ids"),
        (b'data: {"object":"error","message":"too long","type":"E","code":400}\n\n', 400, "error_event", "too long"),
        (b'data: {"error":{"object":"error","message":"x","code":500}}\n\n', 502, "error_event", "failed"),
        (b'data: {"error":{"message":"busy","type":"ServiceUnavailableError","code":503}}\n\n', 503, "error_event", ""),
        (b'data: {"error":7}\n\n', 502, "error_event", "failed"),
        (b"data: {nope\n\n", 502, "protocol", ""),
        (b"data: []\n\n", 502, "protocol", ""),
        (frame(choices=[choice(["x"])]), 502, "protocol", ""),  # type: ignore[list-item]
        (frame(choices=[choice([1])]) + DONE, 502, "eof", ""),
    ],
)
async def test_faults_in_the_stream(data: bytes, status: int, kind: str, message: str) -> None:
    async with told("vllm", sse(data)) as (engine, _):
        with pytest.raises(UpstreamError) as caught:
            await taken(engine, REQUEST)
    assert (caught.value.status, caught.value.kind) == (status, kind) and message in caught.value.message


@pytest.mark.parametrize(
    ("status", "body", "becomes", "message"),
    [
        (400, {"object": "error", "message": "bad", "type": "BadRequestError", "param": "n", "code": 400}, 400, "bad"),
        (422, {"detail": [{"loc": ["body", "x"], "msg": "Extra inputs are not permitted"}]}, 422, "body.x"),
        (500, {"object": "error", "message": "secret", "type": "E", "code": 500}, 502, "failed"),
        (404, {"detail": "Not Found"}, 502, "no such route"),
    ],
)
async def test_refusals(status: int, body: dict[str, Any], becomes: int, message: str) -> None:
    async with told("tensorrt_llm", plain(status, body)) as (engine, _):
        for call in (taken(engine, REQUEST), engine.generate_full(REQUEST)):
            with pytest.raises(UpstreamError) as caught:
                await call
            assert caught.value.status == becomes and message in caught.value.message


async def test_whole_answers_carry_what_only_they_do() -> None:
    body = {
        "id": "cmpl-1",
        "choices": [choice([4, 9], "stop", prompt_logprobs=[None, {"6": {"logprob": -1, "rank": 1}}])],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
        "kv_transfer_params": {"a": 1},
    }
    async with told("vllm", plain(200, body)) as (engine, server):
        whole = await engine.generate_full(GenerateRequest("r", [5, 6], {"prompt_logprobs": 1}, model="m"))
    assert whole.choices[0].token_ids == [4, 9]
    assert whole.kv_transfer_params == {"a": 1}
    assert whole.prompt_logprobs == [None, {"6": {"logprob": -1, "rank": 1}}]
    assert server.asked[-1].json["stream"] is False and "stream_options" not in server.asked[-1].json
