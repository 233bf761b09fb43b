"""The two knobs, as filters behind the parser's events.

``TrimFilter`` (``--framing-whitespace trim``) drops whitespace that frames reasoning, content and calls;
``TailFilter`` is what some families drop even where whitespace is kept, ``InlineFilter`` what one wants to see.
``CompleteFilter`` (``--tool-call-streaming complete``) sends a call once, when it has closed and is a JSON object,
and never an open or a broken one. All keep plain data as state and depend on the events alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from proxy.derender.parsing.events import ARGUMENTS, CALL, CLOSED, CONTENT, END, LISTED, REASONING, Event


class Filter(Protocol):
    def apply(self, events: Iterable[Event]) -> list[Event]: ...

    def finish(self) -> list[Event]: ...

    def save(self) -> Any: ...

    def load(self, state: Any) -> None: ...


class TrimFilter:
    """Holds whitespace until it is known whether it is inside a channel's text or at its border.

    Whitespace at the end of the answer belongs to the content in front of it, if there is any.
    """

    __slots__ = ("_reasoning", "_content", "_space", "_channel", "_fresh", "_framed")

    def __init__(self, reasoning: bool, content: bool) -> None:
        self._reasoning = reasoning
        self._content = content
        self._space: list[str] = []  # whitespace held
        self._channel = -1  # the kind of the last event
        self._fresh = True  # nothing but whitespace since the channel began
        self._framed = False  # reasoning or a call came before: whitespace in front of content is framing

    def apply(self, events: Iterable[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            kind, text, _ = event
            if kind == REASONING or kind == CONTENT:
                self._text(kind, text, out)
            else:
                if kind == CALL:
                    self._switch(CALL, out)
                    self._framed = True
                out.append(event)
        return out

    def _switch(self, kind: int, out: list[Event]) -> None:
        """Another channel begins: whitespace held at the end of the last one is framing, or it is sent."""
        if kind == self._channel:
            return
        if self._space and not self._trims(self._channel):
            out.append((self._channel, "".join(self._space), ""))
        self._space = []
        if self._channel == REASONING:
            self._framed = True
        self._channel = kind
        self._fresh = True

    def _trims(self, kind: int) -> bool:
        return self._reasoning if kind == REASONING else self._content

    def _text(self, kind: int, text: str, out: list[Event]) -> None:
        self._switch(kind, out)
        if not self._trims(kind):
            out.append((kind, text, ""))
            return
        if self._fresh and (kind == REASONING or self._framed):
            text = text.lstrip()
            if not text:
                return
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return
        self._fresh = False
        out.append((kind, "".join([*self._space, body]), ""))
        self._space = [text[len(body) :]] if len(body) < len(text) else []

    def finish(self) -> list[Event]:
        space, self._space = "".join(self._space), []
        if space and self._channel == CONTENT and not (self._framed and self._fresh):
            return [(CONTENT, space, "")]
        return []

    def save(self) -> Any:
        return ["".join(self._space), self._channel, self._fresh, self._framed]

    def load(self, state: Any) -> None:
        space, self._channel, self._fresh, self._framed = state
        self._space = [space] if space else []


class TailFilter:
    """Drops whitespace at the end of the reasoning, where a family's reasoning ends with what frames it."""

    __slots__ = ("_space",)

    def __init__(self) -> None:
        self._space: list[str] = []

    def apply(self, events: Iterable[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            text = event[1]
            if event[0] != REASONING:
                self._space.clear()
                out.append(event)
                continue
            body = text.rstrip()
            if body:
                if self._space:
                    out.append((REASONING, "".join(self._space), ""))
                    self._space.clear()
                out.append(event if len(body) == len(text) else (REASONING, body, ""))
            if len(body) < len(text):
                self._space.append(text[len(body) :])
        return out

    def finish(self) -> list[Event]:
        self._space.clear()
        return []

    def save(self) -> Any:
        return "".join(self._space)

    def load(self, state: Any) -> None:
        self._space = [state] if state else []


class InlineFilter:
    """Reasoning stays in the content, between its markers, of which the first stands in the prompt."""

    __slots__ = ("_start", "_end", "_at")

    def __init__(self, start: str, end: str) -> None:
        self._start = start
        self._end = end
        self._at = 0  # 1: the first marker was sent, 2: the second one too

    def apply(self, events: Iterable[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if self._at == 0:
                self._at = 1
                out.append((CONTENT, self._start, ""))
            if event[0] == REASONING:
                out.append((CONTENT, event[1], ""))
                continue
            if self._at == 1:
                self._at = 2
                out.append((CONTENT, self._end, ""))
            out.append(event)
        return out

    def finish(self) -> list[Event]:
        return []

    def save(self) -> Any:
        return self._at

    def load(self, state: Any) -> None:
        self._at = state


class CompleteFilter:
    """Buffers a call from its beginning to its end; other events that come meanwhile go on.

    Calls that stand in a list wait for its end as well.
    """

    __slots__ = ("_call", "_parts", "_listed")

    def __init__(self) -> None:
        self._call: tuple[str, str] | None = None
        self._parts: list[str] = []
        self._listed: list[tuple[str, str, str]] = []  # complete calls of an open list: name, id, arguments

    def apply(self, events: Iterable[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            kind, text, extra = event
            if kind == CALL:
                self._call, self._parts = (text, extra), []
            elif kind == ARGUMENTS and self._call is not None:
                self._parts.append(text)
            elif kind != END:
                out.append(event)
            elif self._call is not None:
                call, arguments = self._call, "".join(self._parts)
                self._call, self._parts = None, []
                if extra == LISTED and _is_object(arguments):
                    self._listed.append((*call, arguments))
                elif extra == CLOSED and _is_object(arguments):
                    out += _whole(*call, arguments)
            else:
                listed, self._listed = self._listed, []
                if extra == CLOSED:
                    for item in listed:
                        out += _whole(*item)
        return out

    def finish(self) -> list[Event]:
        self._call, self._parts, self._listed = None, [], []
        return []

    def save(self) -> Any:
        call = None if self._call is None else list(self._call)
        return [call, "".join(self._parts), [list(item) for item in self._listed]]

    def load(self, state: Any) -> None:
        call, arguments, listed = state
        self._call = None if call is None else (call[0], call[1])
        self._parts = [arguments] if arguments else []
        self._listed = [(name, written, whole) for name, written, whole in listed]


def _whole(name: str, written: str, arguments: str) -> list[Event]:
    return [(CALL, name, written), (ARGUMENTS, arguments, ""), (END, "", CLOSED)]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
