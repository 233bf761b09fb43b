"""Families whose calls stand between tags: GLM, Kimi, Gemma, MiniMax, Step, Seed, Hunyuan; and what is left of JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.generators.base import Call, Marker, Tool, Written, calls, dumps, words
from tests.generators.json_families import JsonFamily, _between, _objects, _one_list
from tests.generators.qwen import xml_value


def raw(item: Any) -> str:
    """A value as XML-like templates write it: strings bare, anything else as JSON."""
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def pieces(text: str, markers: Sequence[str]) -> list[str]:
    """``text`` with its markers as tokens."""
    out: list[str] = []
    while text:
        found = min(((at, -len(m), m) for m in markers if (at := text.find(m)) >= 0), default=(len(text), 0, ""))
        if found[0]:
            out.append(text[: found[0]])
        if found[2]:
            out.append(Marker(found[2]))
        text = text[found[0] + len(found[2]) :]
    return out


@dataclass(frozen=True)
class Tagged:
    """``call``: the pieces of one call; ``around``: of what stands around all of them."""

    call: Callable[[str, dict[str, Any], int, random.Random], list[str]]
    around: tuple[Sequence[str], Sequence[str]] = ((), ())

    def __call__(self, made: tuple[Call, ...], rng: random.Random) -> list[str]:
        out = list(self.around[0])
        for number, (name, given) in enumerate(made):
            out += self.call(name, given, number, rng)
        return out + list(self.around[1])


# -- GLM and Hunyuan ---------------------------------------------------------------------------------------

_GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>")


def _glm(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    line = rng.choice(("", "\n"))
    out = [Marker("<tool_call>"), name + line]
    for key, item in given.items():
        out += [Marker("<arg_key>"), key, Marker("</arg_key>"), *((line,) if line else ())]
        out += [Marker("<arg_value>"), raw(item), Marker("</arg_value>"), *((line,) if line else ())]
    return [*out, Marker("</tool_call>")]


def _hunyuan(separator: str, suffix: str = "") -> tuple[tuple[str, ...], Tagged]:
    def tag(word: str) -> Marker:
        return Marker(f"<{word}{suffix}>")

    words_ = ("think", "tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
    markers = tuple(str(tag(mark + word)) for word in words_ for mark in ("", "/"))

    line = ("\n",) if separator else ()

    def one(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
        out = [*line, tag("tool_call"), name, *((tag(separator),) if separator else ()), *line]
        for key, item in given.items():
            out += [tag("arg_key"), key, tag("/arg_key"), *line]
            out += [tag("arg_value"), raw(item), tag("/arg_value"), *line]
        return [*out, tag("/tool_call")]

    return markers, Tagged(one, ((tag("tool_calls"),), (*line, tag("/tool_calls"))))


# -- Kimi --------------------------------------------------------------------------------------------------

_K2 = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<think>", "</think>",
)  # fmt: skip


def _k2(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    space = rng.choice(("", "", " "))
    return [
        Marker("<|tool_call_begin|>"), f"functions.{name}:{number}{space}", Marker("<|tool_call_argument_begin|>"),
        dumps(given, rng) + space, Marker("<|tool_call_end|>"),
    ]  # fmt: skip


_K3 = ("<|open|>", "<|close|>", "<|sep|>")
_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


class KimiK3:
    family = reasoning_parser = tool_parser = "kimi_k3"
    markers = special = _K3

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        begin, close, sep = map(Marker, _K3)

        def element(name: str, inner: list[str], attributes: str = "") -> list[str]:
            return [begin, name + attributes, sep, *inner, close, name, sep]

        reasoning, content, made = "", "", calls(rng, tools)
        out: list[str] = []
        prompt: tuple[str, ...] = (begin, 'message role="assistant"', sep, begin, "think", sep)
        if rng.random() < 0.7:
            reasoning = words(rng)
            out += [reasoning, close, "think", sep]
        else:
            prompt = prompt[:3]
        if not made or rng.random() < 0.6:
            content = words(rng)
            out += element("response", [content])
        if made:
            inner: list[str] = []
            for number, (name, given) in enumerate(made):
                arguments: list[str] = []
                for key, item in given.items():
                    kind = _TYPES.get(type(item), "null")
                    arguments += element("argument", [raw(item)], f' key="{key}" type="{kind}"')
                inner += element("call", arguments, f' tool="{name}" index="{number + 1}"')
            out += element("tools", inner)
        if rng.random() < 0.5:
            out += [close, "message", sep]
        return Written(tuple(out), prompt, reasoning, content, made)


# -- Gemma 4 -----------------------------------------------------------------------------------------------

_GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")


def _gemma_value(item: Any, space: str) -> list[str]:
    if isinstance(item, str):
        return [Marker('<|"|>'), item, Marker('<|"|>')]
    if isinstance(item, dict):
        return _gemma_items([[key + ":", *_gemma_value(item[key], space)] for key in sorted(item)], "{", "}", space)
    if isinstance(item, list):
        return _gemma_items([_gemma_value(part, space) for part in item], "[", "]", space)
    return [json.dumps(item)]


def _gemma_items(items: list[list[str]], begin: str, end: str, space: str) -> list[str]:
    out = [begin]
    for number, item in enumerate(items):
        out += ["," + space] if number else []
        out += item
    return [*out, end]


def _gemma(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    body = _gemma_value(given, rng.choice(("", "", " ")))
    return [Marker("<|tool_call>"), f"call:{name}", *body, Marker("<tool_call|>")]


class Gemma4(JsonFamily):
    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        written = super().write(rng, tools)
        begin = Marker("<|channel>")

        def labelled(items: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(p for item in items for p in ((item, "thought\n") if item == begin else (item,)))

        return replace(written, pieces=labelled(written.pieces), prompt=labelled(written.prompt))


# -- XML ---------------------------------------------------------------------------------------------------

_M2 = ("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>")


def _m2(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    inner = "".join(f'<parameter name="{key}">{raw(item)}</parameter>\n' for key, item in given.items())
    return [f'\n<invoke name="{name}">\n{inner}</invoke>']


_MARK = "]<]minimax[>["


def _m3_element(name: str, item: Any) -> str:
    if isinstance(item, list) and item and all(isinstance(part, str) for part in item):
        inner = "".join(_m3_element("item", part) for part in item)
    else:
        inner = raw(item)
    return f"{_MARK}<{name}>{inner}{_MARK}</{name}>"


def _m3(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    inner = "".join(_m3_element(key, item) for key, item in given.items())
    return pieces(f'\n{_MARK}<invoke name="{name}">{inner}{_MARK}</invoke>', (_MARK,))


_STEP3 = (
    "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>",
    "<think>", "</think>",
)  # fmt: skip


def _step3(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    inner = "".join(f'<steptml:parameter name="{key}">{raw(item)}</steptml:parameter>' for key, item in given.items())
    invoke = f'<steptml:invoke name="{name}">{inner}</steptml:invoke>'
    begin, end, separator = Marker("<｜tool_call_begin｜>"), Marker("<｜tool_call_end｜>"), Marker("<｜tool_sep｜>")
    return [begin, "function", separator, invoke, end]


class Inline(JsonFamily):
    """Reasoning stays in the content, behind the marker that the prompt holds."""

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        assert self.think is not None
        begin, end = self.think
        reasoning, made = words(rng), calls(rng, tools, self.most)
        said = words(rng) if not made or rng.random() < 0.5 else ""
        pieces = [reasoning, Marker(end), *((said,) if said else ()), *(self.write_calls(made, rng) if made else ())]
        return Written(tuple(pieces), (Marker(begin),), "", begin + reasoning + end + said, made)


class Stripped(JsonFamily):
    """Whitespace around values is framing."""

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        written = super().write(rng, tools)
        made = tuple(
            (name, {key: item.strip() if isinstance(item, str) else item for key, item in given.items()})
            for name, given in written.calls
        )
        return replace(written, calls=made)


def _qwen_xml(begin: str, end: str) -> Tagged:
    def one(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
        inner = "".join(f"<parameter={key}>\n{xml_value(item)}\n</parameter>\n" for key, item in given.items())
        return [*(("\n",) if number else ()), Marker(begin), f"\n<function={name}>\n{inner}</function>\n", Marker(end)]

    return Tagged(one)


# -- JSON and Python ---------------------------------------------------------------------------------------


def _each(begin: str, end: str, space: str) -> Callable[[tuple[Call, ...], random.Random], list[str]]:
    def write(made: tuple[Call, ...], rng: random.Random) -> list[str]:
        out: list[str] = []
        for text in _objects(made, rng):
            out += [Marker(begin), f"{space}{text}{space}", *((Marker(end),) if end else ())]
        return out

    return write


def _olmo(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    lines = [f"{name}({', '.join(f'{key}={item!r}' for key, item in given.items())})" for name, given in made]
    return ["<function_calls>" + "\n".join(lines) + "</function_calls>"]


class Olmo(JsonFamily):
    """Names are Python's here."""

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        return super().write(rng, [tool for tool in tools if "-" not in tool["function"]["name"]] or tools[:1])


_THINK = ("<think>", "</think>")
_HERMES = ("<tool_call>", "</tool_call>", *_THINK)
_HY3, _hy3 = _hunyuan("tool_sep")
_HY4, _hy4 = _hunyuan("")
_SUFFIXED, _suffixed = _hunyuan("", ":6124c78e")


def _family(name: str, markers: Sequence[str], write: Any, reasoning: str | None = None, **more: Any) -> JsonFamily:
    return JsonFamily(name, reasoning, name, tuple(markers), (), write, **more)


GENERATORS = (
    _family("glm45", _GLM, Tagged(_glm), "glm45", think=_THINK),
    _family("glm47", _GLM, Tagged(_glm), "glm47", think=_THINK),
    _family(
        "kimi_k2", _K2, Tagged(_k2, ((Marker(_K2[0]),), (Marker(_K2[1]),))), "kimi_k2", think=_THINK
    ),
    KimiK3(),
    Gemma4("gemma4", "gemma4", "gemma4", _GEMMA, (), Tagged(_gemma), think=("<|channel>", "<channel|>")),
    _family(
        "minimax_m2", _M2, Tagged(_m2, ((Marker(_M2[0]),), ("\n", Marker(_M2[1])))), "minimax_m2", think=_THINK
    ),
    Inline(
        "minimax_m2_append_think", "minimax_m2_append_think", "minimax_m2", _M2, (),
        Tagged(_m2, ((Marker(_M2[0]),), ("\n", Marker(_M2[1])))), think=_THINK,
    ),
    _family(
        "minimax_m3",
        (_MARK, "<mm:think>", "</mm:think>"),
        Tagged(_m3, ((Marker(_MARK), "<tool_call>"), ("\n", Marker(_MARK), "</tool_call>"))),
        "minimax_m3",
        think=("<mm:think>", "</mm:think>"),
    ),
    Stripped(
        "step3", "step3", "step3", _STEP3, _STEP3[:5],
        Tagged(_step3, ((Marker(_STEP3[0]),), (Marker(_STEP3[1]),))), think=_THINK,
    ),
    _family("step3p5", _HERMES, _qwen_xml("<tool_call>", "</tool_call>"), "step3p5", think=_THINK),
    _family("step5", _HERMES, _qwen_xml("<tool_call>", "</tool_call>"), "step5", think=_THINK),
    _family(
        "seed_oss",
        ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
        _qwen_xml("<seed:tool_call>", "</seed:tool_call>"),
        "seed_oss",
        think=("<seed:think>", "</seed:think>"),
    ),
    JsonFamily(
        "nemotron_v3", "nemotron_v3", "qwen3_coder", _HERMES, (), _qwen_xml("<tool_call>", "</tool_call>"), think=_THINK
    ),
    _family("hy_v3", _HY3, _hy3, "hy_v3", think=_THINK),
    _family("hy_v4", _HY4, _hy4, "hy_v4", think=_THINK),
    _family("hy_v4", _SUFFIXED, _suffixed, "hy_v4", think=("<think:6124c78e>", "</think:6124c78e>")),
    _family(
        "hunyuan_a13b", (), _between(["<tool_calls>"], ["</tool_calls>"], _one_list), "hunyuan_a13b",
        think=("<think>\n", "\n</think>\n"), answer=("<answer>\n", "\n</answer>"),
    ),
    _family("hunyuan_a13b", (), _one_list, speaks=False),
    _family("granite", ("<|tool_call|>",), _between([Marker("<|tool_call|>")], [], _one_list)),
    _family(
        "granite", (), _between(["<tool_call> "], [], _one_list), "granite",
        think=("Here is my thought process:", "Here is my response:"),
    ),
    JsonFamily(
        "granite4", "granite_thinking_parser", "granite4", _HERMES, (), _each("<tool_call>", "</tool_call>", "\n"),
        think=_THINK,
    ),
    _family("granite-20b-fc", ("<function_call>",), _each("<function_call>", "", " ")),
    _family(
        "ernie45", ("<response>", "</response>", *_HERMES), _each("<tool_call>", "</tool_call>", "\n"), "ernie45",
        think=_THINK, answer=("<response>", "</response>"),
    ),
    Olmo("olmo3", "olmo3", "olmo3", (), (), _olmo, think=_THINK),
)  # fmt: skip
