"""Chunk borders carry no meaning, and a stream can be saved and restored between any two chunks."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from proxy.derender.message import MessageBuilder
from proxy.derender.stream import ChatStream
from tests import derenders

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "opts": {"type": "object"},
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    }
    for name in ("get_weather", "search")
]

# What outputs of the family are made of, so that markers, halves of them and look-alikes meet in every order.
COMMON = [
    "Hello", " world", "\n", "\n\n", " ", "a < b", "é", "😀", "鰻", "\ufffd", "{", "}", "[", "]", '"', "\\", ":", ",",
    "<", "</", ">", "1", "null", "true", '"}}\n', "get_weather", "search", "city", "Paris", "\\u00e9", "\\n", "\r\n",
    "🏽", "end.", "<b>", "name", "arguments",
]  # fmt: skip
HERMES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", '\n{"name": "get_weather", "arguments": {"city": "P',
    '{"name": "search", "arguments": {}}', '{"arguments": {"city": "x"}, "name": "search"}', '"}}', "}\n",
    '{"name": "nope", "arguments": {"a": [1, {"b": "]"}]}}', '{"name"', "<|im_end|>", "<|im_start|>",
    "<tool_", "_call>",
    '{"name": "search", "arguments": null}', '{"name": "search"}',
]  # fmt: skip
XML = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "\n<function=get_weather>\n", "<function=search>",
    "<function=no>",
    "\n<parameter=city>\n", "<parameter=days>", "\n</parameter>\n", "</parameter>", "\n</function>", "</function>\n",
    "<func", "tion=", "<param", "eter=", "</param", "<parameter=maybe>\n", "<parameter=opts>\n", "2", '{"a": 1}',
]  # fmt: skip
DEEPSEEK = [
    "<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
    "get_weather\n```json\n",
    '{"city": "P"}', "\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "</th", "ink>", "<th", '{"city": "a ``` b',
]  # fmt: skip
LLAMA = [
    "<|python_tag|>", '{"name": "search", "parameters": {"city": "a"}}', '{"name": "get_weather", ',
    '"parameters": {', "; ",
    '{"name": "Pluto", "moons": 5}', "{}", '{"a": 1}', "<|eom_id|>", "<|eot_id|>",
]  # fmt: skip
HARMONY = [
    "<|channel|>", "analysis", "commentary", "final", "<|message|>", "<|end|>", "<|start|>", "assistant",
    " to=functions.search",
    " to=python", "<|constrain|>", "json", '{"city": "x"}', "<|call|>", "<|return|>", "notes!!",
]  # fmt: skip

FAMILIES: dict[str, tuple[str, str | None, str | None, list[str]]] = {
    "plain": ("qwen3", None, None, HERMES),
    "hermes": ("qwen3", "qwen3", "hermes", HERMES),
    "hermes alone": ("qwen3", None, "hermes", HERMES),
    "hermes as text": ("llama3_1", None, "hermes", HERMES),
    "xml": ("qwen3", "qwen3", "qwen3_coder", XML),
    "xml as text": ("llama3_1", "qwen3", "qwen3_xml", XML),
    "deepseek": ("deepseek_r1", "deepseek_r1", "deepseek_v3", DEEPSEEK),
    "deepseek, think as text": ("deepseek_v3", "deepseek_r1", "deepseek_v3", DEEPSEEK),
    "llama": ("llama3_1_tool", None, "llama3_json", LLAMA),
    "llama, tag as text": ("llama3_1", None, "llama3_json", LLAMA),
    "harmony": ("gptoss", "openai_gptoss", "openai", HARMONY),
}

PROMPT_TAILS = ["", "<think>\n", "<think>\n\n</think>\n\n", "</think>"]

CHOICES: list[Any] = ["auto", "none", "required", {"type": "function", "function": {"name": "search"}}]


def encode(name: str, parts: list[str], rng: random.Random) -> list[int]:
    """Ids of the joined text, or of each part alone (so that borders of tokens fall elsewhere), with stray ids."""
    tokenizer = derenders.tokenizer(name)
    if rng.random() < 0.5:
        ids = list(tokenizer.encode("".join(parts), add_special_tokens=False).ids)
    else:
        ids = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids]
    for _ in range(rng.choice((0, 0, 1, 3))):  # bytes that are no characters, and anything else
        ids.insert(rng.randint(0, len(ids)), rng.choice((94, 95, 124, 166, 247, rng.randrange(100000))))
    return ids


def fold(opened: ChatStream, ids: list[int], lengths: list[int], finish: str, again: Any = None) -> dict[str, Any]:
    """The folded answer; ``again`` makes a fresh stream that takes over between any two chunks."""
    message = MessageBuilder()
    for chunk, last in derenders.pieces(ids, lengths):
        if again is not None:
            saved = msgspec.msgpack.decode(msgspec.msgpack.encode(opened.save()))
            opened = again()
            opened.load(saved)
        for delta in opened.feed(chunk, finish if last else None):
            assert delta.reasoning is None or (delta.content is None and delta.tool_calls is None)
            message.add(delta)
    answer = derenders.answer(message)
    answer["usage"] = (opened.completion_tokens, opened.reasoning_tokens)
    answer["stop_reason"] = message.stop_reason
    return answer


def check(family: str, parts: list[str], seed: int) -> None:
    rng = random.Random(seed)
    name, reasoning, tools, _ = FAMILIES[family]
    ids = encode(name, parts, rng)
    if not ids:
        return
    finish = rng.choice(("stop", "length"))
    derenderer = derenders.derenderer(name, reasoning, tools)
    request = derenders.settings(
        rng.choice((TOOLS, TOOLS, [])),
        tool_choice=rng.choice(("auto", *CHOICES)),
        tool_call_streaming=rng.choice(("incremental", "complete")),
        framing_whitespace=rng.choice(("keep", "trim")),
        stop=rng.choice(((), (), ("end.", "a <"), ("Hello world",), ("}",))),
        include_stop_str_in_output=rng.random() < 0.3,
        min_tokens=rng.choice((0, 0, 4)),
        stop_token_ids=rng.choice(((), (), tuple(ids[-1:]), tuple(ids[:2]))),
        ignore_eos=rng.random() < 0.2,
        skip_special_tokens=rng.random() < 0.8,
        parallel_tool_calls=rng.random() < 0.8,
    )
    if request.tool_choice not in ("auto", "none") and not request.tools:
        return
    tail = derenders.tokenizer(name).encode(rng.choice(PROMPT_TAILS), add_special_tokens=False).ids

    def opened() -> ChatStream:
        return derenderer.chat(request, request_id="r", prompt_token_ids=[11, 12, *tail])

    one_shot = fold(opened(), ids, [len(ids)], finish)
    assert fold(opened(), ids, [1] * len(ids), finish) == one_shot, "one by one"
    for _ in range(3):
        lengths = derenders.cut(len(ids), rng)
        assert fold(opened(), ids, lengths, finish) == one_shot, lengths
        assert fold(opened(), ids, lengths, finish, opened) == one_shot, ("restored", lengths)


@pytest.mark.parametrize("family", FAMILIES)
@hypothesis_settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_same_answer(family: str, data: st.DataObject) -> None:
    words = st.sampled_from(COMMON + FAMILIES[family][3] * 3)
    check(family, data.draw(st.lists(words, min_size=1, max_size=25)), data.draw(st.integers(0, 2**32)))


def test_snapshots_are_plain_data() -> None:
    opened = derenders.derenderer("qwen3", "qwen3", "hermes").chat(
        derenders.settings(TOOLS), request_id="r", prompt_token_ids=[1]
    )
    opened.feed(derenders.tokenizer("qwen3").encode('<tool_call>\n{"name": "se').ids)
    assert json.dumps(opened.save(), default=list)
