"""Llama 3.x: bare JSON objects; Llama 4: a Python list of calls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.generators.base import Marker, Tool, Written, calls, dumps, words

_TAG = Marker("<|python_tag|>")
_BEGIN, _END = Marker("<|python_start|>"), Marker("<|python_end|>")


class Json:
    family = "llama3_json"
    reasoning_parser = None
    tool_parser = "llama3_json"
    markers: tuple[str, ...] = (_TAG,)
    special: tuple[str, ...] = markers

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        made = calls(rng, tools)
        if not made:
            text = dumps({"answer": words(rng)}, rng) if rng.random() < 0.3 else words(rng)
            return Written((text,), content=text)
        content = words(rng) if rng.random() < 0.2 else ""
        pieces: list[str] = [content, *((_TAG,) if content or rng.random() < 0.3 else ())]
        for number, (name, given) in enumerate(made):
            item = {"name": name, rng.choice(("parameters", "arguments")): given}
            pieces += ["; " if number else "", dumps({"type": "function", **item} if rng.random() < 0.2 else item, rng)]
        return Written(tuple(pieces), content=content, calls=made)


@dataclass(frozen=True)
class Pythonic:
    tool_parser: str
    markers: tuple[str, ...] = ()
    family: str = "pythonic"
    reasoning_parser: str | None = None

    @property
    def special(self) -> tuple[str, ...]:
        return self.markers

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        made = calls(rng, tools)
        if not made:
            text = words(rng)
            return Written((text,), content=text)
        comma = rng.choice((", ", ",", ",\n"))
        text = "[" + comma.join(f"{name}({_keywords(given, rng, comma)})" for name, given in made) + "]"
        framed = self.markers and rng.random() < 0.3
        return Written((_BEGIN, text, _END) if framed else (text,), calls=made)


def _keywords(given: dict[str, Any], rng: random.Random, comma: str) -> str:
    return comma.join(f"{key}={literal(item, rng)}" for key, item in given.items())


def literal(item: Any, rng: random.Random) -> str:
    if isinstance(item, str):
        return rng.choice((repr, ascii, lambda text: dumps(text)))(item)
    if isinstance(item, bool) or item is None:
        return rng.choice((repr, dumps))(item)
    return repr(item)


GENERATORS = (
    Json(),
    Pythonic("pythonic"),
    Pythonic("llama4_pythonic", (_BEGIN, _END), family="llama4_pythonic"),
)
