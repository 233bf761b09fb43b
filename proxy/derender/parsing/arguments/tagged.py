"""Calls whose name, keys and values stand between markers, without escaping.

::

    NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>

A value ends at its own closing marker and at nothing else; a closing marker of the call inside a value is data,
unless the output ends there (models forget ``</arg_value>`` in front of it). The tool's schema says which values
are strings, sent as they come, and which are typed, sent when they are complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT
from proxy.derender.parsing.arguments.schema import parameter_types
from proxy.derender.parsing.arguments.writer import ObjectWriter
from proxy.derender.parsing.model import Calls

# A key that is longer is none.
KEY_LIMIT = 1024

_NAME, _BETWEEN, _KEY, _AFTER_KEY, _VALUE = range(5)


@dataclass(frozen=True)
class Tags:
    """``end``: what closes the call. ``separator``: what may stand behind the name. ``ignored``: around keys."""

    key: str
    key_end: str
    value: str
    value_end: str
    end: str
    separator: str = ""
    ignored: tuple[str, ...] = ()


class TaggedReader:
    """Reads one call behind its opening marker."""

    __slots__ = ("_tags", "_at", "_text", "_name", "_end", "_space", "_writer", "done", "failed")

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._at = _NAME
        self._text = ""  # the name or the key that is being read
        self._name = ""
        self._end = False  # a closing marker of the call stands inside a value
        self._space: list[str] = []  # and whitespace behind it
        self._writer = ObjectWriter()
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        if self._at == _VALUE:
            if self._end:
                if text.isspace():
                    self._space.append(text)
                    return len(text)
                self._flush(calls)
            self._writer.data(text, calls)
        elif self._at == _NAME:
            self._text += text
            self.failed = len(self._text) > NAME_LIMIT
        elif self._at == _KEY:
            room = KEY_LIMIT - len(self._text)
            self._text += text[:room]
            if len(text) > room:
                self.finish(calls)
                return room
        return len(text)

    def marker(self, marker: str, calls: Calls) -> bool:
        tags = self._tags
        if self._at == _VALUE:
            if marker == tags.value_end:
                self._flush(calls)
                self._writer.close(calls)
                self._at = _BETWEEN
            elif marker == tags.end and not self._end:
                self._end = True
            else:
                self._flush(calls)
                self._writer.data(marker, calls)
            return True
        if self._at == _NAME:
            return self._name_ends(marker, calls)
        if marker == tags.key and self._at != _KEY:
            self._text = ""
            self._at = _KEY
        elif marker == tags.key_end and self._at == _KEY:
            self._at = _AFTER_KEY
        elif marker == tags.value and self._at in (_KEY, _AFTER_KEY):
            key = self._text.strip()
            self._writer.key(key, parameter_types(calls.schema(self._name), key), calls)
            self._at = _VALUE
        elif marker == tags.end:
            self._over(calls, self._at != _KEY)
        elif marker not in (tags.key_end, tags.value_end, tags.separator, *tags.ignored):
            # another call begins, or the section ends: this one had all it wanted to say
            self._over(calls, self._at == _BETWEEN)
            return False
        return True

    def _name_ends(self, marker: str, calls: Calls) -> bool:
        tags = self._tags
        name = self._text.strip()
        if marker not in (tags.key, tags.separator, tags.end) or not name or len(name.split()) > 1:
            self.failed = True
            return False
        if not calls.begin(name):
            self.failed = True
            return False
        self._name, self._text = name, ""
        self._at = _KEY if marker == tags.key else _BETWEEN
        if marker == tags.end:
            self._over(calls, True)
        return True

    def _flush(self, calls: Calls) -> None:
        if self._end:
            self._writer.data(self._tags.end + "".join(self._space), calls)
            self._end, self._space = False, []

    def _over(self, calls: Calls, closed: bool) -> None:
        self.done = True
        self._writer.end(calls, closed)

    def finish(self, calls: Calls) -> None:
        if not self._name:
            self.failed = True
            return
        closed = self._end
        if closed:
            self._writer.close(calls)
        self._over(calls, closed)

    def save(self) -> Any:
        return [self._at, self._text, self._name, self._end, "".join(self._space), self._writer.save()]

    def load(self, state: Any) -> None:
        self._at, self._text, self._name, self._end, space, writer = state
        self._space = [space] if space else []
        self._writer.load(writer)
