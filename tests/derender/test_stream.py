"""One choice, as transcripts: feed this, expect that."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from proxy.derender.deltas import Delta
from proxy.derender.derenderer import UnknownFormat
from proxy.derender.message import MessageBuilder
from proxy.derender.stream import ChatStream
from proxy.protocol.generate import TokenLogprob, TopLogprob
from tests import derenders

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
NAMED = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rom"}}\n</tool_call>'
EOS = 151645


def ids(text: str) -> list[int]:
    return list(derenders.tokenizer("qwen3").encode(text, add_special_tokens=False).ids)


def opened(
    *, reasoning: str | None = None, tools: str | None = "hermes", prompt: str = "hi", index: int = 0, **request: Any
) -> ChatStream:
    request.setdefault("tools", (TOOL,))
    derenderer = derenders.derenderer("qwen3", reasoning, tools)
    return derenderer.chat(derenders.settings(**request), request_id="r1", prompt_token_ids=ids(prompt), index=index)


def told(deltas: list[Delta]) -> MessageBuilder:
    message = MessageBuilder()
    for delta in deltas:
        message.add(delta)
    return message


def whole(stream: ChatStream, text: str, finish: str = "stop", **more: Any) -> MessageBuilder:
    return told(stream.feed(ids(text), finish, **more))


@pytest.mark.parametrize(
    ("choice", "text", "finish", "expected"),
    [
        ("auto", CALL, "stop", "tool_calls"),
        ("auto", "no", "stop", "stop"),
        ("required", CALL, "stop", "tool_calls"),
        ("required", '[{"name": "get_time", "parameters": {"city": "Rom"}}]', "stop", "tool_calls"),
        (NAMED, '{"city": "Rom"}', "stop", "stop"),
        (NAMED, CALL, "stop", "stop"),
        ("auto", CALL, "length", "length"),
        ("required", CALL, "length", "length"),
        (NAMED, '{"city": "Rom"}', "length", "length"),
        ("auto", CALL, "abort", "abort"),
        ("none", CALL, "stop", "stop"),
    ],
)
def test_finish_reason(choice: Any, text: str, finish: str, expected: str) -> None:
    message = whole(opened(tool_choice=choice), text, finish)
    assert message.finish_reason == expected
    assert bool(message.tool_calls) == (choice != "none" and text != "no")
    if message.tool_calls:
        assert message.tool_calls[0]["arguments"] == '{"city": "Rom"}'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"name": "get_time", "parameters": {"city": "Rom"}}', None),
        ('{ "name" : "get_time" , "arguments" : {"city": "Rom"} }', None),
        ('{"city": "Rom"}', None),
        ('  {"city": "Rom"}', None),
        ("I cannot.", "I cannot."),
    ],
)
def test_a_named_choice_takes_plain_json_with_or_without_wrapper(text: str, content: str | None) -> None:
    message = whole(opened(tools=None, tool_choice=NAMED), text)
    assert message.content == content
    if content is None:
        (call,) = message.tool_calls
        assert (call["name"], call["arguments"]) == ("get_time", '{"city": "Rom"}')


def test_arguments_of_a_named_choice_stream() -> None:
    stream = opened(tools=None, tool_choice=NAMED)
    deltas = [delta for i in ids('{"city": "Rom and Paris') for delta in stream.feed([i])]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.name for call in calls if call.id] == ["get_time"]
    assert len(calls) > 3
    assert told(deltas).tool_calls[0]["arguments"] == '{"city": "Rom and Paris'


def test_parallel_tool_calls_false_keeps_the_first() -> None:
    message = whole(opened(parallel_tool_calls=False), CALL + "\n" + CALL)
    assert len(message.tool_calls) == 1


def test_tool_call_ids_are_derived() -> None:
    first = whole(opened(), CALL + "\n" + CALL).tool_calls
    again = whole(opened(), CALL + "\n" + CALL).tool_calls
    assert first == again
    assert first[0]["id"] != first[1]["id"]
    assert whole(opened(index=1), CALL).tool_calls[0]["id"] != first[0]["id"]
    assert whole(opened(prompt="other"), CALL).tool_calls[0]["id"] != first[0]["id"]
    assert first[0]["id"].startswith("chatcmpl-tool-")


def test_the_stop_token_is_dropped_and_counted() -> None:
    stream = opened()
    assert whole(stream, "Hi there.<|im_end|>", stop_reason=EOS).content == "Hi there."
    assert stream.completion_tokens == 4


def test_what_follows_an_eos_is_no_answer() -> None:
    stream = opened()
    assert told(stream.feed([*ids("All set."), EOS, *ids(" set.")])).content == "All set."
    assert stream.feed(ids(" more")) == []
    (last,) = stream.feed([], "stop")
    assert last.finish_reason == "stop"
    assert stream.completion_tokens == 4


def test_ignore_eos_goes_on() -> None:
    assert whole(opened(ignore_eos=True), "a<|im_end|> b", "length").content == "a b"
    shown = opened(ignore_eos=True, skip_special_tokens=False)
    assert whole(shown, "a<|im_end|> b", "length").content == "a<|im_end|> b"


def test_stop_token_ids() -> None:
    (stop,) = ids(" up")
    stopped = opened(tools=None, stop_token_ids=(stop,))
    message = whole(stopped, "left right up", stop_reason=stop)
    assert (message.content, message.stop_reason, stopped.completion_tokens) == ("left right", stop, 3)
    assert whole(opened(tools=None, stop_token_ids=(stop,)), "left right up").content == "left right"
    assert whole(opened(tools=None, stop_token_ids=(stop,)), "left right up", "length").content == "left right up"
    kept = opened(tools=None, stop_token_ids=(stop,), include_stop_str_in_output=True)
    assert whole(kept, "left right up", stop_reason=stop).content == "left right up"


def test_a_stop_id_is_put_off_until_the_next_chunk_tells_what_it_was() -> None:
    (stop,) = ids(" up")
    tokens = ids("left right up")
    request: dict[str, Any] = {"tools": None, "stop_token_ids": (stop,), "return_token_ids": True}
    stopped = opened(**request)
    deltas = [*stopped.feed(tokens), *stopped.feed([], "stop", stop)]
    assert (told(deltas).content, told(deltas).token_ids) == ("left right", tokens)
    cut = opened(**request)
    assert told([*cut.feed(tokens), *cut.feed([], "length")]).content == "left right up"
    more = opened(**request)
    assert told([*more.feed(tokens), *more.feed(ids("!"), "length")]).content == "left right up!"
    assert more.completion_tokens == 4


def test_the_primary_eos_is_no_stop_reason_of_a_chat_answer() -> None:
    assert whole(opened(), "Hi<|im_end|>", stop_reason=EOS).stop_reason is None
    assert whole(opened(report_eos=True), "Hi<|im_end|>", stop_reason=EOS).stop_reason == EOS


def test_a_stop_string_ends_the_choice() -> None:
    stream = opened(stop=("blue",), reasoning="qwen3", prompt="<think>\n")
    first = told(stream.feed(ids("blue sky\n</think>\n\nred bl")))
    assert (first.reasoning, first.content) == ("blue sky\n", "\n\nred ")
    last = told(stream.feed(ids("ue and more")))
    assert (last.content, last.finish_reason, last.stop_reason) == (None, "stop", "blue")
    assert stream.finished and stream.stopped
    assert stream.feed(ids("x"), "stop") == []


def test_tokens_are_counted_up_to_the_stop_string() -> None:
    stream = opened(tools=None, stop=("stop",), return_token_ids=True)
    message = whole(stream, "ha ha ha ha stop here and more")
    assert message.content == "ha ha ha ha "
    assert stream.completion_tokens == 5
    assert message.token_ids == ids("ha ha ha ha stop")


def logprobs(token_ids: list[int]) -> list[TokenLogprob]:
    return [TokenLogprob(i, -0.5, 1, [TopLogprob(i, -0.5, 1), TopLogprob(9, float("-inf"), 2)]) for i in token_ids]


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_one_logprob_entry_per_token_on_the_delta_that_carries_it(cut: int) -> None:
    stream = opened(reasoning="qwen3", prompt="<think>\n", logprobs=2)
    tokens = ids("ok\n</think>\n\nYes 🦩")
    deltas = []
    for at in range(0, len(tokens), cut):
        deltas += stream.feed(tokens[at : at + cut], logprobs=logprobs(tokens[at : at + cut]))
    deltas += stream.feed([], "stop")
    entries = told(deltas).logprobs
    assert entries is not None
    assert [entry.token for entry in entries[:5]] == ["ok", "\n", "</think>", "\n\n", "Yes"]
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == "ok\n</think>\n\nYes 🦩"
    assert entries[0].top_logprobs[1].logprob == -9999.0
    for delta in deltas:
        if delta.reasoning:
            assert delta.logprobs is not None and delta.logprobs[0].token in ("ok", "\n")


def test_hidden_reasoning_has_no_side_channel() -> None:
    stream = opened(reasoning="qwen3", prompt="<think>\n", include_reasoning=False, logprobs=0, return_token_ids=True)
    tokens = ids("plan\n</think>\n\nAnswer")
    message = told(stream.feed(tokens, "stop", logprobs=logprobs(tokens)))
    assert (message.reasoning, message.content) == (None, "\n\nAnswer")
    assert message.logprobs is None and message.token_ids is None
    assert (stream.completion_tokens, stream.reasoning_tokens) == (5, 2)


def test_tokens_as_ids() -> None:
    stream = opened(tools=None, logprobs=1, return_tokens_as_token_ids=True)
    message = told(stream.feed([13048], "stop", logprobs=logprobs([13048])))
    assert message.logprobs is not None
    assert message.logprobs[0].token == "token_id:13048"


def test_reasoning_and_content_are_separate_deltas() -> None:
    deltas = opened(reasoning="qwen3", prompt="<think>\n").feed(ids("a</think>b"))
    assert [(d.reasoning, d.content) for d in deltas] == [("a", None), (None, "b")]


@pytest.mark.parametrize(
    ("prompt", "kwargs", "reasoning"),
    [
        ("<|im_start|>assistant\n<think>\n", {}, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", {}, False),
        ("<|im_start|>assistant\n", {}, True),
        ("<|im_start|>assistant\n", {"enable_thinking": False}, False),
        ("<think>\nold\n</think>\n<|im_end|>\n<|im_start|>assistant\n", {}, True),
        ("", {}, True),
    ],
)
def test_the_prompt_decides_whether_reasoning_is_open(prompt: str, kwargs: dict[str, Any], reasoning: bool) -> None:
    message = whole(opened(reasoning="qwen3", prompt=prompt, chat_template_kwargs=kwargs), "word")
    assert (message.reasoning if reasoning else message.content) == "word"


def test_a_prompt_whose_markers_are_no_tokens_is_read_as_text() -> None:
    tokenizer = derenders.tokenizer("llama3_1")
    derenderer = derenders.derenderer("llama3_1", "deepseek_r1")
    for tail, open_ in (("a<think>\n", True), ("<think>\n</think>\n", False)):
        prompt = tokenizer.encode(tail, add_special_tokens=False).ids
        stream = derenderer.chat(derenders.settings(), request_id="r", prompt_token_ids=prompt)
        message = told(stream.feed(tokenizer.encode("word", add_special_tokens=False).ids, "stop"))
        assert (message.reasoning if open_ else message.content) == "word"


def test_a_harmony_prompt_may_end_inside_a_message() -> None:
    tokenizer = derenders.tokenizer("gptoss")
    derenderer = derenders.derenderer("gptoss", "openai_gptoss", "openai")
    prompt = tokenizer.encode("<|start|>assistant<|channel|>final<|message|>So", add_special_tokens=False).ids
    stream = derenderer.chat(derenders.settings(), request_id="r", prompt_token_ids=prompt)
    assert told(stream.feed(tokenizer.encode(" far", add_special_tokens=False).ids, "stop")).content == " far"


@pytest.mark.parametrize("name", ["nope", ""])
def test_an_unknown_parser_is_refused_with_the_list(name: str) -> None:
    if name:
        with pytest.raises(UnknownFormat, match="hermes"):
            derenders.derenderer("qwen3", None, name)
    else:
        assert not derenders.derenderer("qwen3", None, None).parses


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "required"])
@pytest.mark.parametrize("unit", ["A", 'x" \\ ', "é🫠"])
def test_a_long_argument_is_linear(form: str, unit: str) -> None:
    def argument(length: int) -> list[int]:
        text = unit * (length // len(unit))
        if form == "qwen3_coder":
            return ids(
                f"<tool_call>\n<function=get_time>\n<parameter=city>\n{text}\n</parameter>\n</function>\n</tool_call>"
            )
        inner = json.dumps({"city": text}, ensure_ascii=False)
        if form == "required":
            return ids('[{"name": "get_time", "parameters": ' + inner + "}]")
        return ids('<tool_call>\n{"name": "get_time", "arguments": ' + inner + "}\n</tool_call>")

    def seconds(tokens: list[int]) -> float:
        stream = opened(
            tools="hermes" if form == "required" else form, tool_choice="required" if form == "required" else "auto"
        )
        begin = time.process_time()
        for token_id in tokens:
            stream.feed([token_id])
        stream.feed([], "stop")
        return time.process_time() - begin

    short, long = argument(8192), argument(32768)
    # quadratic work is 16 times as much in every pair; what else the machine does is not in all of them
    assert min(seconds(long) / seconds(short) for _ in range(7)) <= 6


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ("<tool_call>\n%s\n%s\n</tool_call>", 2, None),
        ("<tool_call>\n%s}\n</tool_call>\nDone", 1, "\nDone"),
        ("<tool_call>%s<tool_call>%s", 2, None),
        ("<tool_call>%s</tool_call>{}", 1, "{}"),
    ],
)
def test_what_models_get_wrong_around_hermes_calls(text: str, calls: int, content: str | None) -> None:
    written = text.replace("%s", '{"name": "get_time", "arguments": {"city": "Rom"}}')
    message = whole(opened(), written)
    assert [call["arguments"] for call in message.tool_calls] == ['{"city": "Rom"}'] * calls
    assert message.content == content
