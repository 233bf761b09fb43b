"""FunctionGemma, LFM2, Ling, Laguna, K2 Horizon, dots, MiniCPM, MiMo and Muse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.generators.base import Call, Marker, Tool, Written, calls, words
from tests.generators.json_families import JsonFamily
from tests.generators.tagged_families import _GLM, _THINK, Olmo, Tagged, _each, _family, _glm, pieces, raw

_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")
_LFM = ("<|tool_call_start|>", "<|tool_call_end|>")
_IFM = tuple(
    f"<{end}ifm|{name}>" for name in ("tool_calls", "tool_call", "arg_key", "arg_type", "arg_value", "think")
    for end in ("", "/")
)  # fmt: skip


def _notation(item: Any) -> str:
    if isinstance(item, str):
        return f"<escape>{item}<escape>"
    if isinstance(item, dict):
        return "{" + ",".join(f"{key}:{_notation(value)}" for key, value in item.items()) + "}"
    return "[" + ",".join(map(_notation, item)) + "]" if isinstance(item, list) else raw(item)


def _functiongemma(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    return pieces(f"<start_function_call>call:{name}{_notation(given)}<end_function_call>", _GEMMA)


def _lfm(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    inner = ", ".join(f"{name}({', '.join(f'{key}={item!r}' for key, item in given.items())})" for name, given in made)
    return [Marker(_LFM[0]), f"[{inner}]", Marker(_LFM[1])]


def _ifm(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    typed = rng.random() < 0.5
    out = f"<ifm|tool_call>{name}\n"
    for key, item in given.items():
        kind = f"<ifm|arg_type>{type(item).__name__}</ifm|arg_type>" if typed else ""
        out += f"<ifm|arg_key>{key}</ifm|arg_key>{kind}<ifm|arg_value>{raw(item)}</ifm|arg_value>\n"
    return pieces(out + "</ifm|tool_call>", _IFM)


def _invoked(call: str, key: str, prefix: str = "", quoted: str = '"') -> Any:
    def one(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
        inner = "".join(
            f"<{prefix}{key}={quoted}{k}{quoted}>{raw(item)}</{prefix}{key.split()[0]}>\n" for k, item in given.items()
        )
        return [f"\n<{prefix}{call}={quoted}{name}{quoted}>\n{inner}</{prefix}{call.split()[0]}>"]

    return one


def _mimo(name: str, given: dict[str, Any], number: int, rng: random.Random) -> list[str]:
    call = _invoked("function", "parameter", quoted="")(name, given, number, rng)
    return [Marker("<tool_call>"), *call, "\n", Marker("</tool_call>")]


_MUSE = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")


class Muse:
    """``thinks`` and ``answers``: how messages of either kind are addressed."""

    markers = special = _MUSE

    def __init__(self, name: str, thinks: tuple[str, ...], answers: tuple[str, ...]) -> None:
        self.family = name
        self.reasoning_parser = self.tool_parser = name
        self._thinks, self._answers = thinks, answers

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        start, message, more, over = map(Marker, _MUSE)
        reasoning, content, made = "", "", calls(rng, tools)
        messages: list[list[str]] = []
        if rng.random() < 0.7:
            reasoning = words(rng)
            messages.append([rng.choice(self._thinks), message, reasoning])
        if not made or rng.random() < 0.5:
            content = words(rng)
            messages.append([rng.choice(self._answers), message, content])
        for name, given in made:
            call = _invoked("invoke name", "parameter name", "atem:")(name, given, 0, rng)
            body = ["<atem:function_calls>", *call, "\n</atem:function_calls>"]
            messages.append([f" to={name}", message, *body])
        out: list[str] = []
        for number, written in enumerate(messages):
            out += [*((start, "assistant") if number else ()), *written, over if written is messages[-1] else more]
        return Written(tuple(out), (start, "assistant"), reasoning, content, made)


_DOTS = ("<dots_function_call>", "</dots_function_call>")
_CALL = ("<tool_call>", "</tool_call>", *_THINK)

GENERATORS = (
    _family("functiongemma", _GEMMA, Tagged(_functiongemma)),
    Olmo("lfm2", None, "lfm2", _LFM, _LFM, _lfm),
    _family("ling3", _GLM, Tagged(_glm), "ling3", think=_THINK),
    _family("poolside_v1", _GLM, Tagged(_glm), "poolside_v1", think=_THINK),
    _family(
        "k2_horizon", _IFM, Tagged(_ifm, ((Marker(_IFM[0]),), (Marker(_IFM[1]),))), "k2_horizon",
        think=("<ifm|think>", "</ifm|think>"),
    ),
    _family(
        "dots", _DOTS,
        Tagged(_invoked("invoke name", "parameter name"), ((Marker(_DOTS[0]),), ("\n", Marker(_DOTS[1])))),
    ),
    _family("minicpm5", (), Tagged(_invoked("function name", "param name"))),
    JsonFamily("mimo", "mimo", "mimo", _CALL, (), Tagged(_mimo), think=_THINK),
    JsonFamily("holo2", "holo2", "hermes", _CALL, (), _each("<tool_call>", "</tool_call>", "\n"), think=_THINK),
    Muse("muse", (" to=self", ""), (" to=user", " to=commentary")),
    Muse("muse_glimmer", (" to=self",), (" to=user", "")),
)  # fmt: skip
