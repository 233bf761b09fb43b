"""For any stream of any format and any schedule of what can happen to it, the answers are the same bytes.

What happens between two chunks: nothing (a hit), the entry expires, it is evicted, the next call reaches another
replica, a call is repeated, calls of another stream with the same id come in between, a process restarts, or somebody
on the way spells the JSON otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.derender.derenderer import Derenderer
from tests import derenders
from tests.derender_http.replicas import CHAT, COMPLETIONS, Replica, split, stream_body
from tests.generators.base import Generator, Marker, generators, tools, toy
from tests.generators.check import KINDS, derenderer, write

EXAMPLES = int(os.environ.get("SCHEDULES", "4"))  # for each format; `make fuzz` takes more
EVENTS = ("hit", "hit", "hit", "expiry", "eviction", "replica", "repeat", "repeat elsewhere", "interleaved", "restart",
          "respelled")  # fmt: skip
EACH = pytest.mark.parametrize("generator", generators(), ids=lambda g: f"{g.family} {g.reasoning_parser}")


@dataclass
class Stream:
    """One choice as a client sends it."""

    path: str
    chunks: list[list[int]]
    finish: str
    request: dict[str, Any]
    logprobs: bool = False

    def body(self, n: int, state: bytes | None) -> bytes:
        ids = self.chunks[n]
        last = n == len(self.chunks) - 1
        logprobs = None
        if self.logprobs:
            top = [{"token_id": i, "logprob": -0.5} for i in (100, 240)]
            logprobs = {"content": [{"token_id": i, "logprob": -0.25, "top_logprobs": top} for i in ids]}
        return stream_body(ids, state, finish=self.finish if last else None, logprobs=logprobs, **self.request)


async def alone(stream: Stream, opener: Derenderer, **flags: Any) -> list[bytes]:
    """The chunks that one replica answers when nothing happens."""
    replica = Replica(opener, **flags)
    state, told = None, []
    for n in range(len(stream.chunks)):
        status, answer = await replica.post(stream.path, stream.body(n, state))
        assert status == 200, answer
        chunk, state = split(answer)
        told.append(chunk)
    return told


def respelled(state: bytes, rng: random.Random) -> bytes:
    value = json.loads(state)
    if rng.random() < 0.5:
        value = dict(sorted(value.items(), reverse=rng.random() < 0.5))
    value["passed_through"] = {"by": "somebody"}
    return json.dumps(value, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5).encode()


async def disturbed(stream: Stream, other: Stream, opener: Derenderer, rng: random.Random) -> None:
    """Run ``stream`` through a drawn schedule and compare with what it is told alone."""
    shared = rng.random() < 0.7
    flags: dict[str, Any] = {"state_key": "k"} if shared else {}
    if shared and rng.random() < 0.5:
        flags["derender_state"] = "compact"
    if rng.random() < 0.2:
        flags["cache_max_entries"] = rng.choice((0, 1))
    expected = await alone(stream, opener, **flags)
    replicas = [Replica(opener, **flags), Replica(opener, **flags)]
    at, state, other_state, other_n = 0, None, None, 0
    for n in range(len(stream.chunks)):
        event = rng.choice(EVENTS)
        repeats = [at]
        if event == "expiry":
            replicas[at].clock.now += 1000
        elif event == "eviction":
            # so many others that this one has to go
            replicas[at].parts.tier.cache._max_entries = 1
            await replicas[at].post(stream.path, stream.body(0, None).replace(b"tokens-1", b"tokens-2"))
            replicas[at].parts.tier.cache._max_entries = 8
        elif event == "replica":
            at = 1 - at
            repeats = [at]
        elif event == "repeat":
            repeats = [at, at]
        elif event == "repeat elsewhere":
            repeats = rng.choice(([at, 1 - at], [1 - at, at], [at, 1 - at, at]))
        elif event == "interleaved" and other_n < len(other.chunks):
            status, answer = await replicas[at].post(other.path, other.body(other_n, other_state))
            assert status == 200
            _, other_state = split(answer)
            other_n += 1
        elif event == "restart":
            replicas[at] = Replica(opener, **flags)
        elif event == "respelled" and state is not None:
            state = respelled(state, rng)
        answers = []
        for replica in repeats:
            status, answer = await replicas[replica].post(stream.path, stream.body(n, state))
            assert status == 200, answer
            answers.append(answer)
        chunks = {split(answer)[0] for answer in answers}
        assert chunks == {expected[n]}, (n, event)
        if shared:
            assert len(set(answers)) == 1, (n, event)
        _, state = split(rng.choice(answers))


def request_of(rng: random.Random, declared: list[dict[str, Any]], prompt: list[int]) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": declared}
    if rng.random() < 0.3:
        asked["stop"] = rng.choice((["}"], ["lo"], ["\n\n", "er"], ["hello"]))
    if rng.random() < 0.2:
        asked["parallel_tool_calls"] = False
    if rng.random() < 0.2:
        asked["include_reasoning"] = False
    if rng.random() < 0.2:
        asked["return_token_ids"] = True
    return {"chat_request": asked, "prompt_token_ids": prompt}


def draw(generator: Generator, rng: random.Random, chat: bool = True) -> tuple[Stream, Stream, Derenderer]:
    declared = tools(rng)
    made, opener = derenderer(generator)
    prompt: list[int] | None = None
    asked: dict[str, Any] = {}
    streams = []
    for kind in (rng.choice(KINDS), rng.choice(KINDS)):
        written = write(generator, kind, rng, declared)
        ids = made.encode(written.pieces, rng) or [104]
        if prompt is None:
            prompt = [1, *made.encode(written.prompt, rng)]
            asked = request_of(rng, declared, prompt)
        lengths = derenders.cut(len(ids), rng, rng.choice((1, 3, 20)))
        chunks = [chunk for chunk, _ in derenders.pieces(ids, lengths)]
        if rng.random() < 0.3:
            chunks.insert(rng.randint(0, len(chunks)), [])
        streams.append(Stream(CHAT, chunks, "length" if written.truncated else "stop", asked, rng.random() < 0.2))
    return streams[0], streams[1], opener


@EACH
@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_parsed(generator: Generator, seed: int) -> None:
    rng = random.Random(seed)
    stream, other, opener = draw(generator, rng)
    asyncio.run(disturbed(stream, other, opener, rng))


PIECES = ["Hello", " world", "é", "😀", "鰻", "\n", "end.", "<b>", "\ufffd", Marker("<|end|>"), Marker("<x>")]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@settings(max_examples=10 * EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_plain(path: str, seed: int) -> None:
    """Without parsers, where the state is vLLM's decode window; characters are cut at any byte."""
    rng = random.Random(seed)
    made = toy(("<|end|>", "<x>"), ("<|end|>",))
    opener = Derenderer(made.vocabulary)
    name = "chat_request" if path == CHAT else "completion_request"
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    if rng.random() < 0.3:
        asked["stop"] = rng.choice((["end"], ["o w", "\n"], ["😀"]))
    asked["skip_special_tokens"] = rng.random() < 0.7
    request: dict[str, Any] = {name: asked}
    if rng.random() < 0.7:
        request["prompt_token_ids"] = [104, 105]
    streams = []
    for _ in range(2):
        ids = made.encode([rng.choice(PIECES) for _ in range(rng.randint(1, 20))], rng)
        for _ in range(rng.randint(0, 4)):
            ids.insert(rng.randint(0, len(ids)), rng.choice((0xF0, 0xE9, 0x9F, rng.randrange(made.vocabulary.size))))
        chunks = [chunk for chunk, _ in derenders.pieces(ids, derenders.cut(len(ids), rng, rng.choice((1, 4))))]
        streams.append(Stream(path, chunks, rng.choice(("stop", "length")), request, rng.random() < 0.4))
    asyncio.run(disturbed(streams[0], streams[1], opener, rng))
