"""A format made ready for one vocabulary: states with their markers sorted into tokens and text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from proxy.derender.parsing.events import CONTENT
from proxy.derender.parsing.model import Sink, State
from proxy.derender.vocabulary import Vocabulary

_NOTHING = re.compile(r"(?!)")


class CompiledState:
    """A ``State`` with its markers sorted into those seen as tokens and those matched in the text."""

    __slots__ = (
        "name",
        "sink",
        "on",
        "reader",
        "then",
        "broken",
        "otherwise",
        "starts",
        "trial",
        "declared",
        "literal",
        "drop_if_content",
        "headed",
        "route",
        "guarded",
        "pattern",
        "first",
        "longest",
        "markers",
        "calm",
        "channel",
    )

    def __init__(self, name: str, state: State, vocabulary: Vocabulary) -> None:
        self.name = name
        self.sink = int(state.sink)
        self.on = dict(state.on)
        self.reader = state.reader
        self.then = state.then
        self.broken = state.broken or state.then
        self.otherwise = state.otherwise
        self.starts = dict(state.starts)
        self.trial = state.trial
        self.declared = state.declared
        self.literal = state.literal
        self.drop_if_content = state.drop_if_content
        self.headed = state.headed
        self.route = state.route
        self.guarded = state.guarded
        wanted = state.inner if state.sink == Sink.CALL else state.on
        self.markers = tuple(sorted((m for m in wanted if m not in vocabulary.added), key=len, reverse=True))
        self.pattern = re.compile("|".join(map(re.escape, self.markers))) if self.markers else None
        first = "".join(sorted({marker[0] for marker in self.markers}))
        self.first = re.compile(f"[{re.escape(first)}]") if first else _NOTHING
        self.longest = max(map(len, self.markers), default=0)
        self.channel = self.sink <= CONTENT
        # text of such a state needs no look at all
        self.calm = self.channel and not self.markers and not self.otherwise

    def tail(self, text: str) -> int:
        """Where the longest tail of ``text`` begins that can still become a marker."""
        for match in self.first.finditer(text, max(0, len(text) - self.longest + 1)):
            rest = text[match.start() :]
            if any(marker.startswith(rest) for marker in self.markers):
                return match.start()
        return len(text)


@dataclass(frozen=True)
class Program:
    """A format made ready for one vocabulary: shared by all streams that use it."""

    states: Mapping[str, CompiledState]
    marks: Mapping[int, tuple[str, bool]]  # id -> (text, special): every id that is not plain text
    markers: frozenset[str]  # the texts of all markers of the format
    spelled: frozenset[str]  # those of them that the vocabulary has not as tokens

    @classmethod
    def compile(cls, states: Mapping[str, State], vocabulary: Vocabulary, more: Collection[str] = ()) -> Program:
        """``more``: markers that only the readers of the format know."""
        wanted = {marker for state in states.values() for marker in (*state.on, *state.inner)} | set(more)
        marks = {token_id: (text, False) for text, token_id in vocabulary.added.items() if text in wanted}
        by_id = {token_id: text for text, token_id in vocabulary.added.items()}
        # a special token that is only a piece of a marker is read as the text that it is
        spelled = frozenset(marker for marker in wanted if marker not in vocabulary.added)
        for token_id in vocabulary.special:
            text = by_id.get(token_id, "")
            if not (text and any(text in marker for marker in spelled)):
                marks[token_id] = (text, True)
        compiled = {name: CompiledState(name, state, vocabulary) for name, state in states.items()}
        return cls(compiled, marks, frozenset(wanted), spelled)
