"""``hf``: what transformers reads by a response template, streamed, and the same in every cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from proxy.derender.derenderer import Checkpoint, Derenderer, UnknownFormat
from proxy.derender.stream import ChatStream
from tests import derenders
from tests.derender.test_invariance import fold

TURN = "<|im_start|>assistant\n"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]


def template(calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {"repeats": True, **calls},
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    }
    return {"start_anchor": TURN, "defaults": {"role": "assistant"}, "fields": fields | more}


WHOLE = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TEMPLATES = {
    "an object": template(
        {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "content": "json", "transform": WHOLE}
    ),
    "keys of its own": template({
        "open": "<tool_call>", "close": "</tool_call>", "content": "json",
        "transform": {"function": {"name": "{content.tool}", "arguments": "{content.args}"}},
    }),
    "a name in front": template({
        "open_pattern": r"\s*<tool_call>(?P<name>\w+)\n", "close": "</tool_call>", "content": "json",
        "transform": NAMED,
    }),
    "xml": template({
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
        "close_pattern": r"</function>\s*</tool_call>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
        "transform": NAMED,
    }),
    "python": template({
        "open": "<tool_call>", "close": "</tool_call>", "content": "python-call-list", "transform_each": True,
        "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}, "repeats": False,
    }),
}  # fmt: skip

CALLS = {
    "an object": '\n<tool_call>\n{"name": "search", "arguments": {"city": "a } \\" é", "days": 3}}\n</tool_call>',
    "keys of its own": '<tool_call>{"tool": "search", "args": {"city": "a", "days": 3}}</tool_call>',
    "a name in front": '\n<tool_call>search\n{"city": "a </b>", "days": 3}</tool_call>',
    "xml": "<tool_call>\n<function=search>\n<parameter=city>\na <b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "python": "<tool_call>[search(city='a', days=3), search(city=\"b\")]</tool_call>",
}
PARTS = [
    "Hello", " world", "\n", "\n\n", "<think>", "</think>", "hm", " ", "<tool_call>", "</tool_call>", "<tool_", "{",
    "}", "search\n", '"', "é", "😀", "<|im_end|>", "<|im_start|>", "<function=search>", "</function>", "null", "[", "]",
]  # fmt: skip


def derenderer(name: str) -> Derenderer:
    return Derenderer(
        derenders.vocabulary("qwen3"),
        reasoning_parser="hf",
        tool_parser="hf",
        eos_token_ids=derenders.eos_ids("qwen3"),
        checkpoint=Checkpoint(None, TEMPLATES[name]),
    )


def encode(text: str) -> list[int]:
    return list(derenders.tokenizer("qwen3").encode(text, add_special_tokens=False).ids)


def parsed(answer: dict[str, Any]) -> Any:
    calls = [(call["name"], json.loads(call["arguments"])) for call in answer["tool_calls"]]
    return (answer["reasoning"] or "").strip(), (answer["content"] or "").strip(), calls


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("start", ["", "<think>\n"])
def test_as_transformers_reads_it(name: str, start: str) -> None:
    call = CALLS[name]
    made = derenderer(name)
    for text in ("Hello <b> world.", call, "Let me look. " + call, "" if name == "python" else call + call):
        text = ("hm\n</think>\n\n" if start else "<think>hm</think>") + text
        stream = made.chat(
            derenders.settings(TOOLS), request_id="r", prompt_token_ids=encode("<|im_start|>user\nHi\n" + TURN + start)
        )
        ids = encode(text + "<|im_end|>")
        reference = parse_response(text + "<|im_end|>", TEMPLATES[name], prefix=TURN + start, tools=TOOLS)
        theirs = (
            reference.get("thinking", ""),
            reference.get("content", ""),
            [(c["function"]["name"], c["function"]["arguments"]) for c in reference.get("tool_calls", ())],
        )
        assert parsed(derenders.answer(derenders.run(stream, ids, [1] * len(ids)))) == theirs, text


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_same_in_every_cut_and_restored_anywhere(name: str) -> None:
    made = derenderer(name)
    for seed in range(60):
        rng = random.Random(seed)
        ids = encode("".join(rng.choice([*PARTS, CALLS[name]]) for _ in range(rng.randint(1, 14))))
        request = derenders.settings(
            rng.choice((TOOLS, TOOLS, [])),
            tool_choice="auto",
            tool_call_streaming=rng.choice(("incremental", "complete")),
            framing_whitespace=rng.choice(("keep", "trim")),
            skip_special_tokens=rng.random() < 0.8,
        )
        prompt = encode(TURN + rng.choice(("", "<think>\n")))

        def opened(request: Any = request, prompt: Any = prompt) -> ChatStream:
            return made.chat(request, request_id="r", prompt_token_ids=prompt)

        finish = rng.choice(("stop", "length"))
        whole = fold(opened(), ids, [len(ids)], finish)
        assert fold(opened(), ids, [1] * len(ids), finish) == whole
        assert fold(opened(), ids, derenders.cut(len(ids), rng), finish, opened) == whole


def test_json_arguments_stream() -> None:
    stream = derenderer("an object").chat(derenders.settings(TOOLS), request_id="r", prompt_token_ids=encode(TURN))
    stream.feed(encode('<tool_call>\n{"name": "search", "arguments": {"city": "Par'))
    deltas = stream.feed(encode("is"))
    assert deltas[0].tool_calls is not None
    assert deltas[0].tool_calls[0].arguments == "is"


def test_what_cannot_be_read_is_content() -> None:
    text = "<tool_call>\nnot json\n</tool_call> tail"
    stream = derenderer("an object").chat(derenders.settings(TOOLS), request_id="r", prompt_token_ids=encode(TURN))
    ids = encode(text)
    assert derenders.answer(derenders.run(stream, ids, [len(ids)]))["content"] == text


def test_only_reasoning_or_only_calls() -> None:
    text = "<think>hm</think>Hi" + CALLS["an object"]
    parts: dict[str, Any] = {"checkpoint": Checkpoint(None, TEMPLATES["an object"])}
    ids = encode(text)
    for names, content in (
        ({"reasoning_parser": "hf"}, "Hi" + CALLS["an object"]),
        ({"tool_parser": "hf"}, "hmHi"),
    ):
        made = Derenderer(derenders.vocabulary("qwen3"), **names, **parts)
        stream = made.chat(derenders.settings(TOOLS), request_id="r", prompt_token_ids=encode(TURN))
        assert derenders.answer(derenders.run(stream, ids, [len(ids)]))["content"] == content


@pytest.mark.parametrize(
    "broken",
    [{"fields": {}}, {"start_anchor": "x", "fields": {"mood": {"open": "<m>"}}}, {"version": 7, "fields": {"a": {}}}],
)
def test_a_template_that_is_no_good(broken: dict[str, Any]) -> None:
    with pytest.raises(UnknownFormat, match="response_template"):
        Derenderer(derenders.vocabulary("qwen3"), tool_parser="hf", checkpoint=Checkpoint(None, broken))
