"""What a good request becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.openai import parse_chat, parse_completion, parse_tokenize

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "x": 1}, "y": 2}


def chat(**fields: Any) -> Any:
    return parse_chat(json.dumps({"messages": USER, **fields}).encode())


def completion(**fields: Any) -> Any:
    return parse_completion(json.dumps({"prompt": "Hi", **fields}).encode())


def test_unknown_fields_survive() -> None:
    request = chat(future={"a": [1]}, store=True)
    assert request.extra == {"future": {"a": [1]}, "store": True}


def test_a_client_cannot_set_our_own_fields() -> None:
    assert chat(extra={"a": 1}).extra == {"extra": {"a": 1}}
    assert completion(prompts=["x"]).prompts == ["Hi"]
    assert chat(raw="x").raw.startswith(b"{")


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "none"),
        ({"tools": [TOOL]}, "auto"),
        ({"tools": [TOOL], "tool_choice": None}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, "none"),
        ({"tool_choice": "none"}, "none"),
    ],
)
def test_tool_choice(fields: dict[str, Any], choice: str | None) -> None:
    assert chat(**fields).tool_choice == choice


def test_tools_have_the_keys_that_templates_see() -> None:
    assert chat(tools=[TOOL]).tools == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object"}}}
    ]


def test_media_pass_where_somebody_renders_them() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    assert parse_chat(json.dumps(body).encode(), media=True).messages == body["messages"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["", "a"], ["", "a"]),
    ],
)
def test_prompts(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_output_limits() -> None:
    assert chat().output_limit is None
    assert chat(max_tokens=5).output_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=6).output_limit == 6
    assert completion().output_limit == 16
    assert completion(max_tokens=0, echo=True).echo_only


def test_stop_strings_and_logprobs() -> None:
    assert chat(stop="a").stop_strings == ("a",)
    assert chat(stop=["a", "b", "a"]).stop_strings == ("a", "b")
    assert chat(top_logprobs=0).wanted_logprobs is None
    assert chat(logprobs=True).wanted_logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).wanted_logprobs == 3
    assert completion(logprobs=0).wanted_logprobs == 0


def test_usage_in_every_chunk_needs_usage_at_the_end() -> None:
    options = {"continuous_usage_stats": True}
    assert not chat(stream=True, stream_options=options).continuous_usage
    assert chat(stream=True, stream_options={"include_usage": True, **options}).continuous_usage


def test_tokenize_takes_an_empty_list_of_tools() -> None:
    assert parse_tokenize(json.dumps({"messages": USER, "tools": []}).encode()).tools is None
