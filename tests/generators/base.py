"""Outputs as models of a family write them, made from a seed: valid, truncated and damaged.

A generator is one module per family in this package with ``GENERATORS = (...)``. It writes *pieces*: a ``Marker``
is one token of the family's vocabulary, any other piece is ordinary text (also where it spells a marker).
``Toy`` is a small vocabulary with a generator's markers, so that no checkpoint is needed.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

from proxy.derender.vocabulary import Vocabulary

Tool = dict[str, Any]
Call = tuple[str, dict[str, Any]]


class Marker(str):
    """A piece that is one token."""

    __slots__ = ()


@dataclass(frozen=True)
class Written:
    """One output, and what it says. ``prompt``: how the prompt ends. ``calls``: names with their arguments."""

    pieces: tuple[str, ...]
    prompt: tuple[str, ...] = ()
    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    truncated: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Generator(Protocol):
    """``markers``: the family's tokens; ``special``: those of them that ``skip_special_tokens`` hides.

     ``reasoning_parser`` and ``tool_parser``: the names it is parsed under.
    .
    """

    family: str
    reasoning_parser: str | None
    tool_parser: str | None
    markers: tuple[str, ...]
    special: tuple[str, ...]

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        """A valid output: everything it says must come out as it stands in the fields."""


class Variant:
    """``generator`` for a vocabulary that calls other markers special."""

    def __init__(self, generator: Generator, special: tuple[str, ...]) -> None:
        self.family = generator.family
        self.reasoning_parser, self.tool_parser = generator.reasoning_parser, generator.tool_parser
        self.markers, self.special = generator.markers, special
        self.write = generator.write


WORDS = (
    "hello", "Rio de Janeiro", "naïve café", "鰻", "😀", "a\nb", "x < y && y > z", '"quoted"', "back\\slash",
    "{not json", "[1, 2", "tab\there", "it's", "path/to/file.py", "</b>", "=", ":", ",", "0042", "true", "null", "3",
    "None", "1e5", "def f(a=1):\n    return {1: a}\n", "`code`", "ends with newline\n", " lead", "Ünï", "<|x|>",
)  # fmt: skip
NAMES = ("get_weather", "search", "write_file", "math-add", "ns.lookup", "f", "create_issue_2")
KEYS = ("city", "days", "ratio", "flag", "tags", "opts", "note", "query", "maybe")
SCHEMAS: dict[str, Any] = {
    "city": {"type": "string"},
    "note": {"type": "string"},
    "query": {"type": "string"},
    "days": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "opts": {"type": "object"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}


def tools(rng: random.Random, names: Sequence[str] = NAMES) -> list[Tool]:
    """A few declared tools."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {key: SCHEMAS[key] for key in rng.sample(KEYS, rng.randint(1, 5))},
                },
            },
        }
        for name in rng.sample(names, rng.randint(1, 4))
    ]


def words(rng: random.Random, most: int = 6) -> str:
    """Text of one to ``most`` words, without framing whitespace around it."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most))).strip()


def value(rng: random.Random, schema: Mapping[str, Any], depth: int = 0) -> Any:
    kind = schema.get("type") or rng.choice([option["type"] for option in schema["anyOf"]])
    match kind:
        case "integer":
            return rng.choice((0, 7, -3, 123456789012345678901))
        case "number":
            return rng.choice((0.5, -1.25, 1e-05, 3, 1e21))
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            return [words(rng, 2) for _ in range(rng.randint(0, 3))]
        case "object":
            inner: dict[str, Any] = {}
            for key in rng.sample(("a", "b c", "d"), rng.randint(0, 3)):
                inner[key] = rng.choice((1, None, True, words(rng, 2), [1, "x", {"y": []}] if depth < 2 else []))
            return inner
        case _:
            return rng.choice(("", words(rng), words(rng, 2)))


def call(rng: random.Random, declared: Sequence[Tool]) -> Call:
    """A call of a declared tool with some of its parameters."""
    function = rng.choice(list(declared))["function"]
    properties = function["parameters"]["properties"]
    keys = rng.sample(sorted(properties), rng.randint(0, len(properties)))
    return function["name"], {key: value(rng, properties[key]) for key in keys}


def calls(rng: random.Random, declared: Sequence[Tool], most: int = 3) -> tuple[Call, ...]:
    return tuple(call(rng, declared) for _ in range(rng.choice((0, 1, 1, *range(most + 1)))))


def dumps(item: Any, rng: random.Random | None = None) -> str:
    """JSON as models write it: usually spaced, sometimes compact or indented."""
    style = rng.choice((0, 0, 1, 2)) if rng is not None else 0
    if style == 1:
        return json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(item, ensure_ascii=False, indent=2 if style == 2 else None)


def truncated(written: Written, rng: random.Random) -> Written:
    """Cut after some piece, or inside one; what it says is no longer known."""
    if not written.pieces:
        return written
    at = rng.randrange(len(written.pieces))
    piece = written.pieces[at]
    last = () if isinstance(piece, Marker) else (piece[: rng.randint(0, len(piece))],)
    return replace(written, pieces=written.pieces[:at] + last, truncated=True)


def damaged(written: Written, rng: random.Random, markers: Sequence[str]) -> Written:
    """Pieces lost, doubled, swapped, or put in; what it says is no longer known."""
    pieces = list(written.pieces)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(pieces))
        match rng.randrange(6):
            case 0 if pieces:
                del pieces[at % len(pieces)]
            case 1 if pieces:
                pieces.insert(at, pieces[at % len(pieces)])
            case 2 if pieces:
                other = rng.randrange(len(pieces))
                pieces[at % len(pieces)], pieces[other] = pieces[other], pieces[at % len(pieces)]
            case 3 if markers:
                pieces.insert(at, Marker(rng.choice(markers)))
            case 4 if markers:
                pieces.insert(at, str(rng.choice(markers)))  # spelled out
            case _:
                pieces.insert(at, rng.choice((words(rng, 2), "\n", " ", "{", "}", '"', "]", "<", "\n\n")))
    return replace(written, pieces=tuple(pieces))


_TOKENS = (
    "hello", " the", "\n\n", '{"', '":', '": "', '", "', '"}', "}}", "}}\n", ">\n", "</", "><", "<|", "|>", "name",
    "arguments", " =", "=\"", "\">", "))", "])", "function", "parameter", "tool", "call", " \n", "😀", "é", "café",
    "city", "think",
)  # fmt: skip


@dataclass(frozen=True)
class Toy:
    """A vocabulary of the 256 bytes, some longer tokens, and markers; ``encode`` draws one of the ways to spell."""

    vocabulary: Vocabulary
    words: Mapping[int, tuple[tuple[bytes, int], ...]] = field(repr=False)

    def encode(self, pieces: Sequence[str], rng: random.Random) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, Marker):
                ids.append(self.vocabulary.added[piece])
                continue
            data = piece.encode()
            at = 0
            while at < len(data):
                for token, token_id in self.words.get(data[at], ()):
                    if data.startswith(token, at) and rng.random() < 0.8:
                        ids.append(token_id)
                        at += len(token)
                        break
                else:
                    ids.append(data[at])
                    at += 1
        return ids


@cache
def toy(markers: tuple[str, ...], special: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Toy:
    """``without``: markers that this vocabulary has not as tokens (a piece of them is then spelled out)."""
    tokens = [token.encode() for token in dict.fromkeys(_TOKENS)]
    table = [bytes([byte]) for byte in range(256)] + tokens
    by_first: dict[int, list[tuple[bytes, int]]] = {}
    for number, token in enumerate(tokens, 256):
        by_first.setdefault(token[0], []).append((token, number))
    added = {marker: len(table) + n for n, marker in enumerate(m for m in markers if m not in without)}
    table += [marker.encode() for marker in added]
    vocabulary = Vocabulary(table, added=added, special=[added[m] for m in special if m in added])
    return Toy(vocabulary, {k: tuple(sorted(v, key=lambda t: -len(t[0]))) for k, v in by_first.items()})


def spelled(pieces: Sequence[str], without: Sequence[str]) -> tuple[str, ...]:
    """The pieces with the markers of ``without`` as ordinary text."""
    return tuple(str.__str__(p) if isinstance(p, Marker) and p in without else p for p in pieces)


@cache
def generators() -> tuple[Generator, ...]:
    """Those of every module in this package."""
    import tests.generators as package

    found: list[Generator] = []
    for module in sorted(item.name for item in pkgutil.iter_modules(package.__path__)):
        found += getattr(importlib.import_module(f"{package.__name__}.{module}"), "GENERATORS", ())
    return tuple(found)
