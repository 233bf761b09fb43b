"""The neutral suite ``canitoolcall`` over this project's core: adapters for its two profiles.

``canitoolcall run --engine tests.conformance.adapter:CompleteProfile --env PYTHONPATH=. --out results -j 2`` runs
one by hand; ``test_conformance.py`` runs both in process. The vocabularies are the pieces that the fixtures use
(``tests/data/conformance/pieces.json``: bytes of each id by tokenizer), so that no model hub is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from canitoolcall.adapters.base import Adapter, ReplayInput, Support, ToolSpec
from canitoolcall.fixtures import load_families
from canitoolcall.results import ParsedToolCall, ParseResult, StreamAccumulator

from proxy.derender.deltas import Delta
from proxy.derender.derenderer import ChatSettings, Derenderer
from proxy.derender.message import MessageBuilder
from proxy.derender.parsing.registry import builtin
from proxy.derender.stream import ChatStream
from proxy.derender.vocabulary import Vocabulary

PIECES = Path(__file__).parents[1] / "data" / "conformance" / "pieces.json"

# (family, beginning of the model's name): reasoning parser, tool parser. The longest beginning that fits wins.
PARSERS: dict[tuple[str, str], tuple[str | None, str | None]] = {
    ("deepseek", "deepseek-ai/DeepSeek-V3-0324"): (None, "deepseek_v3"),
    ("deepseek", "deepseek-ai/DeepSeek-V3.1"): ("deepseek_v3", "deepseek_v31"),
    ("deepseek", "deepseek-ai/DeepSeek-V3.2"): ("deepseek_v3", "deepseek_v32"),
    ("deepseek", "deepseek-ai/DeepSeek-V4-"): ("deepseek_v4", "deepseek_v4"),
    ("deepseek", "deepseek-ai/DeepSeek-V4.1"): ("deepseek_v41", "deepseek_v41"),
    ("gemma4", ""): ("gemma4", "gemma4"),
    ("glm", "zai-org/GLM-4.5"): ("glm45", "glm45"),
    ("glm", ""): ("glm47", "glm47"),
    ("gpt-oss", ""): ("openai_gptoss", "openai"),
    ("kimi", "moonshotai/Kimi-K2-Instruct"): (None, "kimi_k2"),
    ("kimi", "moonshotai/Kimi-K2"): ("kimi_k2", "kimi_k2"),
    ("kimi", "moonshotai/Kimi-K3"): ("kimi_k3", "kimi_k3"),
    ("llama", "meta-llama/Llama-3"): (None, "llama3_json"),
    ("llama", "meta-llama/Llama-4"): (None, "llama4_pythonic"),
    ("mistral", ""): ("mistral", "mistral"),
    ("qwen3-hermes", ""): ("qwen3", "hermes"),
    ("qwen3-hermes", "Qwen/Qwen3-4B-Instruct"): (None, "hermes"),
    ("qwen3-xml", ""): ("qwen3", "qwen3_xml"),
    ("qwen3-xml", "Qwen/Qwen3-Coder"): (None, "qwen3_coder"),
}

# Markers that a tokenizer has not as tokens: (family, beginning of the model's name) to their texts.
SPELLED: dict[tuple[str, str], tuple[str, ...]] = {
    ("deepseek", "deepseek-ai/DeepSeek-V3-0324"): ("<think>", "</think>"),
    ("mistral", ""): ("<think>", "</think>"),
    ("mistral", "mistralai/Magistral-Small-2506"): ("<think>", "</think>", "[THINK]", "[/THINK]"),
    ("mistral", "mistralai/Mistral-7B"): ("<think>", "</think>", "[THINK]", "[/THINK]", "[ARGS]", "[CALL_ID]"),
    ("qwen3-xml", ""): ("<function=", "</function>", "<parameter=", "</parameter>"),
}
# Added tokens of these shapes are special (hidden from text); others, such as <think>, are not.
_SPECIAL = re.compile(r"<\|.*\|>|<｜(end▁of▁sentence|Assistant|User)｜>|\[/?[A-Z_]+\]|</s>|<eos>")
# Added tokens that look special and are not.
_NOT_SPECIAL = re.compile(r"<\|tool_call.*\|>")
# SentencePiece: the first token of an output carries a space that belongs to the prompt.
STRIPS_FIRST_SPACE = {"mistralai/Mistral-7B-Instruct-v0.3"}


def _best(table: dict[tuple[str, str], Any], family: str, model: str) -> Any:
    fits = [key for key in table if key[0] == family and model.startswith(key[1])]
    return table[max(fits, key=lambda key: len(key[1]))] if fits else None


@cache
def _pieces() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(PIECES.read_text())
    return found


@cache
def vocabulary(family: str, model: str, repository: str) -> Vocabulary:
    """The pieces of one tokenizer; markers that no fixture writes, and the 256 bytes, get ids behind them."""
    by_id = {int(token_id): bytes.fromhex(piece) for token_id, piece in _pieces()[repository].items()}
    pieces = [b""] * (max(by_id) + 1)
    for token_id, piece in by_id.items():
        pieces[token_id] = piece
    pieces += [bytes([byte]) for byte in range(256)]
    by_text = {piece: token_id for token_id, piece in by_id.items()}
    described = load_families()[family]
    spelled = _best(SPELLED, family, model) or ()
    added: dict[str, int] = {}
    for marker in dict.fromkeys((*described.markers, *(s for m in described.reference_models for s in m.stop_tokens))):
        if marker in spelled:
            continue
        if marker.encode() in by_text:
            added[marker] = by_text[marker.encode()]
        else:
            added[marker] = len(pieces)
            pieces.append(marker.encode())
    special = [i for text, i in added.items() if _SPECIAL.fullmatch(text) and not _NOT_SPECIAL.fullmatch(text)]
    return Vocabulary(
        pieces,
        added=added,
        special=special,
        strips_first_space=repository in STRIPS_FIRST_SPACE,
        fingerprint=repository,
    )


def encode(vocabulary: Vocabulary, text: str) -> list[int]:
    """Ids of a prompt: markers as tokens, everything else byte by byte."""
    markers = sorted(vocabulary.added, key=len, reverse=True)
    bytes_at = vocabulary.pieces.index(b"\0", max(vocabulary.size - 256 - len(markers) - 1, 0))
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, markers)) + ")", text):
        if part in vocabulary.added:
            ids.append(vocabulary.added[part])
        else:
            ids += [bytes_at + byte for byte in part.encode()]
    return ids


@cache
def derenderer(family: str, model: str, repository: str, streaming: str, whitespace: str) -> Derenderer:
    reasoning, tools = _best(PARSERS, family, model)
    return Derenderer(
        vocabulary(family, model, repository),
        reasoning_parser=reasoning,
        tool_parser=tools,
        tool_call_streaming=streaming,
        framing_whitespace=whitespace,
    )


def _openai(delta: Delta) -> dict[str, Any]:
    """A delta as an OpenAI client sees it."""
    shown: dict[str, Any] = {}
    if delta.reasoning is not None:
        shown["reasoning_content"] = delta.reasoning
    if delta.content is not None:
        shown["content"] = delta.content
    if delta.tool_calls is not None:
        calls = []
        for call in delta.tool_calls:
            function = {"name": call.name, "arguments": call.arguments}
            calls.append(
                {"index": call.index, "id": call.id, "function": {k: v for k, v in function.items() if v is not None}}
            )
        shown["tool_calls"] = calls
    return shown


class _Profile(Adapter):
    pinned_version = "0.1"
    tokens_per_step = "many"
    streaming: ClassVar[str]
    whitespace: ClassVar[str]

    def version(self) -> str:
        return "0.1"

    def supports(self, family: str, model: str) -> Support:
        names = _best(PARSERS, family, model)
        if names is None:
            return Support(False, "no parser")
        reasoning, tools = names
        registry = builtin()
        missing = [] if reasoning is None or reasoning in registry.reasoning else [reasoning]
        missing += [] if tools is None or tools in registry.tools else [tools]
        return Support(not missing, f"no parser {', '.join(missing)}" if missing else None)

    def parser_config(self, raw: ReplayInput) -> dict[str, Any]:
        reasoning, tools = _best(PARSERS, raw.family, raw.model)
        return {
            "reasoning_parser": reasoning,
            "tool_parser": tools,
            "tool_call_streaming": self.streaming,
            "framing_whitespace": self.whitespace,
        }

    def units(self, raw: ReplayInput) -> list[int]:
        return list(raw.token_ids or ())

    def special_token_ids(self, raw: ReplayInput) -> Collection[int]:
        assert raw.tokenizer is not None
        return frozenset(vocabulary(raw.family, raw.model, raw.tokenizer.repo).added.values())

    def _open(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ChatStream:
        assert raw.tokenizer is not None
        made = derenderer(raw.family, raw.model, raw.tokenizer.repo, self.streaming, self.whitespace)
        prompt = [] if made.vocabulary.strips_first_space else encode(made.vocabulary, raw.generation_prompt or "")
        kwargs = {} if raw.thinking is None else {"enable_thinking": raw.thinking, "thinking": raw.thinking}
        settings = ChatSettings(tools=tuple(tools), chat_template_kwargs=kwargs)
        return made.chat(settings, request_id="conformance", prompt_token_ids=prompt)

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        """The whole output at once, put together as an unstreamed answer is."""
        message = MessageBuilder()
        for delta in self._open(raw, tools).feed(self.units(raw), "length" if raw.truncated else "stop"):
            message.add(delta)
        return ParseResult(
            content=message.content,
            reasoning_content=message.reasoning,
            tool_calls=tuple(ParsedToolCall(call["name"], call["arguments"]) for call in message.tool_calls),
        )

    def parse_stream(self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]) -> ParseResult:
        seen = StreamAccumulator()
        stream = self._open(raw, tools)
        for n, ids in enumerate(chunks or [[]]):
            reason = None if n < len(chunks) - 1 else ("length" if raw.truncated else "stop")
            for delta in stream.feed(ids, reason):
                seen.add_openai_delta(_openai(delta))
        return seen.result()


class CompleteProfile(_Profile):
    """``--tool-call-streaming complete --framing-whitespace trim``: the rules of the suite."""

    name = "derender-proxy-complete"
    streaming = "complete"
    whitespace = "trim"


class DefaultProfile(_Profile):
    """What a server does unless told otherwise."""

    name = "derender-proxy"
    streaming = "incremental"
    whitespace = "keep"
