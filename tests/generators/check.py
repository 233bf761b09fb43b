"""The properties that every format has, checked on one generated output."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import msgspec

from proxy.derender.derenderer import ChatSettings, Derenderer
from proxy.derender.message import MessageBuilder
from proxy.derender.parsing.registry import JointFormat, ReasoningFormat, ToolFormat, builtin
from proxy.derender.stream import ChatStream
from tests import derenders
from tests.generators.base import Generator, Toy, Written, damaged, tools, toy, truncated

KINDS = ("valid", "truncated", "damaged")


@cache
def derenderer(generator: Generator) -> tuple[Toy, Derenderer]:
    made = toy(tuple(map(str, generator.markers)), tuple(map(str, generator.special)))
    parsers = {"reasoning_parser": generator.reasoning_parser, "tool_parser": generator.tool_parser}
    return made, Derenderer(made.vocabulary, **parsers)


def fold(stream: ChatStream, ids: list[int], lengths: list[int], finish: str, again: Any = None) -> dict[str, Any]:
    """The whole answer; ``again`` opens a fresh stream that takes over, restored, between any two chunks."""
    message = MessageBuilder()
    for chunk, last in derenders.pieces(ids, lengths):
        if again is not None:
            saved = msgspec.msgpack.decode(msgspec.msgpack.encode(stream.save()))
            stream = again()
            stream.load(saved)
        for delta in stream.feed(chunk, finish if last else None):
            message.add(delta)
    return derenders.answer(message) | {"usage": (stream.completion_tokens, stream.reasoning_tokens)}


def write(generator: Generator, kind: str, rng: random.Random, declared: list[dict[str, Any]]) -> Written:
    written = generator.write(rng, declared)
    if kind == "truncated":
        return truncated(written, rng)
    return damaged(written, rng, generator.markers) if kind == "damaged" else written


PROFILES = (("incremental", "keep"), ("complete", "trim"))


class Case:
    """One generated output as ids, and streams to read it."""

    def __init__(self, generator: Generator, kind: str, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self._tools = tools(rng)
        self.written = write(generator, kind, rng, self._tools)
        made, self._opener = derenderer(generator)
        self.ids = made.encode(self.written.pieces, rng)
        self._prompt = [1, *made.encode(self.written.prompt, rng)]
        self._finish = "length" if self.written.truncated else "stop"

    def answer(self, profile: tuple[str, str], lengths: list[int], restored: bool = False) -> dict[str, Any]:
        settings = ChatSettings(
            tools=tuple(self._tools), tool_call_streaming=profile[0], framing_whitespace=profile[1]
        )

        def opened() -> ChatStream:
            return self._opener.chat(settings, request_id="r", prompt_token_ids=self._prompt)

        return fold(opened(), self.ids, lengths, self._finish, opened if restored else None)

    def lengths(self) -> list[int]:
        """Random cuts."""
        return derenders.cut(len(self.ids), self.rng)


def check(generator: Generator, kind: str, seed: int, cuts: int = 3) -> None:
    """Whole = one by one = any cuts = restored at each cut; and what a valid output says comes out."""
    case = Case(generator, kind, seed)
    count = len(case.ids)
    for profile in PROFILES:
        streaming, whitespace = profile
        whole = case.answer(profile, [count])
        if count:
            assert case.answer(profile, [1] * count) == whole, "one by one"
        for _ in range(cuts):
            lengths = case.lengths()
            assert case.answer(profile, lengths) == whole or not count, lengths
            assert case.answer(profile, lengths, restored=True) == whole or not count, ("restored", lengths)
        if kind == "valid":
            says(case.written, whole, exact=whitespace == "trim")
        if streaming == "complete":
            for call in whole["tool_calls"]:
                assert isinstance(json.loads(call["arguments"]), dict)


def check_restored(generator: Generator, kind: str, seed: int) -> None:
    """Whole = any cuts with the stream restored at each, in one profile: what can be run in great numbers."""
    case = Case(generator, kind, seed)
    profile = PROFILES[seed // 4 % 2]
    if case.ids:
        lengths = case.lengths()
        assert case.answer(profile, lengths, restored=True) == case.answer(profile, [len(case.ids)]), lengths


def says(written: Written, answer: dict[str, Any], exact: bool) -> None:
    """``exact``: framing whitespace is gone; else there may be some."""
    found = [(call["name"], json.loads(call["arguments"])) for call in answer["tool_calls"]]
    assert found == list(written.calls)
    for field, said in (("reasoning", written.reasoning), ("content", written.content)):
        got = answer[field] or ""
        assert (got if exact else got.strip()) == (said if exact else said.strip()), field


def check_streams(generator: Generator) -> None:
    """A long string argument goes out while it is written: at half of the output a quarter of it is out."""
    parameters = {"type": "object", "properties": {"note": {"type": "string"}}}
    declared = [{"type": "function", "function": {"name": "search", "parameters": parameters}}]
    made, opener = derenderer(generator)
    for seed in range(5000):
        rng = random.Random(seed)
        written = generator.write(rng, declared)
        named, said = written.text.rfind("search"), written.text.find("hello")
        alone = written.text.count("hello") == 1
        if written.calls == (("search", {"note": "hello"}),) and alone and 0 <= named < said:
            break
    else:
        raise LookupError("no output with the call that is wanted")
    pieces = [str.replace(p, "hello", "hello " * 999) if type(p) is str else p for p in written.pieces]
    ids = made.encode(pieces, rng)
    prompt = [1, *made.encode(written.prompt, rng)]
    stream = opener.chat(ChatSettings(tools=tuple(declared)), request_id="r", prompt_token_ids=prompt)
    message = MessageBuilder()
    for token_id in ids[: len(ids) // 2]:
        for delta in stream.feed([token_id]):
            message.add(delta)
    assert len(message.tool_calls[0]["arguments"]) > 999 * 6 // 4


def by_tokens(generator: Generator) -> bool:
    """Whether every marker of the format is a token here, and its answer begins as content where none comes."""
    made, opener = derenderer(generator)
    formats = [
        builtin().reasoning.get(generator.reasoning_parser or ""),
        builtin().tools.get(generator.tool_parser or ""),
    ]
    states = [state for item in formats if isinstance(item, ToolFormat) for state in item.states.values()]
    markers = {marker for state in states for marker in state.on}
    for item in formats:
        if isinstance(item, ReasoningFormat) and item.behind:
            return False
        if isinstance(item, JointFormat):
            markers |= {*item.markers, *(marker for state in item.states.values() for marker in state.on)}
        if isinstance(item, ReasoningFormat):
            markers |= {item.start, item.end}
    return bool(markers) and markers <= made.vocabulary.added.keys()


def check_plain(generator: Generator, seed: int) -> None:
    """Text that only spells markers, where the vocabulary has them as tokens, is content to the byte."""
    rng = random.Random(seed)
    declared = tools(rng)
    text = damaged(generator.write(rng, declared), rng, generator.markers).text
    made, opener = derenderer(generator)
    ids = made.encode([text], rng)
    stream = opener.chat(ChatSettings(tools=tuple(declared)), request_id="r", prompt_token_ids=[1])
    answer = fold(stream, ids, derenders.cut(len(ids), rng), "stop") if ids else {"tool_calls": []}
    if ids and not answer["tool_calls"]:
        said = (answer["reasoning"] or "") + (answer["content"] or "")
        # some families drop whitespace where reasoning ends, which here is where the answer does
        assert said == text or (said == text.rstrip() and not answer["content"])
