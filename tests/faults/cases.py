"""The cases of tests/data/cases, as data: what each needs, its token ids, and the ways in which they are cut."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from proxy import app
from proxy.derender.parsing.registry import builtin
from tests.servers import DEMO_MODEL
from tests.tokenizers import tokenizer_dir

FILE = Path(__file__).parent.parent / "data" / "cases" / "cases.jsonl"
RANDOM_CUTS = 3

NO_WHITESPACE_DELTA = "No whitespace-only content delta is sent in front of, between or after tool calls."
# Sentences about framing whitespace, which hold in the profile ``trim``.
TRIMMED = {
    NO_WHITESPACE_DELTA,
    "No reasoning delta with non-whitespace text; reasoning is null or empty in the final message.",
}

# Markers of families whose vocabulary is not among the real tokenizers: a stand-in has them as tokens.
SPELLED = {
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|im_assistant|>",
        "<|im_middle|>",
        "<|im_end|>",
        "<think>",
        "</think>",
    ),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CONTENT]", "[THINK]", "[/THINK]"),
    "glm": (
        *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *("<|assistant|>", "<|user|>", "<|observation|>"),
    ),
}
# Prompts after which the output is content, for parsers that start in reasoning and cases that give no prompt.
ANSWERING = {"glm45": "<|assistant|>\n<think></think>\n"}
STAND_IN = "deepseek_v3"  # the vocabulary whose placeholder tokens carry them

# Cases that this version does not run, and what they wait for: a parser name, or an endpoint.
LATER = {
    "special-leak-03": "tool parser deepseek_v31",
    "mtp-chunk-04": "tool parser deepseek_v31",
    "reasoning-boundary-15": "reasoning parser kimi_k2",
    "xml-types-11": "tool parser glm45",
    "format-variants-01": "tool parser kimi_k2",
    "format-variants-03": "tool parser kimi_k2",
    "format-variants-04": "tool parser mistral",
    "leading-space-03": "endpoint /v1/completions/derender",
    "ids-01": "endpoint /v1/chat/completions/derender",
    "derender-01": "endpoint /v1/chat/completions/derender",
    "derender-03": "endpoint /v1/chat/completions/derender",
    "derender-05": "endpoint /v1/chat/completions/derender",
    "derender-07": "endpoint /v1/chat/completions/derender",
}
# Contested cases (engines differ, only the sentences are hard) whose recommended answer is not the one chosen.
# Sentences of cases that run whose endpoint does not exist yet.
LATER_SENTENCES = {
    "/inference/v1/generate: token_ids needs at least one entry.": "endpoint /inference/v1/generate",
}


@dataclass(frozen=True)
class Plan:
    """Ids and the lengths of the engine's events; ``alone``: the finish comes in an event without ids."""

    name: str
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    alone: bool = False

    @property
    def chunks(self) -> list[list[int]]:
        found, at = [], 0
        for length in self.lengths:
            found.append(list(self.ids[at : at + length]))
            at += length
        return found


@dataclass(frozen=True, eq=False)
class Case:
    """One line of the file."""

    raw: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.raw["id"])

    @property
    def kind(self) -> str:
        return str(self.raw["input"]["kind"])

    @property
    def input(self) -> dict[str, Any]:
        return dict(self.raw["input"])

    @property
    def request(self) -> dict[str, Any]:
        return dict(self.raw["request"])

    @property
    def expected(self) -> dict[str, Any]:
        expected: dict[str, Any] = self.raw["expected"]
        return expected

    @property
    def invariants(self) -> list[str]:
        return list(self.raw["expected"].get("invariants", ()))

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        tools: list[dict[str, Any]] | None = self.raw.get("tools")
        return tools

    @property
    def tokenizer(self) -> str:
        """A name for ``model_dir``."""
        named = self.raw["tokenizer"] or self.request.get("tokenizer")
        if named:
            return str(named)
        return str(self.raw["family"]) if self.raw["family"] in SPELLED else "qwen3"

    @property
    def parsers(self) -> tuple[str | None, str | None]:
        """Reasoning parser, tool parser."""
        parsers = self.request.get("parsers") or {}
        return parsers.get("reasoning"), parsers.get("tool")

    @property
    def trims(self) -> bool:
        """Whether it is about framing whitespace, so that it runs with ``trim``."""
        return self.raw["class"] == "whitespace" or not TRIMMED.isdisjoint(self.invariants)

    @property
    def prompt(self) -> str:
        """What the rendered prompt is. With a reasoning parser and no tail the output starts in content."""
        return str(self.request.get("prompt_tail_text") or ANSWERING.get(self.parsers[0] or "", "Hi"))

    @property
    def text(self) -> str:
        return str(self.input["text"])

    @cached_property
    def ids(self) -> tuple[int, ...]:
        if self.input.get("token_ids"):
            return tuple(self.input["token_ids"])
        pieces = self._pieces()
        if pieces is not None:
            return tuple(token for piece in pieces for token in encode_piece(self.tokenizer, piece))
        return tuple(tokenizer(self.tokenizer).encode(self.text, add_special_tokens=False).ids)

    def _pieces(self) -> list[str] | None:
        for plan in self.raw["chunking"] if isinstance(self.raw["chunking"], list) else ():
            markers = SPELLED.get(self.raw["family"], ())
            if isinstance(plan["chunks"], list) and any(piece in markers for piece in plan["chunks"]):
                return list(plan["chunks"])
        return None

    def plans(self) -> list[Plan]:
        """The plans given, one token per chunk, all in one, and random cuts."""
        found: list[Plan] = []
        for plan in self.raw["chunking"] if isinstance(self.raw["chunking"], list) else ():
            chunks = plan["chunks"]
            if not isinstance(chunks, list):
                continue  # "per character" and the like: a stand-in vocabulary has no such tokens
            if all(isinstance(chunk, list) for chunk in chunks):
                ids = tuple(token for chunk in chunks for token in chunk)
            else:
                # pieces that are markers, or text that is none; or else texts cut anywhere, with markers in them
                into_ids = encode if self._pieces() is None else encode_piece
                chunks = [into_ids(self.tokenizer, chunk) for chunk in chunks]
                ids = tuple(token for chunk in chunks for token in chunk)
            found.append(Plan(plan["name"], ids, tuple(len(chunk) for chunk in chunks)))
        count = len(self.ids)
        found.append(Plan("one token per chunk", self.ids, (1,) * count))
        found.append(Plan("one token per chunk, finish alone", self.ids, (1,) * count, alone=True))
        found.append(Plan("all in one", self.ids, (count,)))
        for seed in range(RANDOM_CUTS):
            found.append(Plan(f"random cut {seed}", self.ids, random_lengths(count, f"{self.id} {seed}")))
        unique: dict[tuple[Any, ...], Plan] = {}
        for item in found:
            unique.setdefault((item.ids, item.lengths, item.alone), item)
        return list(unique.values())


def random_lengths(count: int, seed: str) -> tuple[int, ...]:
    rng = random.Random(seed)
    lengths: list[int] = []
    while (left := count - sum(lengths)) > 0:
        lengths.append(min(left, rng.randint(1, 6)))
    return tuple(lengths)


@cache
def load() -> dict[str, Case]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    cases = [Case(json.loads(line)) for line in lines if line]
    return {case.id: case for case in cases}


def awaited(reason: str) -> bool:
    """Whether what ``reason`` names is still missing."""
    what, _, name = reason.rpartition(" ")
    registry = builtin()
    if what == "endpoint":
        return name not in {route.path for route in app.ROUTES}
    return name not in (registry.tools if what == "tool parser" else registry.reasoning)


def later() -> dict[str, str]:
    """The part of LATER that still holds."""
    return {case: reason for case, reason in LATER.items() if awaited(reason)}


def model_outputs() -> list[str]:
    """Ids of the cases that are one model output on the chat endpoint, and can run."""
    waiting = later()
    return [
        case.id
        for case in load().values()
        if case.kind == "model_output" and "endpoint" not in case.request and case.id not in waiting
    ]


@cache
def model_dir(name: str) -> Path:
    """A model directory: of a real tokenizer, or of the stand-in for a family of SPELLED."""
    if name not in SPELLED:
        return tokenizer_dir(name)
    source = tokenizer_dir(STAND_IN)
    target = source.parent / f"{STAND_IN}_{name}"
    if target.exists():
        return target
    partial = target.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    for file in source.iterdir():
        (partial / file.name).write_bytes(file.read_bytes())
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    free = [token for token in content["added_tokens"] if "place▁holder" in token["content"]]
    for marker, token in zip(SPELLED[name], free, strict=False):
        token["content"] = marker
        token["special"] = not marker.startswith(("<think", "</think", "<tool", "</tool", "<arg", "</arg"))
    (partial / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    partial.rename(target)
    return target


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir(name) / "tokenizer.json"))


def encode(name: str, text: str) -> list[int]:
    """Ids of ``text``, markers as tokens."""
    ids: list[int] = tokenizer(name).encode(text, add_special_tokens=False).ids
    return ids


@cache
def demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def encode_demo(text: str) -> list[int]:
    """Ids of ``text`` in the demo's vocabulary."""
    ids: list[int] = demo_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def encode_piece(name: str, piece: str) -> list[int]:
    """Ids of a piece: one id if it is a marker of a stand-in, else text, whatever it spells."""
    if name in SPELLED and piece not in SPELLED[name]:
        return encode(STAND_IN, piece)
    return encode(name, piece)


@cache
def token_bytes(name: str) -> dict[int, bytes]:
    """The bytes of each id of a byte-level vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of.update((chr(256 + i), byte) for i, byte in enumerate(b for b in range(256) if b not in printable))
    known = tokenizer(name)
    added = known.get_added_tokens_decoder()
    found: dict[int, bytes] = {token_id: token.content.encode() for token_id, token in added.items()}
    for token, token_id in known.get_vocab(with_added_tokens=False).items():
        found[token_id] = bytes(byte_of[char] for char in token)
    return found
