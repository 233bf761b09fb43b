"""``vllm:NAME``: a parser of an installed vLLM behind the interface of this package's own.

vLLM's parsers read text that grows, and what they say can depend on how it was cut. So a stream of theirs is
replayed by the lengths of its chunks, and has no compact state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from proxy.derender.parsing.events import ARGUMENTS, CALL, CLOSED, CONTENT, END, REASONING, Event
from proxy.derender.parsing.foreign import Checkpoint, ForeignFormat, NotSaved, Opening
from proxy.derender.parsing.registry import UnknownFormat

PREFIX = "vllm:"


class VllmParser:
    """One stream (``foreign.Parser``)."""

    def __init__(self, parser_class: Any, tokenizer: Any, opening: Opening) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        settings = opening.settings
        body = {
            "messages": [],
            "tools": list(settings.tools) or None,
            "tool_choice": "auto" if opening.reads_calls and settings.tools else "none",
            "chat_template_kwargs": dict(settings.chat_template_kwargs),
        }
        self._request = ChatCompletionRequest.model_validate({k: v for k, v in body.items() if v is not None})
        self._parser = parser_class(
            tokenizer, self._request.tools, chat_template_kwargs=dict(settings.chat_template_kwargs)
        )
        self._parser.adjust_request(self._request)
        self._detokenizer = opening.detokenizer
        self._prompt = list(opening.prompt)
        by_id = {token_id: text for text, token_id in opening.vocabulary.added.items()}
        self._special = {token_id: by_id.get(token_id, "") for token_id in opening.vocabulary.special}
        self._call = -1  # vLLM's number of the call that is open
        self.named = settings.named_tool
        self.events: list[Event] = []
        self.reasoning_tokens = 0

    @property
    def state(self) -> str:
        return f"call {self._call}" if self._call >= 0 else "text"

    @property
    def held(self) -> str:
        return ""

    def feed(self, ids: Sequence[int]) -> None:
        if ids:
            self._step("".join(map(self._text, ids)), list(ids), False)

    def feed_one(self, token_id: int) -> None:
        self.feed((token_id,))

    def _text(self, token_id: int) -> str:
        special = self._special.get(token_id)
        if special is None:
            return self._detokenizer.push((token_id,))
        return self._detokenizer.break_off() + special

    def finish(self, cut: bool) -> None:
        self._step("", [], True)
        self._end()

    def _step(self, text: str, ids: list[int], finished: bool) -> None:
        delta = self._parser.parse_delta(text, ids, self._request, self._prompt, finished=finished)
        if delta is None:
            return
        if delta.reasoning:
            self.events.append((REASONING, delta.reasoning, ""))
            self.reasoning_tokens += len(ids)
        if delta.content:
            self._end()
            self.events.append((CONTENT, delta.content, ""))
        for part in delta.tool_calls or ():
            function = part.function
            if part.index != self._call:
                self._end()
            if function is not None and function.name:
                self._call = part.index
                self.events.append((CALL, function.name, part.id or ""))
            if function is not None and function.arguments:
                self.events.append((ARGUMENTS, function.arguments, ""))

    def _end(self) -> None:
        if self._call >= 0:
            self.events.append((END, "", CLOSED))
        self._call = -1

    def resume(self, pending: bytes) -> None:
        self._detokenizer.resume(pending)

    def save(self) -> list[Any]:
        raise NotSaved("the state of vLLM's parsers cannot be written down")

    def load(self, saved: list[Any]) -> None:
        raise NotSaved("the state of vLLM's parsers cannot be written down")


def format_of(reasoning: str | None, tools: str | None, checkpoint: Checkpoint | None) -> ForeignFormat:
    """vLLM's parsers of these names (without the prefix). Raises UnknownFormat where there is no vLLM, or no such."""
    try:
        from vllm.parser.parser_manager import ParserManager
    except ImportError as error:
        raise UnknownFormat(f"vllm:NAME needs an installed vLLM, which there is not: {error}") from error
    if checkpoint is None or checkpoint.tokenizer is None:
        raise UnknownFormat("vllm:NAME needs the checkpoint's tokenizer")
    try:
        parser_class = ParserManager.get_parser(
            tool_parser_name=tools,
            reasoning_parser_name=reasoning,
            enable_auto_tools=tools is not None,
            is_harmony="openai" in (tools, reasoning) or reasoning == "openai_gptoss",
        )
    except (TypeError, KeyError, ImportError) as error:
        raise UnknownFormat(f"vLLM: {error}") from error
    return ForeignFormat(
        partial(VllmParser, parser_class, checkpoint.tokenizer),
        reasoning_names=(PREFIX + reasoning,) if reasoning else (),
        tool_names=(PREFIX + tools,) if tools else (),
        depends_on_chunks=True,
    )
