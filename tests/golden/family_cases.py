"""The outputs whose answers ``record_families`` asks vLLM for, per family. No dependency on this package's code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str, dict[str, Any]]

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
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    }
    for name in ("get_weather", "search")
]

ONE: list[Call] = [("get_weather", {"city": "Paris"})]
TWO: list[Call] = [("get_weather", {"city": "Rio de Janeiro", "days": 3}), ("search", {"city": "naïve 😀 café"})]
NESTED: list[Call] = [("search", {"opts": {"a": [1, 2, {"b": None}], "c": True}, "tags": ["x", "y z"]})]
ESCAPES: list[Call] = [("search", {"city": 'say "hi" \\ now\nnext } ] line'})]
EMPTY: list[Call] = [("search", {})]


@dataclass(frozen=True)
class Family:
    """``write``: text of calls. ``think``: the markers of reasoning. ``primed``: the prompt's end that opens it."""

    name: str
    tool_parser: str | None
    reasoning_parser: str | None
    markers: Sequence[str]
    write: Callable[[list[Call]], str]
    think: tuple[str, str] | None = None
    wrap: tuple[str, str] = ("", "")  # around an answer
    start: str = ""  # the prompt's end where nothing else is said
    single: bool = False  # one call per answer
    speaks: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def texts(family: Family) -> Iterator[tuple[str, str, str, str]]:
    """Name, end of the prompt, output, finish reason."""
    begin, end = family.wrap

    def answer(text: str) -> str:
        return begin + text + end

    closed = "".join(family.think) if family.think is not None else family.start
    write = family.write
    yield "content", closed, answer("Hello < world [1] {2} 😀."), "stop"
    yield "call", closed, write(ONE), "stop"
    if not family.single:
        yield "two calls", closed, write(TWO), "stop"
    yield "nested", closed, write(NESTED), "stop"
    yield "escapes", closed, write(ESCAPES), "stop"
    yield "empty", closed, write(EMPTY), "stop"
    if family.speaks:
        yield "content then call", closed, answer("Let me look.") + write(ONE), "stop"
    yield "cut in the arguments", closed, write(ONE)[: write(ONE).index("Paris") + 3], "length"
    if family.think is not None:
        opened, ended = family.think
        yield "reasoning", family.start, opened + "Let me think." + ended + answer("Hello."), "stop"
        yield "reasoning, open", opened, "Let me think." + ended + answer("Hello."), "stop"
        yield "reasoning then call", opened, "Let me think." + ended + write(ONE), "stop"
        yield "reasoning, cut", opened, "Let me thi", "length"


def dumps(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False)


def objects(calls: list[Call], name: str = "name", arguments: str = "arguments") -> list[str]:
    return [dumps({name: called, arguments: given}) for called, given in calls]


def listed(begin: str, end: str = "") -> Callable[[list[Call]], str]:
    return lambda calls: begin + "[" + ", ".join(objects(calls)) + "]" + end


def each(begin: str, end: str, arguments: str = "arguments") -> Callable[[list[Call]], str]:
    return lambda calls: "".join(begin + text + end for text in objects(calls, arguments=arguments))


def _cohere(calls: list[Call]) -> str:
    items = (
        dumps({"tool_call_id": str(number), "tool_name": name, "parameters": given})
        for number, (name, given) in enumerate(calls)
    )
    return "<|START_ACTION|>[\n    " + ",\n    ".join(items) + "\n]<|END_ACTION|>"


def _plamo(calls: list[Call]) -> str:
    out = "<|plamo:begin_tool_requests:plamo|>"
    for name, given in calls:
        out += f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        out += "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>" + dumps(given)
        out += "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    return out + "<|plamo:end_tool_requests:plamo|>"


def _apertus(calls: list[Call]) -> str:
    return "<|tools_prefix|>" + dumps([{name: given} for name, given in calls]) + "<|tools_suffix|>"


def _inkling(calls: list[Call]) -> str:
    blocks = (f"<|content_invoke_tool_json|>{text}<|end_message|>" for text in objects(calls, arguments="args"))
    return "<|message_model|>".join(blocks)


def raw(item: Any) -> str:
    return item if isinstance(item, str) else dumps(item)


def _functiongemma(calls: list[Call]) -> str:
    out = ""
    for name, given in calls:
        inner = ",".join(f"{key}:<escape>{raw(item)}<escape>" for key, item in given.items())
        out += f"<start_function_call>call:{name}{{{inner}}}<end_function_call>"
    return out


def _lfm(calls: list[Call]) -> str:
    made = (f"{name}({', '.join(f'{key}={item!r}' for key, item in given.items())})" for name, given in calls)
    return f"<|tool_call_start|>[{', '.join(made)}]<|tool_call_end|>"


def _glm(calls: list[Call]) -> str:
    out = ""
    for name, given in calls:
        inner = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{raw(item)}</arg_value>\n" for key, item in given.items()
        )
        out += f"<tool_call>{name}\n{inner}</tool_call>"
    return out


def _ifm(calls: list[Call]) -> str:
    tagged = _glm(calls).replace("<tool_call>", "<ifm|tool_call>").replace("</tool_call>", "</ifm|tool_call>")
    for word in ("arg_key", "arg_value"):
        tagged = tagged.replace(f"<{word}>", f"<ifm|{word}>").replace(f"</{word}>", f"</ifm|{word}>")
    return f"<ifm|tool_calls>{tagged}</ifm|tool_calls>"


def invoking(call: str, key: str, quote: str, before: str, after: str, *, once: bool = True) -> Any:
    """Calls as elements whose names stand behind ``=``."""

    def write(calls: list[Call]) -> str:
        parts = []
        for name, given in calls:
            inner = "".join(f"<{key}={quote}{k}{quote}>{raw(item)}</{key.split()[0]}>\n" for k, item in given.items())
            parts.append(f"<{call}={quote}{name}{quote}>\n{inner}</{call.split()[0]}>\n")
        return before + "".join(parts) + after if once else "".join(before + part + after for part in parts)

    return write


def _muse(calls: list[Call]) -> str:
    write = invoking(
        "atem:invoke name", "atem:parameter name", '"', "<atem:function_calls>\n", "</atem:function_calls>"
    )
    messages = (f" to={name}<|message|>" + write([(name, given)]) for name, given in calls)
    return "<|eom|><|start|>assistant".join(messages) + "<|eom|>"


_THINK = ("<think>", "</think>")
_COHERE = [
    f"<|{side}_{block}|>" for block in ("THINKING", "RESPONSE", "TEXT", "ACTION") for side in ("START", "END")
] + ["<|CHATBOT_TOKEN|>"]
_COHERE_THINK = ("<|START_THINKING|>", "<|END_THINKING|>")
_INKLING = [
    "<|message_model|>", "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>",
    "<|content_invoke_tool_text|>", "<|content_tool_error|>", "<|content_model_end_sampling|>", "<|end_message|>",
]  # fmt: skip

FAMILIES: list[Family] = [
    Family(
        "longcat", "longcat", None, ["<longcat_tool_call>", "</longcat_tool_call>"],
        each("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    ),
    Family("phi4_mini_json", "phi4_mini_json", None, [], listed("functools")),
    Family(
        "internlm", "internlm", None, ["<|action_start|>", "<|action_end|>", "<|plugin|>", "<|interpreter|>"],
        each("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"), single=True,
    ),
    Family("jamba", "jamba", None, ["<tool_calls>", "</tool_calls>"], listed("<tool_calls>", "</tool_calls>")),
    Family("xlam", "xlam", None, [], listed(""), speaks=False),
    Family("xlam fence", "xlam", None, [], listed("```json\n", "\n```")),
    Family(
        "gigachat3", "gigachat3", None, ["<|function_call|>", "<|message_sep|>", "<|role_sep|>"],
        each("<|function_call|>", ""), single=True,
    ),
    Family(
        "gigachat3 message", "gigachat3", None, ["<|function_call|>", "<|message_sep|>", "<|role_sep|>"],
        each("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""), single=True,
    ),
    Family("apertus", "apertus", None, ["<|tools_prefix|>", "<|tools_suffix|>"], _apertus),
    Family(
        "cohere_command3", "cohere_command3", "cohere_command3", _COHERE, _cohere, _COHERE_THINK,
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    Family(
        "cohere_command4", "cohere_command4", "cohere_command4", _COHERE, _cohere, _COHERE_THINK,
        ("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Family(
        "plamo3", "plamo3", "plamo3", [], _plamo,
        ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ),
    Family(
        "inkling", "inkling", "inkling", _INKLING, _inkling,
        wrap=("<|content_text|>", "<|end_message|>"), start="<|message_model|>",
    ),
    Family("functiongemma", "functiongemma", None, ["<start_function_call>", "<end_function_call>"], _functiongemma),
    Family("lfm2", "lfm2", None, ["<|tool_call_start|>", "<|tool_call_end|>"], _lfm),
    Family("ling3", "ling3", "ling3", ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"], _glm, _THINK),
    Family(
        "poolside_v1", "poolside_v1", "poolside_v1", ["<assistant>"], _glm, _THINK,
        template_kwargs={"enable_thinking": True},
    ),
    Family(
        "k2_horizon", "k2_horizon", "k2_horizon",
        [f"<{end}ifm|{word}>" for end in ("", "/") for word in ("tool_calls", "think", "think_fast", "think_faster")],
        _ifm, ("<ifm|think>", "</ifm|think>"),
    ),
    Family(
        "dots", "dots", None, ["<dots_function_call>", "</dots_function_call>"],
        invoking("invoke name", "parameter name", '"', "<dots_function_call>\n", "</dots_function_call>"),
    ),
    Family("minicpm5", "minicpm5", None, [], invoking("function name", "param name", '"', "", "")),
    Family(
        "mimo", "mimo", "mimo", [],
        invoking("function", "parameter", "", "<tool_call>\n", "</tool_call>", once=False), _THINK,
    ),
    Family(
        "muse", "muse", "muse", ["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"], _muse,
        wrap=(" to=user<|message|>", "<|eot|>"), start="<|start|>assistant", speaks=False,
    ),
    Family("holo2", "hermes", "holo2", [], each("<tool_call>\n", "\n</tool_call>"), _THINK),
]  # fmt: skip
