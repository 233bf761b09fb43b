"""Helpers of the core's tests: streams fed in any cuts, and their folded answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from proxy.derender.derenderer import ChatSettings, Derenderer
from proxy.derender.message import MessageBuilder
from proxy.derender.stream import ChatStream
from proxy.derender.vocabulary import Vocabulary
from tests.tokenizers import tokenizer_dir

Answer = dict[str, Any]


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir(name) / "tokenizer.json"))


@cache
def vocabulary(name: str) -> Vocabulary:
    config = json.loads((tokenizer_dir(name) / "config.json").read_text())
    return Vocabulary.load(tokenizer(name), config["vocab_size"])


@cache
def eos_ids(name: str) -> tuple[int, ...]:
    """The model's EOS ids, the primary one first."""
    found: list[int] = []
    for file in ("config.json", "generation_config.json"):
        path = tokenizer_dir(name) / file
        ids = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        found += ids if isinstance(ids, list) else [ids]
    return tuple(dict.fromkeys(i for i in found if i is not None))


@cache
def derenderer(name: str, reasoning: str | None = None, tools: str | None = None, **knobs: str) -> Derenderer:
    return Derenderer(
        vocabulary(name), reasoning_parser=reasoning, tool_parser=tools, eos_token_ids=eos_ids(name), **knobs
    )


def cut(length: int, rng: random.Random, most: int = 8) -> list[int]:
    """Random chunk lengths that sum to ``length``."""
    lengths: list[int] = []
    while length > 0:
        lengths.append(min(length, rng.randint(1, most)))
        length -= lengths[-1]
    return lengths


def pieces(ids: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[list[int], bool]]:
    """The chunks, and whether each is the last."""
    at = 0
    for n, length in enumerate(lengths):
        yield list(ids[at : at + length]), n == len(lengths) - 1
        at += length


def answer(message: MessageBuilder) -> Answer:
    """A folded answer as the golden files have it."""
    return {
        "reasoning": message.reasoning,
        "content": message.content,
        "tool_calls": [{"name": c["name"], "arguments": c["arguments"]} for c in message.tool_calls],
        "finish_reason": message.finish_reason,
    }


def run(
    opened: ChatStream,
    ids: Sequence[int],
    lengths: Sequence[int],
    finish_reason: str = "stop",
    stop_reason: int | str | None = None,
) -> MessageBuilder:
    """Feed all chunks, fold the deltas."""
    message = MessageBuilder()
    for chunk, last in pieces(ids, lengths):
        for delta in opened.feed(chunk, finish_reason if last else None, stop_reason if last else None):
            message.add(delta)
    return message


def settings(tools: Sequence[dict[str, Any]] | None = None, **more: Any) -> ChatSettings:
    return ChatSettings(tools=tuple(tools or ()), **more)
