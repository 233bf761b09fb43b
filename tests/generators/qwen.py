"""Qwen3: Hermes JSON, and the XML of the coders."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.generators.base import Marker, Tool, Written, calls, dumps, words

THINK = (Marker("<think>"), Marker("</think>"))
CALL = (Marker("<tool_call>"), Marker("</tool_call>"))


def think(rng: random.Random, newline: str = "\n", chance: float = 0.7) -> tuple[str, tuple[str, ...], list[str]]:
    """Reasoning, how the prompt ends, and the pieces up to the answer; the prompt may have opened it, or closed it."""
    begin, end = THINK
    if rng.random() > chance:
        return "", (begin, newline * 2, end, newline * 2), []
    reasoning = words(rng)
    opened = rng.random() < 0.5
    prompt = (begin, newline) if opened else ()
    return reasoning, prompt, [*(() if opened else (begin, newline)), reasoning + newline, end, newline * 2]


@dataclass(frozen=True)
class Hermes:
    """Others take its calls behind reasoning of their own; ``newline`` frames that."""

    family: str = "hermes"
    reasoning_parser: str = "qwen3"
    tool_parser: str = "hermes"
    markers: tuple[str, ...] = (*THINK, *CALL)
    special: tuple[str, ...] = ()
    newline: str = "\n"

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        reasoning, prompt, pieces = think(rng, self.newline)
        made = calls(rng, tools)
        content = words(rng) if not made or rng.random() < 0.4 else ""
        pieces.append(content)
        for name, given in made:
            space = rng.choice(("\n", "\n", ""))
            item = {"name": name, "arguments": given} if rng.random() < 0.8 else {"arguments": given, "name": name}
            pieces += ["\n" if pieces[-1] else "", CALL[0], space + dumps(item, rng) + space, CALL[1]]
        return Written(tuple(pieces), prompt, reasoning, content, made)


def xml_value(item: Any) -> str:
    """As the template writes it: strings bare, literals in Python's spelling."""
    return item if isinstance(item, str) else json.dumps(item) if isinstance(item, (dict, list)) else str(item)


class Xml:
    """``wrapped``: with ``<tool_call>`` around each function."""

    family = "qwen3_xml"
    reasoning_parser = "qwen3"
    tool_parser = "qwen3_coder"
    markers: tuple[str, ...] = (*THINK, *CALL)
    special: tuple[str, ...] = ()

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        reasoning, prompt, pieces = think(rng)
        made = calls(rng, tools)
        content = words(rng) if not made or rng.random() < 0.4 else ""
        pieces.append(content)
        wrapped = rng.random() < 0.85
        for name, given in made:
            body = f"<function={name}>\n"
            for key, item in given.items():
                body += f"<parameter={key}>\n{xml_value(item)}\n</parameter>\n"
            pieces.append("\n" if pieces[-1] else "")
            body += "</function>"
            pieces += [CALL[0], f"\n{body}\n", CALL[1]] if wrapped else [body]
        return Written(tuple(pieces), prompt, reasoning, content, made)


GENERATORS = (Hermes(), Hermes("holo2", "holo2", newline=""), Hermes("minicpmv", "minicpmv"), Xml())
