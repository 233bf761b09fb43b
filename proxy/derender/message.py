"""The whole answer of a choice, put together from its deltas: streamed and not streamed are one code."""

from __future__ import annotations

from typing import TypedDict

from proxy.derender.deltas import Delta, LogprobEntry


class AssembledCall(TypedDict):
    id: str
    name: str
    arguments: str


class MessageBuilder:
    """Adds deltas up. ``content`` and ``reasoning`` are None where the choice had none."""

    __slots__ = ("_reasoning", "_content", "_calls", "finish_reason", "stop_reason", "logprobs", "token_ids")

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.logprobs: list[LogprobEntry] | None = None
        self.token_ids: list[int] | None = None

    def add(self, delta: Delta) -> None:
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        if delta.content:
            self._content.append(delta.content)
        for call in delta.tool_calls or ():
            if call.index == len(self._calls):
                self._calls.append((call.id or "", call.name or "", []))
            if call.arguments:
                self._calls[call.index][2].append(call.arguments)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        if delta.token_ids is not None:
            self.token_ids = (self.token_ids or []) + delta.token_ids

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    @property
    def content(self) -> str | None:
        return "".join(self._content) or None

    @property
    def tool_calls(self) -> list[AssembledCall]:
        return [AssembledCall(id=i, name=name, arguments="".join(parts)) for i, name, parts in self._calls]
