"""Parsers that are code and no table: transformers' response templates, those of an installed vLLM, plugins.

They stand where the state machine stands: ids in, events out. ``ForeignFormat`` says how one is opened for a stream,
and whether it depends on how the ids were cut: such a parser is replayed chunk by chunk and has no compact state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.derender.detokenizer import Detokenizer
from proxy.derender.parsing.events import Event
from proxy.derender.settings import ChatSettings
from proxy.derender.vocabulary import Vocabulary


class Parser(Protocol):
    """What a stream is parsed by; ``Machine`` is one."""

    named: str
    events: list[Event]
    reasoning_tokens: int

    @property
    def state(self) -> str:
        """Where it stands, for explanations."""

    @property
    def held(self) -> str:
        """Text that is read but not decided, for explanations."""

    def feed(self, ids: Sequence[int]) -> None:
        """Take the next ids; what they say is appended to ``events``."""

    def feed_one(self, token_id: int) -> None: ...

    def finish(self, cut: bool) -> None: ...

    def resume(self, pending: bytes) -> None: ...

    def save(self) -> list[Any]: ...

    def load(self, saved: list[Any]) -> None: ...


class NotSaved(ValueError):
    """A parser whose state cannot be written down: its streams are replayed."""


@dataclass(frozen=True)
class Checkpoint:
    """What foreign parsers want of a model's files: its tokenizer (transformers') and its response template."""

    tokenizer: Any = None
    response_template: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Opening:
    """What a foreign parser is opened with. ``reads_calls``: the request allows calls and a tool parser is set."""

    vocabulary: Vocabulary
    detokenizer: Detokenizer
    prompt: Sequence[int]
    settings: ChatSettings
    reads_reasoning: bool
    reads_calls: bool


@dataclass(frozen=True)
class ForeignFormat:
    """``open`` makes the parser of one stream. ``depends_on_chunks``: see above."""

    open: Callable[[Opening], Parser]
    reasoning_names: tuple[str, ...] = ()
    tool_names: tuple[str, ...] = ()
    depends_on_chunks: bool = False
    markers: frozenset[str] = field(default_factory=frozenset)
