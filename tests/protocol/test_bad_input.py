"""Each bad field of a request is a 400 in our own words that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import RequestError
from proxy.protocol.openai import Limits, parse_chat, parse_completion, parse_detokenize, parse_tokenize

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HUGE = 10**30
DIGITS = "9" * 5000


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi", **fields}]}


def part(value: Any) -> dict[str, Any]:
    return message(content=[value])


def call(value: Any) -> dict[str, Any]:
    return message(role="assistant", tool_calls=[value])


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}]}


CHAT: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [*USER, {"content": "x"}]}, "messages[1].role"),
    (message(role=None), "messages[0].role"),
    (message(role="wizard"), "messages[0].role"),
    (message(content=5), "messages[0].content"),
    (message(content={"type": "text"}), "messages[0].content"),
    (part(5), "messages[0].content[0]"),
    (part({}), "messages[0].content[0].type"),
    (part({"type": "zzz"}), "messages[0].content[0].type"),
    (part({"type": "text"}), "messages[0].content[0].text"),
    (part({"type": "text", "text": 5}), "messages[0].content[0].text"),
    (part({"type": "image_url", "image_url": {"url": "http://x"}}), "messages[0].content[0]"),
    (part({"type": "input_audio", "input_audio": {}}), "messages[0].content[0]"),
    (part({"type": "video_url", "video_url": {}}), "messages[0].content[0]"),
    (part({"type": "file", "file": {}}), "messages[0].content[0]"),
    (message(name=5), "messages[0].name"),
    (message(reasoning=["x"]), "messages[0].reasoning"),
    (message(role="tool", tool_call_id=5), "messages[0].tool_call_id"),
    (message(role="assistant", tool_calls={}), "messages[0].tool_calls"),
    (call("x"), "messages[0].tool_calls[0]"),
    (call({"type": "custom"}), "messages[0].tool_calls[0].type"),
    (call({"function": "f"}), "messages[0].tool_calls[0].function"),
    (call({"function": {}}), "messages[0].tool_calls[0].function.name"),
    (call({"function": {"name": "f", "arguments": 5}}), "messages[0].tool_calls[0].function.arguments"),
    ({"tools": []}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    (tool(), "tools[0].function.name"),
    (tool(name=""), "tools[0].function.name"),
    (tool(name="f", parameters=[]), "tools[0].function.parameters"),
    (tool(name="f", description=5), "tools[0].function.description"),
    (tool(name="f", strict=1), "tools[0].function.strict"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": HUGE}, "max_completion_tokens"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"chat_template_kwargs": {"conversation": []}}, "chat_template_kwargs.conversation"),
    ({"documents": ["x"]}, "documents[0]"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"echo": True, "logprobs": True, "stream": True}, "echo"),
    (
        {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "structured_outputs": {"regex": "a"},
        },
        "structured_outputs",
    ),
]
SHARED: list[tuple[dict[str, Any], str | None]] = [
    ({"model": 5}, "model"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.0}, "top_k"),
    ({"top_k": HUGE}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"n": "2"}, "n"),
    ({"n": HUGE}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": HUGE}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"priority": -HUGE}, "priority"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [1, 2, True]}, "stop_token_ids[2]"),
    ({"stop_token_ids": [1.0]}, "stop_token_ids[0]"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stop_token_ids": [-HUGE]}, "stop_token_ids[0]"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"logprob_token_ids": [-1]}, "logprob_token_ids[0]"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": "x"}, "bad_words"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1.5": 1}}, "logit_bias"),
    ({"logit_bias": {DIGITS: 1}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"stream_interval": 0}, "stream_interval"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": HUGE}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json_object": True, "whitespace_pattern": 5}}, "structured_outputs.whitespace_pattern"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "a/b"}, "cache_salt"),
    ({"cache_salt": "a" * 129}, "cache_salt"),
    ({"request_id": "a" * 257}, "request_id"),
    ({"kv_transfer_params": []}, "kv_transfer_params"),
    ({"vllm_xargs": {"a": {"b": 1}}}, "vllm_xargs.a"),
    ({"vllm_xargs": {"a": [None]}}, "vllm_xargs.a"),
    ({"vllm_xargs": {"a": HUGE}}, "vllm_xargs.a"),
]
TEXT: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [[], [1]]}, "prompt[0]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [1, True]}, "prompt[1]"),
    ({"prompt": [1, 2.0]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [None]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, -1]}, "prompt[1]"),
    ({"prompt": [[1], [2, True]]}, "prompt[1][1]"),
    ({"prompt": [[1], [2, -2]]}, "prompt[1][1]"),
    ({"prompt": [[1], "a"]}, "prompt[1]"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"prompt_embeds": "x"}, "prompt_embeds"),
    ({"logprobs": -2}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
]


def refused(parse: Any, body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body if isinstance(body, bytes) else json.dumps(body).encode())
    error = caught.value
    assert (error.status, error.type, error.code) == (400, "BadRequestError", 400)
    for library in ("msgspec", "Traceback", "$.", "pydantic"):
        assert library not in error.message
    assert len(error.message) < 1000
    return error


@pytest.mark.parametrize(("fields", "param"), CHAT + SHARED)
def test_chat(fields: dict[str, Any], param: str | None) -> None:
    assert refused(parse_chat, {"messages": USER, **fields}).param == param


@pytest.mark.parametrize(("fields", "param"), SHARED + TEXT)
def test_completion(fields: dict[str, Any], param: str | None) -> None:
    assert refused(parse_completion, {"prompt": "Hi", **fields}).param == param


BODIES = [b"", b"{", b"{nope", b"\xff", b'{"a":NaN}', b'"x"', b"[1]", b"null", b"[" * 100_000, b'{"a":' * 100_000]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("parse", [parse_chat, parse_completion, parse_tokenize, parse_detokenize])
def test_bodies_that_are_no_objects(parse: Any, body: bytes) -> None:
    assert refused(parse, body).param is None


@pytest.mark.parametrize(
    "field", ["max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "temperature", "top_p"]
)
def test_numbers_too_long_to_print(field: str) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"%s":%s}' % (field.encode(), DIGITS.encode())
    assert refused(parse_chat, body).param in (field, None)


def test_deep_schema() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(70):
        schema = {"properties": {"a": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    error = refused(parse_chat, {"messages": USER, "response_format": form})
    assert error.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": USER}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": USER, "continue_final_message": True}, "continue_final_message"),
        ({"messages": USER, "tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_tokenize(body: dict[str, Any], param: str) -> None:
    assert refused(parse_tokenize, body).param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tokens"),
        ({"tokens": [1, -1]}, "tokens[1]"),
        ({"tokens": [True]}, "tokens[0]"),
        ({"tokens": "x"}, "tokens"),
    ],
)
def test_detokenize(body: dict[str, Any], param: str) -> None:
    assert refused(parse_detokenize, body).param == param


def test_limits_can_be_set() -> None:
    limits = Limits(max_n=2, max_stop_strings=1)
    body = {"messages": USER, "n": 2, "stop": ["a"]}
    assert parse_chat(json.dumps(body).encode(), limits).n == 2
    for field in ({"n": 3}, {"stop": ["a", "b"]}):
        with pytest.raises(RequestError) as caught:
            parse_chat(json.dumps(body | field).encode(), limits)
        assert caught.value.param == next(iter(field))
