"""Outputs of real vLLM 0.33 for given ids: equal where it is right, and the same in every chunking anyhow."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from proxy.derender.message import MessageBuilder
from tests import derenders

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "vllm-0.33.jsonl"
GROUPS: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
PARITY = [group for group in GROUPS if group["verdict"] == "parity"]


def named(groups: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("group", groups, ids=[group["name"] for group in groups])


def opened(group: dict[str, Any]) -> Any:
    derenderer = derenders.derenderer(group["tokenizer"], group["reasoning_parser"], group["tool_parser"])
    request = derenders.settings(group["tools"], tool_choice="auto" if group["tools"] else None)
    return derenderer.chat(request, request_id="golden", prompt_token_ids=group["prompt_token_ids"])


def chunkings(group: dict[str, Any]) -> dict[str, list[int]]:
    count = len(group["token_ids"])
    plans = dict(group["chunk_lens"]) | {"one by one": [1] * count, "at once": [count]}
    for seed in range(20):
        plans[f"random {seed}"] = derenders.cut(count, random.Random(seed))
    return plans


def test_there_are_as_many_groups_as_recorded() -> None:
    assert len(GROUPS) == 184
    assert len(PARITY) == 90


@named(PARITY)
def test_equals_the_streamed_answer_in_every_chunking(group: dict[str, Any]) -> None:
    for plan, lengths in chunkings(group).items():
        message = derenders.run(opened(group), group["token_ids"], lengths, group["finish_reason"])
        assert derenders.answer(message) == group["streamed"], plan


@named(PARITY)
def test_is_never_behind_the_reference(group: dict[str, Any]) -> None:
    stream, message = opened(group), MessageBuilder()
    for n, token_id in enumerate(group["token_ids"]):
        last = n == len(group["token_ids"]) - 1
        for delta in stream.feed([token_id], group["finish_reason"] if last else None):
            message.add(delta)
        sent = [
            len(message.reasoning or ""),
            len(message.content or ""),
            sum(len(call["arguments"]) for call in message.tool_calls),
        ]
        reference = group["emitted_by_token"][n]
        assert all(ours >= theirs for ours, theirs in zip(sent, reference, strict=True)), (n, sent, reference)


@named([group for group in GROUPS if group["verdict"] != "parity"])
def test_is_the_same_in_every_chunking(group: dict[str, Any]) -> None:
    answers = {
        plan: derenders.answer(derenders.run(opened(group), group["token_ids"], lengths, group["finish_reason"]))
        for plan, lengths in chunkings(group).items()
    }
    reference = answers["at once"]
    assert all(answer == reference for answer in answers.values()), answers
    said = (reference["reasoning"] or "") + (reference["content"] or "")
    said += "".join(call["name"] + call["arguments"] for call in reference["tool_calls"])
    for word in ("after text", "not json", "Hello world", "Sure", "nothing", "mentions", "inside", 'not": "a tool'):
        assert word not in group["text"] or word in said, word


FAULTS = {
    "text after the call is lost": lambda a, text: a["content"].endswith("after text") and len(a["tool_calls"]) == 1,
    "arguments before name: vLLM sends what follows the object as arguments": lambda a, text: (
        a["tool_calls"] == [{"name": "search", "arguments": '{"city": "x"}'}]
    ),
    "a marker mentioned in reasoning swallows the rest": lambda a, text: (
        a["reasoning"] == "\nmentions <tool_call> inside\n" and a["content"] == text.split("</think>")[1]
    ),
    "JSON that is no call is lost": lambda a, text: a["content"] == text and not a["tool_calls"],
}


@named([group for group in GROUPS if group["verdict"] == "fault"])
def test_is_right_where_the_reference_is_not(group: dict[str, Any]) -> None:
    message = derenders.run(opened(group), group["token_ids"], [len(group["token_ids"])], group["finish_reason"])
    answer = derenders.answer(message)
    assert FAULTS[group["why"]](answer, group["text"]), answer
