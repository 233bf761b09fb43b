"""Calls in the XML style of MiniMax M2 and Step 3: ``<invoke name="NAME">``, ``<parameter name="KEY">``, closing tags.

Values are raw text without escaping. A value ends at ``</parameter>``; where that is missing, at the next
``<parameter name=`` that stands at the start of a line (or behind a typed value, which cannot contain one), or at an
``</invoke>`` that nothing but the end of the calls follows. Everything else in a value is data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT
from proxy.derender.parsing.arguments.schema import is_verbatim, parameter_types
from proxy.derender.parsing.arguments.writer import ObjectWriter
from proxy.derender.parsing.model import Calls

_NAME, _BETWEEN, _KEY, _VALUE = range(4)


@dataclass(frozen=True)
class InvokeTags:
    """``call`` and ``key``: opening tags up to the ``=`` of their name; ``over``: markers behind the last call."""

    call: str
    call_end: str
    key: str
    value_end: str
    over: Sequence[str] = ()

    @property
    def inner(self) -> tuple[str, ...]:
        return (self.call, self.call_end, self.key, self.value_end)


class InvokeReader:
    """Reads one call behind ``<invoke name=``. ``strip``: whitespace around values is framing."""

    __slots__ = (
        "_tags",
        "_strip",
        "_at",
        "_text",
        "_name",
        "_end",
        "_space",
        "_line",
        "_fresh",
        "_string",
        "_writer",
        "done",
        "failed",
    )

    def __init__(self, tags: InvokeTags, strip: bool = False) -> None:
        self._tags = tags
        self._strip = strip
        self._at = _NAME
        self._text = ""  # the name or key that is being read, with its quotes
        self._name = ""
        self._end = False  # a closing tag of the call stands inside a value
        self._space: list[str] = []  # of a value: whitespace that may be framing, or stands behind that tag
        self._line = False  # the value so far ends a line
        self._fresh = False  # nothing of the value but whitespace was read
        self._string = False
        self._writer = ObjectWriter()
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        if self._at == _VALUE:
            self._data(text, calls)
        elif self._at != _BETWEEN:
            end = text.find(">")
            piece = text if end < 0 else text[:end]
            # what is too long, or goes over to the next line, is no name
            newline = piece.find("\n") if self._at == _NAME else -1
            room = min(NAME_LIMIT - len(self._text), newline if newline >= 0 else NAME_LIMIT)
            self._text += piece[:room]
            if newline >= 0 or len(piece) > room:
                self._malformed(calls)
                return room
            if end >= 0:
                self._name_ends(self._text, calls)
                if self.failed:
                    return end + 1
                if self._at == _VALUE and end + 1 < len(text):
                    self._data(text[end + 1 :], calls)
        return len(text)

    def _name_ends(self, written: str, calls: Calls) -> None:
        name = written.strip().strip("\"'").strip()
        self._text = ""
        if self._at == _KEY:
            types = parameter_types(calls.schema(self._name), name)
            self._string = is_verbatim(types)
            self._writer.key(name, types, calls)
            self._at, self._line, self._fresh = _VALUE, False, True
        elif not name or len(name.split()) > 1 or not calls.begin(name):
            self.failed = True
        else:
            self._name = name
            self._at = _BETWEEN

    def _data(self, text: str, calls: Calls) -> None:
        if self._end:
            if text.isspace():
                self._space.append(text)
                return
            self._flush(calls)
        space = ""
        if self._strip:
            if self._fresh:
                text = text.lstrip()
            body = text.rstrip()
            space, text = text[len(body) :], body
        if text:
            if self._space:
                self._flush(calls)
            self._fresh = False
            self._line = text[-1] == "\n"
            self._writer.data(text, calls)
        if space:
            self._space.append(space)

    def marker(self, marker: str, calls: Calls) -> bool:
        tags = self._tags
        if self._at == _VALUE:
            return self._in_value(marker, calls)
        if self._at == _NAME:
            self.failed = True
            return False
        if marker == tags.key:
            self._text = ""
            self._at = _KEY
        elif marker == tags.call_end:
            self._over(calls, self._at == _BETWEEN)
        elif marker != tags.value_end:
            self._over(calls, self._at == _BETWEEN)
            return False
        return True

    def _in_value(self, marker: str, calls: Calls) -> bool:
        tags = self._tags
        if marker == tags.value_end:
            if self._end:
                self._flush(calls)
            self._close(calls)
        elif self._end and (marker == tags.call or marker in tags.over):
            self._close(calls)
            self._over(calls, True)
            return False
        elif marker == tags.call_end and not self._end:
            self._flush(calls)
            self._end = True
        elif marker == tags.key and (self._line or any("\n" in space for space in self._space) or not self._string):
            self._close(calls)
            self._at = _KEY
        else:
            self._flush(calls)
            self._fresh = self._line = False
            self._writer.data(marker, calls)
        return True

    def _flush(self, calls: Calls) -> None:
        """What was held is data."""
        text = (self._tags.call_end if self._end else "") + "".join(self._space)
        self._end, self._space = False, []
        if text:
            self._fresh = False
            self._line = text[-1] == "\n"
            self._writer.data(text, calls)

    def _close(self, calls: Calls) -> None:
        self._end, self._space = False, []
        self._writer.close(calls)
        self._at = _BETWEEN

    def _malformed(self, calls: Calls) -> None:
        if self._name:
            self._over(calls, False)
        else:
            self.failed = True

    def _over(self, calls: Calls, closed: bool) -> None:
        self.done = True
        self._writer.end(calls, closed)

    def finish(self, calls: Calls) -> None:
        if not self._name:
            self.failed = True
            return
        closed = self._end
        if closed:
            self._close(calls)
        self._over(calls, closed)

    def save(self) -> Any:
        value = ["".join(self._space), self._line, self._fresh, self._string, self._writer.save()]
        return [self._at, self._text, self._name, self._end, *value]

    def load(self, state: Any) -> None:
        self._at, self._text, self._name, self._end, space, self._line, self._fresh, self._string, writer = state
        self._space = [space] if space else []
        self._writer.load(writer)
