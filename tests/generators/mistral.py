"""Mistral: the array of v3, the names of v11 and v13, and reasoning between control tokens or spelled out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.generators.base import Marker, Tool, Written, calls, dumps, words

_CALLS, _ARGS, _ID = map(Marker, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
_THINK, _THINK_END = map(Marker, ("[THINK]", "[/THINK]"))


@dataclass(frozen=True)
class Mistral:
    """``think``: the markers of the reasoning. ``listed``: calls are one array."""

    family: str
    reasoning_parser: str | None
    markers: tuple[str, ...]
    think: tuple[str, str] | None = None
    listed: bool = False
    tool_parser: str = "mistral"

    @property
    def special(self) -> tuple[str, ...]:
        return self.markers

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        pieces: list[str] = []
        reasoning = ""
        if self.think is not None and rng.random() < 0.7:
            reasoning = words(rng)
            inside = [rng.choice((_CALLS, _ARGS)), words(rng)] if rng.random() < 0.2 else []
            pieces += [self.think[0], reasoning, *inside, self.think[1]]
            reasoning += "".join(inside)
        made = calls(rng, tools)
        content = words(rng) if not made or rng.random() < 0.4 else ""
        pieces.append(content)
        if made and self.listed:
            items = [dumps({"name": name, "arguments": given}, rng) for name, given in made]
            pieces += [_CALLS, rng.choice((" ", "")) + "[" + ", ".join(items) + "]"]
            return Written(tuple(pieces), (), reasoning, content, made)
        for name, given in made:
            number = (_ID, f"{rng.randrange(10**9):09}") if rng.random() < 0.3 else ()
            pieces += [_CALLS, name, *number, _ARGS, dumps(given, rng)]
        return Written(tuple(pieces), (), reasoning, content, made)


GENERATORS = (
    Mistral("mistral_v3", None, (_CALLS,), listed=True),
    Mistral("mistral_v11", "mistral", (_CALLS, _ARGS, _ID), think=("<think>", "</think>")),
    Mistral("mistral_v13", "mistral", (_CALLS, _ARGS, _ID, _THINK, _THINK_END), think=(_THINK, _THINK_END)),
)
