"""Where two answers part."""

from __future__ import annotations

import random

import pytest

from proxy.rollout.compare import (
    Answer,
    Call,
    differences,
    first_difference,
    prompt_difference,
    usage_difference,
)


def test_the_first_difference_is_the_one_that_a_loop_finds():
    rng = random.Random(4)
    for _ in range(2_000):
        ours = "".join(rng.choice("ab") for _ in range(rng.randint(0, 12)))
        theirs = ours[: rng.randint(0, 12)] + "".join(rng.choice("ab") for _ in range(rng.randint(0, 3)))
        slow = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        assert first_difference(ours, theirs) == (min(len(ours), len(theirs)) if slow is None else slow)


SAME = Answer("why", "what", [Call("f", '{"a": 1}'), Call("g", "{}")], "tool_calls")


@pytest.mark.parametrize(
    ("theirs", "fields", "offset", "call"),
    [
        (SAME, [], 0, None),
        (Answer("who", "what", SAME.calls, "tool_calls"), ["reasoning"], 2, None),
        (Answer("why", "what?", SAME.calls, "tool_calls"), ["content"], 4, None),
        (Answer("why", "what", SAME.calls[:1], "tool_calls"), ["tool_names"], 1, 1),
        (Answer("why", "what", [Call("f", '{"a":1}'), SAME.calls[1]], "tool_calls"), ["arguments_text"], 5, 0),
        (
            Answer("why", "what", [SAME.calls[0], Call("g", '{"b":2}')], "tool_calls"),
            ["arguments_json", "arguments_text"],
            1,
            1,
        ),
        (
            Answer("why", "what", [SAME.calls[0], Call("g", "{")], "tool_calls"),
            ["arguments_json", "arguments_text"],
            1,
            1,
        ),
        (Answer("why", "what", SAME.calls, "stop"), ["finish_reason"], -1, None),
    ],
)  # fmt: skip
def test_differences_by_field(theirs, fields, offset, call):
    found = differences(SAME, theirs)
    assert [difference.field for difference in found] == fields
    for difference in found:
        assert (difference.offset, difference.call) == (offset, call)


def test_usage_counts_what_both_tell():
    ours = {"prompt_tokens": 3, "completion_tokens": 4, "reasoning_tokens": 1}
    assert usage_difference(ours, {"prompt_tokens": 3, "completion_tokens": 4, "reasoning_tokens": None}) is None
    wrong = usage_difference(ours, {"prompt_tokens": 3, "completion_tokens": 5})
    assert wrong is not None and (wrong.ours, wrong.theirs, wrong.excerpts[0]) == (4, 5, "completion_tokens")


def test_prompts():
    assert prompt_difference([1, 2], [1, 2]) is None
    wrong = prompt_difference([1, 2, 3], [1, 4])
    assert wrong is not None and (wrong.offset, wrong.ours, wrong.theirs) == (1, 3, 2)
