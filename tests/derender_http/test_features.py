"""What the endpoints do beyond the recorded exchanges, one behaviour a test."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from typing import Any

import pytest

from proxy.config import ConfigError
from proxy.derender.derenderer import Derenderer
from proxy.routes import derender_tier
from tests.derender_http.replicas import CHAT, COMPLETIONS, Replica, settings, split, stream_body
from tests.generators.base import Marker, toy

MADE = toy(("<think>", "</think>", "<tool_call>", "</tool_call>", "<|end|>"), ("<|end|>",))
PLAIN = Derenderer(MADE.vocabulary)
PARSING = Derenderer(MADE.vocabulary, reasoning_parser="qwen3", tool_parser="hermes")
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
CALL = ["hm", Marker("</think>"), "ok", Marker("<tool_call>"), '{"name": "search", "arguments": {"a": "b"}}',
        Marker("</tool_call>")]  # fmt: skip


def ids_of(*pieces: str) -> list[int]:
    return MADE.encode(pieces, random.Random(1))


async def run(
    replica: Replica, path: str, chunks: list[list[int]], finish: str | None = "stop", **request: Any
) -> tuple[list[Any], list[bytes]]:
    """Choices and states of a stream, chunk by chunk."""
    state: bytes | None = None
    choices, states = [], []
    for n, ids in enumerate(chunks):
        body = stream_body(ids, state, finish=finish if n == len(chunks) - 1 else None, **request)
        status, answer = await replica.post(path, body)
        assert status == 200, answer
        chunk, state = split(answer)
        choices.append(json.loads(chunk)["choices"][0])
        states.append(state)
    return choices, states


def text(choices: list[Any]) -> str:
    return "".join(choice["delta"]["content"] or "" if "delta" in choice else choice["text"] for choice in choices)


def one_by_one(ids: list[int]) -> list[list[int]]:
    return [[token_id] for token_id in ids]


# -- stop strings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "compact"])
async def test_stop_strings_across_chunks_and_replicas(kind: str) -> None:
    replicas = [Replica(PLAIN, state_key="k", derender_state=kind) for _ in range(2)]
    chunks = one_by_one(list(b"Hello wor, and wonder"))
    request = {"completion_request": {"prompt": "x", "stop": ["wond", "zzz"]}}
    state: bytes | None = None
    said, finishes = "", []
    for n, ids in enumerate(chunks):
        status, answer = await replicas[n % 2].post(COMPLETIONS, stream_body(ids, state, **request))
        assert status == 200
        chunk, state = split(answer)
        choice = json.loads(chunk)["choices"][0]
        said += choice["text"]
        finishes.append((choice["finish_reason"], choice["stop_reason"]))
    assert said == "Hello wor, and "
    # told once, by the chunk that completes it; what the engine still sends is not the answer
    assert finishes == [(None, None)] * 18 + [("stop", "wond")] + [(None, None)] * 2


# -- logprobs ------------------------------------------------------------------------------------------------------


def logprobs(ids: list[int]) -> dict[str, Any]:
    return {
        "content": [
            {"token_id": i, "logprob": -0.5, "top_logprobs": [{"token_id": i, "logprob": -0.5},
                                                              {"token_id": 0x41, "logprob": -2.0}]}
            for i in ids
        ]
    }  # fmt: skip


@pytest.mark.parametrize(("path", "opener"), [(CHAT, PLAIN), (CHAT, PARSING), (COMPLETIONS, PLAIN)])
async def test_a_character_spread_over_chunks_has_one_token_text(path: str, opener: Derenderer) -> None:
    replicas = [Replica(opener), Replica(opener)]  # two keys: every call but the first is resumed from what is carried
    data = list("a鰻b".encode())
    state: bytes | None = None
    tokens: list[str] = []
    for n, token_id in enumerate(data):
        body = stream_body(
            [token_id], state, logprobs=logprobs([token_id]), prompt_token_ids=[1],
            **({"chat_request": {**ASKED, "logprobs": True, "top_logprobs": 2}} if path == CHAT else {}),
        )  # fmt: skip
        status, answer = await replicas[n % 2].post(path, body)
        assert status == 200, answer
        chunk, state = split(answer)
        found = json.loads(chunk)["choices"][0]["logprobs"]
        if path == CHAT:
            (entry,) = found["content"]
            assert bytes(entry["bytes"]).decode() == entry["token"]
            assert entry["top_logprobs"][1]["token"] == "A"
            tokens.append(entry["token"])
        else:
            tokens += found["tokens"]
    assert tokens == ["a", "", "", "鰻", "b"]


async def test_text_offsets_are_absolute() -> None:
    replicas = [Replica(PLAIN), Replica(PLAIN)]
    pieces, state = [[0x61, 0xC3], [0xA9], [0x62, 0x63], []], None
    offsets: list[int] = []
    said = ""
    for n, ids in enumerate(pieces):
        status, answer = await replicas[n % 2].post(
            COMPLETIONS, stream_body(ids, state, logprobs=logprobs(ids), finish="stop" if n == 3 else None)
        )
        assert status == 200
        chunk, state = split(answer)
        choice = json.loads(chunk)["choices"][0]
        said += choice["text"]
        offsets += choice["logprobs"]["text_offset"]
    assert said == "aébc"
    assert offsets == [0, 1, 1, 2, 3]


async def test_logprobs_are_cut_with_the_text() -> None:
    ids = list(b"ab!cd")
    asked = {"completion_request": {"prompt": "x", "stop": "!", "logprobs": 1}}
    status, answer = await Replica(PLAIN).post(COMPLETIONS, stream_body(ids, None, logprobs=logprobs(ids), **asked))
    choice = json.loads(answer)["chunk"]["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["a", "b", "!"])


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        (3, "generate_chunk.choices[0].logprobs.content"),
        (2, None),
    ],
)
async def test_as_many_logprobs_as_tokens(entries: int, field: str | None) -> None:
    body = stream_body([0x61, 0x62], None, logprobs=logprobs([0x61] * entries))
    status, answer = await Replica(PLAIN).post(COMPLETIONS, body)
    assert (status, json.loads(answer).get("error", {}).get("param")) == (
        (200, None) if field is None else (400, field)
    )


async def test_logprobs_of_older_servers() -> None:
    """``token: "token_id:N"`` in place of ``token_id``."""
    older = {
        "content": [
            {"token": "token_id:97", "logprob": -0.5, "top_logprobs": [{"token": "token_id:65", "logprob": -2}]}
        ]
    }
    status, answer = await Replica(PLAIN).post(COMPLETIONS, stream_body([0x61], None, logprobs=older))
    assert status == 200
    assert json.loads(answer)["chunk"]["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5, "A": -2.0}]
    nonsense = {"content": [{"a": 1}]}
    status, answer = await Replica(PLAIN).post(COMPLETIONS, stream_body([0x61], None, logprobs=nonsense))
    assert status == 400 and json.loads(answer)["error"]["param"].startswith("generate_chunk.choices[0].logprobs")


# -- time -------------------------------------------------------------------------------------------------------------


async def test_no_clock_is_in_an_answer() -> None:
    """A first chunk, or a whole answer, repeated on another replica in another second: the same bytes."""
    chat = {"chat_request": ASKED, "prompt_token_ids": [1]}
    response = {"request_id": "r", "choices": [{"index": 0, "token_ids": ids_of("a")}]}
    calls = [
        (CHAT, stream_body(ids_of("hm"), None, **chat)),
        (CHAT, stream_body(None, None, finish="stop", **chat)),
        (COMPLETIONS, stream_body(ids_of("hm"), None)),
        (CHAT, json.dumps({"stream": True, "generate_chunk": {"choices": [], "usage": None}, **chat}).encode()),
        (CHAT, json.dumps({"generate_response": response, **chat}).encode()),
        (COMPLETIONS, json.dumps({"generate_responses": [response]}).encode()),
    ]
    once, again = Replica(PARSING, state_key="k"), Replica(PARSING, state_key="k")
    before = [await once.post(*call) for call in calls]
    assert {status for status, _ in before} == {200}
    await asyncio.sleep(1.05)
    assert [await again.post(*call) for call in reversed(calls)] == before[::-1]
    assert [await once.post(*call) for call in calls] == before


async def test_created_is_the_chunks_own() -> None:
    def told(answer: tuple[int, bytes]) -> Any:
        value = json.loads(answer[1])
        return value.get("chunk", value)["created"]

    def chunk(ids: list[int], state: bytes | None, created: int | None) -> bytes:
        choices = [{"index": 0, "token_ids": ids}] if ids else []
        body = {"stream": True, "generate_chunk": {"request_id": "r", "created": created, "choices": choices}}
        return json.dumps(body).encode()[:-1] + b',"stream_state":' + (state or b"null") + b"}"

    replica = Replica(PLAIN)
    answer = await replica.post(COMPLETIONS, chunk([0x61], None, 1700000000))
    state = split(answer[1])[1]
    assert told(answer) == 1700000000
    for other in (replica, Replica(PLAIN)):
        assert told(await other.post(COMPLETIONS, chunk([0x62], state, 1800000000))) == 1700000000
        assert told(await other.post(COMPLETIONS, chunk([], state, None))) == 1700000000
    # a state of vLLM's has none
    assert told(await replica.post(COMPLETIONS, chunk([0x62], as_vllm_sends(state), 1800000000))) == 1800000000
    response = {"created": 1700000001, "choices": [{"index": 0, "token_ids": [0x61]}]}
    assert told(await replica.post(COMPLETIONS, json.dumps({"generate_responses": [response]}).encode())) == 1700000001
    for wrong in (-1, 2**60):
        status, body = await replica.post(COMPLETIONS, chunk([0x61], None, wrong))
        assert (status, json.loads(body)["error"]["param"]) == (400, "generate_chunk.created")


# -- carried states ---------------------------------------------------------------------------------------------------


def as_vllm_sends(state: bytes) -> bytes:
    """Our state as a vLLM server would pass it on: its own fields alone."""
    value = json.loads(state)
    for name in ("derender", "created", "finished", "ended"):
        value.pop(name, None)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("path", "opener", "pieces"),
    [
        (CHAT, PARSING, CALL),
        (CHAT, PLAIN, ["héllo 鰻", " end"]),
        (COMPLETIONS, PLAIN, ["héllo 鰻", " end"]),
    ],
)
@pytest.mark.parametrize("kind", ["full", "compact"])
async def test_states_of_a_vllm_server_go_on(path: str, opener: Derenderer, pieces: list[str], kind: str) -> None:
    """At any chunk the stream may come from a vLLM server, whose states have nothing of ours."""
    request = {"chat_request": ASKED, "prompt_token_ids": [1]} if path == CHAT else {}
    chunks = one_by_one(ids_of(*pieces))
    alone, states = await run(Replica(opener), path, chunks, **request)
    for n, state in enumerate(states[:-1]):
        replica = Replica(opener, state_key="k", derender_state=kind)
        body = stream_body(
            chunks[n + 1], as_vllm_sends(state), finish="stop" if n == len(chunks) - 2 else None, **request
        )
        status, answer = await replica.post(path, body)
        assert status == 200, answer
        assert json.loads(answer)["chunk"]["choices"][0] == alone[n + 1]


async def test_ids_of_calls_that_the_client_carries_win() -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    chunks = one_by_one(ids_of(*CALL))
    choices, states = await run(Replica(PARSING), CHAT, chunks, **request)
    begins = next(n for n, choice in enumerate(choices) if choice["delta"].get("tool_calls"))
    value = json.loads(states[begins - 1]) | {"last_tool_call_ids": ["call-of-theirs"]}
    value.pop("derender")
    body = stream_body(chunks[begins], json.dumps(value).encode(), **request)
    status, answer = await Replica(PARSING).post(CHAT, body)
    assert json.loads(answer)["chunk"]["choices"][0]["delta"]["tool_calls"][0]["id"] == "call-of-theirs"


async def test_either_kind_is_taken_by_either_server() -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    chunks = one_by_one(ids_of(*CALL))
    alone, _ = await run(Replica(PARSING), CHAT, chunks, **request)
    replicas = [Replica(PARSING, state_key="k", derender_state=kind) for kind in ("full", "compact")]
    for first in (0, 1):
        state: bytes | None = None
        for n, ids in enumerate(chunks):
            finish = "stop" if n == len(chunks) - 1 else None
            status, answer = await replicas[(n + first) % 2].post(
                CHAT, stream_body(ids, state, finish=finish, **request)
            )
            assert status == 200, answer
            chunk, state = split(answer)
            assert json.loads(chunk)["choices"][0] == alone[n]


async def test_a_compact_state_that_cannot_be_used_is_a_conflict() -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    compact = Replica(PARSING, state_key="k", derender_state="compact")
    _, states = await run(compact, CHAT, one_by_one(ids_of("hm, so")), None, **request)
    for other, more in ((Replica(PARSING, state_key="other"), {}), (compact, {"request_id": "another"})):
        status, answer = await other.post(CHAT, stream_body([0x61], states[1], **{**request, **more}))
        assert status == 409
        error = json.loads(answer)["error"]
        assert (error["type"], error["param"], error["code"]) == ("ConflictError", "stream_state", 409)


def test_compact_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="--derender-state: compact needs --state-key"):
        settings(derender_state="compact")


def test_a_key_file(tmp_path: Any) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert settings(state_key_file=str(file)).state_secret == b"secret"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        settings(state_key_file=str(file)).state_secret  # noqa: B018
    with pytest.raises(ConfigError, match="not both"):
        settings(state_key_file=str(file), state_key="k")


@pytest.mark.parametrize("kind", ["full", "compact"])
async def test_a_snapshot_is_small_at_any_length(kind: str) -> None:
    """At most 512 bytes plus text held back; a compact state does not grow with the stream."""
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    replica = Replica(PARSING, state_key="k", derender_state=kind)
    long = '{"name": "search", "arguments": {"a": [{"b": "' + "hello " * 500
    chunks = one_by_one(ids_of("think " * 300, Marker("</think>"), "say " * 300, Marker("<tool_call>"), long))
    _, states = await run(replica, CHAT, chunks, None, **request)
    tokens = [json.loads(state)["derender"] for state in states]
    assert len(tokens) > 2000 and max(map(len, tokens)) <= 512
    if kind == "compact":
        assert max(map(len, states)) <= 900


async def test_usage_alone_leaves_the_state_as_it_is() -> None:
    replica = Replica(PARSING)
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    _, states = await run(replica, CHAT, one_by_one(ids_of("hm")), None, **request)
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = {"stream": True, "generate_chunk": {"request_id": "generate-tokens-1", "choices": [], "usage": usage}}
    raw = json.dumps({**body, **request})[:-1].encode() + b',"stream_state":' + states[-1] + b"}"
    status, answer = await replica.post(CHAT, raw)
    assert status == 200
    chunk, state = split(answer)
    assert state == states[-1]
    assert json.loads(chunk)["usage"]["total_tokens"] == 5
    status, answer = await replica.post(CHAT, stream_body([0x61], state, **request))
    assert status == 200 and replica.lookups["live"] == len(states)


# -- the cache -------------------------------------------------------------------------------------------------------


async def test_lookups_and_evictions_are_counted() -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    one, two = Replica(PARSING, state_key="k"), Replica(PARSING)  # two cannot read the snapshots of one
    chunks = one_by_one(ids_of("hm, so be it"))
    _, states = await run(one, CHAT, chunks, "stop", **request)
    assert one.lookups == {"live": len(chunks) - 1, "snapshot": 0, "replay_absent": 0, "replay_mismatch": 0}
    assert one.metrics.cache_evictions["finish"] == 1 and len(one.parts.tier.cache) == 0
    await one.post(CHAT, stream_body(chunks[3], states[2], **request))
    assert one.lookups["snapshot"] == 1
    one.clock.now += 121
    assert len(one.parts.tier.cache) == 0 and one.metrics.cache_evictions["ttl"] == 1
    await two.post(CHAT, stream_body(chunks[3], states[2], **request))
    await two.post(CHAT, stream_body(chunks[5], states[4], **request))
    assert two.lookups == {"live": 0, "snapshot": 0, "replay_absent": 1, "replay_mismatch": 1}
    assert two.metrics.cache_evictions["mismatch"] == 1 and two.metrics.replay_tokens == 3 + 5
    exposed = two.metrics.exposition().decode()
    assert 'derender_cache_lookups_total{result="replay_mismatch"} 1.0' in exposed
    assert 'derender_cache_evictions_total{reason="mismatch"} 1.0' in exposed
    assert "derender_cache_entries 1.0" in exposed and "derender_replay_tokens_total 8.0" in exposed
    assert "derender_replay_seconds_count 2.0" in exposed


async def test_entries_and_bytes_are_bounded() -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    few = Replica(PARSING, cache_max_entries=3)
    small = Replica(PARSING, cache_max_bytes=60_000)
    for n in range(40):
        for replica in (few, small):
            status, _ = await replica.post(CHAT, stream_body([0x61], None, request_id=f"r{n}", **request))
            assert status == 200
        assert len(few.parts.tier.cache) <= 3 and small.parts.tier.cache.size <= 60_000
    assert few.metrics.cache_evictions["entries"] == 37
    assert small.metrics.cache_evictions["bytes"] > 25


async def test_a_stream_without_affinity_leaves_no_entries_behind() -> None:
    for path, opener, request in (
        (COMPLETIONS, PLAIN, {}),
        (CHAT, PARSING, {"chat_request": ASKED, "prompt_token_ids": [1]}),
    ):
        replicas = [Replica(opener), Replica(opener)]
        state: bytes | None = None
        for n in range(30):
            _, answer = await replicas[n % 2].post(path, stream_body([0x61], state, **request))
            state = split(answer)[1]
            assert all(len(replica.parts.tier.cache) <= 1 for replica in replicas)


@pytest.mark.parametrize("length", [20, 3000])
async def test_sizes_are_honest(length: int) -> None:
    """What the cache believes its entries to take, against what they do: within a factor of two."""
    replica = Replica(PARSING)
    count = 30
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    ids = ids_of("hm" * length)[:length]
    await replica.post(CHAT, stream_body(ids, None, request_id="warm", **request))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        size = replica.parts.tier.cache.size
        for n in range(count):
            await replica.post(CHAT, stream_body(ids, None, request_id=f"r{n}", **request))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    believed = replica.parts.tier.cache.size - size
    assert 0.5 <= believed / (after - before) <= 2.0, (believed / count, (after - before) / count)


# -- replays ----------------------------------------------------------------------------------------------------------


async def test_live_chunks_go_ahead_of_a_long_replay() -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    replica = Replica(PARSING)
    ids = [0x61] * 8000
    state = json.dumps({"output_token_ids": ids, "output_chunk_lens": [1] * 8000, "role_sent": True}).encode()
    _, answer = await replica.post(CHAT, stream_body([0x61], None, request_id="live", **request))
    order: list[str] = []

    async def replayed() -> None:
        status, _ = await replica.post(CHAT, stream_body([0x61], state, request_id="old", **request))
        assert status == 200
        order.append("replay")

    work = asyncio.ensure_future(replayed())
    await asyncio.sleep(0)
    for _ in range(3):
        status, answer = await replica.post(CHAT, stream_body([0x61], split(answer)[1], request_id="live", **request))
        assert status == 200
        order.append("live")
        await asyncio.sleep(0)
    await work
    assert order == ["live", "live", "live", "replay"]


async def test_too_many_replays_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derender_tier, "MAX_REPLAYS", 2)
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    replica = Replica(PARSING)
    state = json.dumps({"output_token_ids": [0x61] * 2000, "output_chunk_lens": [1] * 2000}).encode()
    calls = [replica.post(CHAT, stream_body([0x61], state, request_id=f"r{n}", **request)) for n in range(4)]
    statuses = [status for status, _ in await asyncio.gather(*calls)]
    assert sorted(statuses) == [200, 200, 503, 503]
    status, _ = await replica.post(CHAT, stream_body([0x61], state, **request))
    assert status == 200


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ({"output_token_ids": [1] * 9000, "output_chunk_lens": [9000]}, "stream_state.output_token_ids"),
        ({"output_token_ids": [1], "output_chunk_lens": [1, 0]}, "stream_state.output_chunk_lens"),
        ({"output_token_ids": [1, 2], "output_chunk_lens": [2**62, 2**62]}, "stream_state.output_chunk_lens"),
        ({"output_token_ids": [1, 2], "output_chunk_lens": [3, -1]}, "stream_state.output_chunk_lens"),
        ({"logprob_context_token_ids": [1] * 5}, "stream_state.logprob_context_token_ids"),
        ({"logprob_text_offset": -1}, "stream_state.logprob_text_offset"),
        ("text", "stream_state"),
    ],
)
async def test_lengths_are_bounded_before_work_is_done(state: Any, field: str) -> None:
    request = {"chat_request": ASKED, "prompt_token_ids": [1]}
    status, answer = await Replica(PARSING).post(CHAT, stream_body([0x61], json.dumps(state).encode(), **request))
    assert (status, json.loads(answer)["error"]["param"]) == (400, field)
