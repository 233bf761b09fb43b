"""SGLang's events: which ids are new, whatever the mode and however they are cut; bodies, aborts, errors."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.engines.base import GenerateRequest
from proxy.engines.http import EngineOptions
from proxy.engines.sglang import SGLangEngine
from proxy.engines.sglang_events import SGLangReader
from proxy.errors import RequestError, UpstreamError
from tests.engines.raw_server import DONE, SSE_HEAD, Asked, Step, http_chunk, plain, serving, sse

FINISH = {"type": "stop", "matched": 9}


def event(ids: list[int], total: int | None, finish: Any = None, **more: Any) -> bytes:
    """One event's data; ``more`` goes into ``meta_info`` but for ``index``."""
    index = {"index": more.pop("index")} if "index" in more else {}
    meta = {"id": "r1", "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": total, **more}
    return json.dumps({"output_ids": ids, "meta_info": meta, **index}).encode()


def frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def taken(frames: list[bytes], choices: int = 1) -> list[list[int]]:
    reader = SGLangReader(choices, logprobs=None)
    found: list[list[int]] = [[] for _ in range(choices)]
    for raw in frames:
        for choice in reader.event(raw).choices:
            found[choice.index] += choice.token_ids or []
    return found


@contextlib.asynccontextmanager
async def engine_at(url: str, **options: Any) -> AsyncIterator[SGLangEngine]:
    engine = SGLangEngine(EngineOptions(url=url, **options))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_the_mode_shows_by_the_second_event_however_long_the_first_is(cumulative: bool, first: int) -> None:
    ids = list(range(100, 112))
    cuts = [first, first + 1, first + 1, first + 4, 12]
    frames = []
    for number, cut in enumerate(cuts):
        start = 0 if cumulative or not number else cuts[number - 1]
        frames.append(event(ids[start:cut], cut, FINISH if cut == 12 else None))
    reader = SGLangReader(1, logprobs=None)
    found = [choice.token_ids for raw in frames for choice in reader.event(raw).choices]
    assert found == [ids[:first], ids[first : first + 1], [], ids[first + 1 : first + 4], ids[first + 4 :]]
    assert reader.cumulative is cumulative


def test_any_cut_in_both_modes_with_several_choices() -> None:
    chance = random.Random(7)
    for _ in range(300):
        cumulative, choices = chance.random() < 0.5, chance.choice((1, 2, 3))
        wanted = [[chance.randrange(5) for _ in range(chance.randrange(1, 40))] for _ in range(choices)]
        done = [0] * choices
        frames = []
        while any(done[at] < len(wanted[at]) for at in range(choices)):
            at = chance.choice([at for at in range(choices) if done[at] < len(wanted[at])])
            upto = min(len(wanted[at]), done[at] + chance.choice((0, 1, 1, 2, 9)))
            ids = wanted[at][0 if cumulative else done[at] : upto]
            frames.append(event(ids, upto, FINISH if upto == len(wanted[at]) else None, index=at))
            done[at] = upto
        assert taken(frames, choices) == wanted


def test_events_that_a_slow_engine_has_skipped_are_made_up_for() -> None:
    assert taken([event([1], 1), event([1, 2, 3, 4], 4), event([1, 2, 3, 4, 5, 6, 7], 7, FINISH)]) == [[*range(1, 8)]]


@pytest.mark.parametrize(
    "frames",
    [
        [event([1, 2], 2), event([3], 7)],  # neither 1 nor 2 + 1 is 7
        [event([1, 2], 2), event([1, 2, 3], None)],
        [event([1, 2], 2), event([1, 2, 3], 3), event([1], 1)],
        [b"{nope"],
        [b"[]"],
        [b'{"output_ids":[1]}'],
        [b'{"output_ids":["x"],"meta_info":{}}'],
    ],
)
def test_what_does_not_add_up_is_a_failure(frames: list[bytes]) -> None:
    with pytest.raises(UpstreamError) as caught:
        taken(frames)
    assert (caught.value.kind, caught.value.status) == ("protocol", 502)


def logprob(token: int) -> list[Any]:
    return [-token / 8, token, None]


@pytest.mark.parametrize("ids_cumulative", [True, False])
@pytest.mark.parametrize("logprobs_cumulative", [True, False])
def test_logprobs_belong_to_their_ids_in_every_mix_of_modes(ids_cumulative: bool, logprobs_cumulative: bool) -> None:
    ids, cuts = [1, 2, 3, 4, 5, 6], [2, 3, 6]
    reader = SGLangReader(1, logprobs=2)
    before = 0
    found: list[Any] = []
    for cut in cuts:
        start = 0 if logprobs_cumulative else before
        more = {
            "output_token_logprobs": [logprob(token) for token in ids[start:cut]],
            "output_top_logprobs": [[logprob(token), logprob(token + 10)] for token in ids[start:cut]],
        }
        told = reader.event(event(ids[0 if ids_cumulative else before : cut], cut, **more))
        before = cut
        (choice,) = told.choices
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert len(choice.logprobs.content) == len(choice.token_ids or ())
        found += choice.logprobs.content
    assert [entry.token_id for entry in found] == ids
    assert [[top.token_id for top in entry.top_logprobs] for entry in found] == [[token, token + 10] for token in ids]
    assert [entry.logprob for entry in found] == [-token / 8 for token in ids]


def test_the_sampled_token_comes_first_and_an_impossible_one_has_the_floor() -> None:
    more = {"output_token_logprobs": [[None, 7, None]], "output_top_logprobs": [[[-0.1, 3, None], [-0.2, 4, None]]]}
    (choice,) = SGLangReader(1, logprobs=2).event(event([7], 1, **more)).choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [(top.token_id, top.logprob) for top in choice.logprobs.content[0].top_logprobs] == [
        (7, -9999.0), (3, -0.1), (4, -0.2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("finish", "reason", "cause"),
    [
        ({"type": "stop", "matched": 9}, "stop", 9),
        ({"type": "stop", "matched": "x"}, "stop", "x"),
        ({"type": "stop"}, "stop", None),
        ({"type": "length", "length": 2}, "length", None),
        ({"type": "abort", "message": "by request", "status_code": None, "err_type": None}, "abort", None),
        ("length", "length", None),
    ],
)
def test_finishes(finish: Any, reason: str, cause: int | str | None) -> None:
    told = SGLangReader(1, logprobs=None).event(event([1, 9], 2, finish, cached_tokens=2))
    assert [(choice.finish_reason, choice.stop_reason) for choice in told.choices] == [(reason, cause)]
    assert told.usage is not None and told.usage.prompt_tokens_details is not None
    assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.total_tokens) == (3, 2, 5)
    assert told.usage.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b'{"error":{"message":"The input is too long"}}', 400, "The input is too long"),
        (b'{"error":{"message":"x","type":"InternalServerError","code":500}}', 502, "failed"),
        (event([], 0, {"type": "abort", "message": "too long", "status_code": 400, "err_type": None}), 400, "too long"),
        (event([], 0, {"type": "abort", "message": "x", "status_code": 503, "err_type": "E"}), 503, "not available"),
        (event([1], 1, {"type": "abort", "message": "x", "status_code": 500, "err_type": "E"}), 502, "failed"),
        (b'{"detail":"x"}', 502, "failed"),
    ],
)
async def test_errors_in_the_stream(data: bytes, status: int, message: str) -> None:
    async with serving(lambda asked: sse(frame(data) + DONE)) as server, engine_at(server.url) as engine:
        with pytest.raises(UpstreamError) as caught:
            async with engine.generate(GenerateRequest("r", [1])) as stream:
                await anext(stream)
    assert caught.value.status == status and message in caught.value.message
    assert len(server.asked) == 1  # nothing runs that could be aborted


async def test_the_request_as_sglang_wants_it() -> None:
    request = GenerateRequest(
        request_id="r-1",
        token_ids=[5, 6],
        sampling_params={
            "max_tokens": 3, "min_tokens": 1, "seed": 4, "temperature": 0.5, "top_k": 0, "stop_token_ids": [9],
            "logprobs": 2, "logit_bias": {"1": 2.0}, "extra_args": {"a": 1}, "bad_words": [], "ignore_eos": None,
            "structured_outputs": {"json": {"type": "object"}}, "skip_special_tokens": False,
        },
        model="adapter",
        cache_salt="s",
        priority=2,
        reasoning_ended=False,
        extra={"bootstrap_room": 7, "custom_logit_processor": "pickle", "stream": False, "unknown": 1},
    )  # fmt: skip
    cards = {"data": [{"id": "m", "max_model_len": 99, "owned_by": "sglang"}, {"id": "adapter", "parent": "m"}]}

    def answer(asked: Asked) -> list[Step]:
        if asked.method == "GET":
            return plain(200, cards if asked.path == "/v1/models" else {"skip_tokenizer_init": True})
        return sse(frame(event([9], 1, FINISH)) + DONE)

    async with serving(answer) as server, engine_at(server.url, api_key="key") as engine:
        assert [card.max_model_len for card in await engine.models()] == [99, None]
        assert await engine.has_tokenizer() is False
        async with engine.generate(request) as stream:
            async for _ in stream:
                pass
        bare = GenerateRequest("r-2", [5], {"n": 2})
        assert engine.body_for(bare, stream=True) == {
            "input_ids": [5],
            "sampling_params": {"n": 2, "max_new_tokens": None},
            "stream": True,
        }
    asked = server.asked[-1]
    assert asked.path == "/generate" and asked.headers["authorization"] == "Bearer key"
    assert asked.json == {
        "rid": "r-1",
        "input_ids": [5, 6],
        "sampling_params": {
            "max_new_tokens": 3, "min_new_tokens": 1, "sampling_seed": 4, "temperature": 0.5, "top_k": -1,
            "stop_token_ids": [9], "logit_bias": {"1": 2.0}, "custom_params": {"a": 1},
            "json_schema": '{"type": "object"}',
        },
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 2,
        "lora_path": "adapter",
        "cache_salt": "s",
        "priority": 2,
        "bootstrap_room": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [1]},
        {"bad_words": ["x"]},
        {"logprob_token_ids": [1]},
        {"logprobs": -1},
        {"structured_outputs": {"choice": ["a"]}},
        {"something_new": 0.5},
    ],
)
def test_what_it_does_not_have_is_refused_by_name(params: dict[str, Any]) -> None:
    engine = SGLangEngine(EngineOptions(url="http://127.0.0.1:1"))
    with pytest.raises(RequestError) as caught:
        engine.body_for(GenerateRequest("r", [1], params), stream=True)
    assert caught.value.status == 400 and next(iter(params)) in (caught.value.param or "")


@pytest.mark.parametrize("n", [1, 2])
async def test_leaving_aborts_by_every_id_that_was_told(n: int) -> None:
    first = [http_chunk(frame(event([1], 1, index=at, id=f"own-{at}"))) for at in range(n)]
    endless: list[Step] = [SSE_HEAD, *first, *[http_chunk(b": x\n\n"), 0.01] * 300]
    answer: Any = lambda asked: endless if asked.path == "/generate" else plain(200, b"")  # noqa: E731
    async with serving(answer) as server, engine_at(server.url) as engine:
        request = GenerateRequest("r-1", [1], {"n": n})
        seen = 0
        async with engine.generate(request) as stream:
            while seen < n:
                seen += sum(len(event.choices) for event in await anext(stream))
        aborts = await server.wait_for("/abort_request", 2)
    told = {"own-0", "r-1"} if n == 1 else {"own-0", "own-1"}
    assert {asked.json["rid"] for asked in aborts} == told


async def test_whole_answers() -> None:
    one = json.loads(event([4, 9], 2, FINISH, output_token_logprobs=[logprob(4), logprob(9)]))
    two = json.loads(event([5], 1, {"type": "length", "length": 1}, output_token_logprobs=[logprob(5)]))

    def answer(asked: Asked) -> list[Step]:
        return plain(200, json.dumps([one, two] if asked.json["sampling_params"].get("n") == 2 else one))

    async with serving(answer) as server, engine_at(server.url) as engine:
        whole = await engine.generate_full(GenerateRequest("r", [1, 2, 3], {"n": 2, "logprobs": 0}))
        assert [choice.token_ids for choice in whole.choices] == [[4, 9], [5]]
        assert [choice.finish_reason for choice in whole.choices] == ["stop", "length"]
        assert whole.usage is not None and (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 3)
        assert len((await engine.generate_full(GenerateRequest("r", [1]))).choices) == 1


def test_a_long_cumulative_stream_costs_little_more_than_its_bytes() -> None:
    """Time per event, late in the stream against early, apart from the decoding of JSON itself."""
    ids = list(range(8_000))

    def spent(start: int) -> float:
        frames = [event(ids[:count], count) for count in range(start, start + 400)]
        reader = SGLangReader(1, logprobs=None)
        reader.event(event(ids[: start - 2], start - 2))
        reader.event(event(ids[: start - 1], start - 1))
        began = time.process_time()
        for raw in frames:
            json_only(raw)
        plainly = time.process_time() - began
        began = time.process_time()
        for raw in frames:
            reader.event(raw)
        return (time.process_time() - began) / plainly

    from proxy.engines.sglang_events import _typed as json_only

    assert min(spent(7_000) for _ in range(3)) < 1.6
