"""Families that write calls as JSON between markers of their own, one generator for all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.generators.base import Call, Marker, Tool, Written, calls, dumps, words

Write = Callable[[tuple[Call, ...], random.Random], list[str]]


@dataclass(frozen=True)
class JsonFamily:
    """``write_calls``: the pieces of all calls. ``think``: the markers of its reasoning, open where ``primed``.

    ``speaks``: text can stand in front of calls. ``answer``: the markers around the answer.
    """

    family: str
    reasoning_parser: str | None
    tool_parser: str | None
    markers: tuple[str, ...]
    special: tuple[str, ...]
    write_calls: Write
    think: tuple[str, str] | None = None
    speaks: bool = True
    answer: tuple[str, str] | None = None
    most: int = 3

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        pieces: list[str] = []
        prompt: tuple[str, ...] = ()
        reasoning = content = ""
        made = calls(rng, tools, self.most)[: self.most]
        if self.think is not None:
            begin, end = self.think
            if rng.random() < 0.7:
                reasoning = words(rng)
                opened = rng.random() < 0.5
                prompt = self.piece(begin) if opened else ()
                pieces += [*(() if opened else self.piece(begin)), reasoning, *self.piece(end)]
            else:
                prompt = (*self.piece(begin), *self.piece(end))
        if not made or (self.speaks and rng.random() < 0.5):
            content = words(rng).replace("[", "(").replace("{", "(").replace("`", "'")
            before, after = self.answer or ("", "")
            pieces += [*self.piece(before), content, *self.piece(after)]
        if made:
            pieces += self.write_calls(made, rng)
        return Written(tuple(pieces), prompt, reasoning, content, made)

    def piece(self, text: str) -> tuple[str, ...]:
        return ((Marker(text),) if text in self.markers else (text,)) if text else ()


def _objects(made: tuple[Call, ...], rng: random.Random, name: str = "name", arguments: str = "arguments") -> list[str]:
    return [dumps({name: called, arguments: given}, rng) for called, given in made]


def _list(made: tuple[Call, ...], rng: random.Random) -> str:
    space = rng.choice(("", "\n", " "))
    return "[" + space + ("," + (space or " ")).join(_objects(made, rng)) + space + "]"


def _between(begin: Sequence[str], end: Sequence[str], write: Write) -> Write:
    return lambda made, rng: [*begin, *write(made, rng), *end]


def _one_list(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    return [_list(made, rng)]


def _longcat(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    out: list[str] = []
    for text in _objects(made, rng):
        out += [Marker("<longcat_tool_call>"), f"\n{text}\n", Marker("</longcat_tool_call>")]
    return out


def _internlm(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    out: list[str] = []
    for text in _objects(made, rng, arguments=rng.choice(("parameters", "arguments"))):
        out += [Marker("<|action_start|>"), Marker("<|plugin|>"), f"\n{text}", Marker("<|action_end|>")]
    return out


def _gigachat(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    (text,) = _objects(made, rng)
    if rng.random() < 0.5:
        return [Marker("<|function_call|>"), text]
    return [Marker("<|message_sep|>"), "\n\nfunction call", Marker("<|role_sep|>"), f"\n{text}"]


def _apertus(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    inner = ", ".join(dumps({name: given}, rng) for name, given in made)
    return [Marker("<|tools_prefix|>"), f"[{inner}]", Marker("<|tools_suffix|>")]


def _cohere(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    items = [
        dumps({"tool_call_id": str(number), "tool_name": name, "parameters": given}, rng)
        for number, (name, given) in enumerate(made)
    ]
    return [Marker("<|START_ACTION|>"), "[\n    " + ",\n    ".join(items) + "\n]", Marker("<|END_ACTION|>")]


def _plamo(made: tuple[Call, ...], rng: random.Random) -> list[str]:
    out = ["<|plamo:begin_tool_requests:plamo|>"]
    for name, given in made:
        out += [
            f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>",
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
            dumps(given, rng),
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        ]
    return [*out, "<|plamo:end_tool_requests:plamo|>"]


_INKLING = (
    "<|message_model|>", "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>", "<|end_message|>",
    "<|content_model_end_sampling|>",
)  # fmt: skip


class Inkling:
    family = "inkling"
    reasoning_parser = tool_parser = "inkling"
    markers = special = _INKLING

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        model, text, thinking, invoke, end, stop = map(Marker, _INKLING)
        pieces: list[str] = []
        reasoning, content, made = "", "", calls(rng, tools)
        if rng.random() < 0.7:
            reasoning = words(rng)
            pieces += [thinking, reasoning, end, model]
        if not made or rng.random() < 0.5:
            content = words(rng)
            pieces += [text, content, end, model]
        for (name, _), written in zip(made, _objects(made, rng, arguments="args"), strict=True):
            pieces += [*((name,) if rng.random() < 0.5 else ()), invoke, written, end, model]
        pieces[-2:] = [rng.choice((end, stop))]
        return Written(tuple(pieces), (model,), reasoning, content, made)


_COHERE = (
    "<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
    "<|END_TEXT|>", "<|START_ACTION|>", "<|END_ACTION|>",
)  # fmt: skip


def _marked(begin: str, end: str) -> Write:
    return _between([Marker(begin)], [Marker(end)], _one_list)


def _family(name: str, markers: Sequence[str], write: Write, *, speaks: bool = True, most: int = 3) -> JsonFamily:
    return JsonFamily(name, None, name, tuple(markers), tuple(markers), write, speaks=speaks, most=most)


GENERATORS = (
    _family("longcat", ("<longcat_tool_call>", "</longcat_tool_call>"), _longcat),
    _family("phi4_mini_json", ("<|tool_call|>", "<|/tool_call|>"), _marked("<|tool_call|>", "<|/tool_call|>")),
    _family(
        "phi4_mini_json",
        ("<|tool_call|>", "<|/tool_call|>"),
        lambda made, rng: ["functools" + _list(made, rng)],
    ),
    _family("internlm", ("<|action_start|>", "<|plugin|>", "<|interpreter|>", "<|action_end|>"), _internlm),
    _family("jamba", ("<tool_calls>", "</tool_calls>"), _marked("<tool_calls>", "</tool_calls>")),
    _family("xlam", (), _one_list, speaks=False),
    _family("xlam", (), _between(["```json\n"], ["\n```"], _one_list)),
    _family("xlam", (), _between(["<tool_call>"], ["</tool_call>"], _one_list)),
    _family("gigachat3", ("<|function_call|>", "<|message_sep|>", "<|role_sep|>"), _gigachat, most=1),
    _family("apertus", ("<|tools_prefix|>", "<|tools_suffix|>"), _apertus),
    JsonFamily(
        "cohere_command3", "cohere_command3", "cohere_command3", _COHERE, _COHERE, _cohere,
        think=("<|START_THINKING|>", "<|END_THINKING|>"), answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    JsonFamily(
        "cohere_command4", "cohere_command4", "cohere_command4", _COHERE, _COHERE, _cohere,
        think=("<|START_THINKING|>", "<|END_THINKING|>"), answer=("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    JsonFamily(
        "plamo3", "plamo3", "plamo3", (), (), _plamo,
        think=("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ),
    Inkling(),
)  # fmt: skip
