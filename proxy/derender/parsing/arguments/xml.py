"""Calls in the XML style of Qwen3-Coder: ``<function=NAME>``, ``<parameter=KEY>``, value, closing tags.

The values are raw text without escaping, so a value may contain the very tags that frame it. What is a
tag and what is data follows from where it stands:

* ``<parameter=`` and ``</function>`` end a value at the start of a line only (that is how a value whose
  ``</parameter>`` is missing ends);
* ``</parameter>`` ends a value if the next thing behind it, whitespace aside, is ``<parameter=``,
  ``</function>`` or the end of the call;
* exactly one newline on each side of a value is framing.

String values are sent as they come; typed ones when they are complete, converted by the tool's schema.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.schema import parameter_types
from proxy.derender.parsing.arguments.writer import ObjectWriter
from proxy.derender.parsing.model import Calls

NAME_LIMIT = 256
# Whitespace behind a possible closing tag is held until it is decided.
SPACE_LIMIT = 1024

_CLOSE = "</parameter>"
_NEXT = "<parameter="
_END = "</function>"
_FUNCTION = "<function="
_SPACE = " \t\r\n"

_tag = re.compile(r"</parameter>|<parameter=|</function>").search
_FOLLOWING = (_NEXT, _END)
_TAILS = ("\n" + _CLOSE, "\n" + _NEXT, "\n" + _END, _CLOSE, _NEXT, _END)
_LONGEST = max(map(len, _TAILS))
_tail_start = re.compile(r"[\n<]").finditer

# Where the reader stands.
_BEFORE, _NAME, _BETWEEN, _KEY, _VALUE = range(5)


class XmlReader:
    """Reads one function. ``opened``: the format's marker was ``<function=`` itself, so the name follows."""

    __slots__ = (
        "_at",
        "_held",
        "_name",
        "_begun",
        "_object",
        "_fresh",
        "_line_start",
        "done",
        "failed",
    )

    def __init__(self, opened: bool = False) -> None:
        self._at = _NAME if opened else _BEFORE
        self._held = ""
        self._name = ""
        self._begun = False
        self._object = ObjectWriter()
        self._fresh = False  # nothing of the value was read yet: a newline is framing
        self._line_start = False  # the value's unread text begins a line
        self.done = False
        self.failed = False

    # -- reading ---------------------------------------------------------------------------------------

    def text(self, text: str, calls: Calls) -> int:
        if self._at == _VALUE and not self._held and not self._fresh and "<" not in text and "\n" not in text:
            self._data(text, calls)
            return len(text)
        rest = self._held + text
        self._held = ""
        while rest and not (self.done or self.failed):
            where = self._at
            if where == _VALUE:
                left = self._read_value(rest, calls)
            elif where in (_NAME, _KEY):
                left = self._read_name(rest, calls)
            else:
                left = self._read_tag(rest, calls)
            if left is None:
                return len(text)
            rest = left
        return len(text) - min(len(rest), len(text))

    def _read_tag(self, text: str, calls: Calls) -> str | None:
        """Between tags: whitespace, then the next tag. None: the text is held."""
        body = text.lstrip(_SPACE)
        tags = (_FUNCTION,) if self._at == _BEFORE else (_NEXT, _END)
        for tag in tags:
            if body.startswith(tag):
                if tag == _FUNCTION:
                    self._at = _NAME
                elif tag == _NEXT:
                    if not self._begin(calls):
                        return body
                    self._at = _KEY
                else:
                    if not self._begin(calls):
                        return body
                    self._end(calls, True)
                return body[len(tag) :]
        if any(tag.startswith(body) for tag in tags):
            self._held = body
            return None
        if not self._begun:
            self.failed = True
            return body
        # noise between parameters: dropped up to what may be a tag
        cut = body.find("<", 1)
        return body[cut:] if cut > 0 else ""

    def _read_name(self, text: str, calls: Calls) -> str | None:
        """A function's name, or a key: up to ``>``."""
        end = text.find(">")
        newline = text.find("\n")
        if end < 0 and newline < 0:
            if len(text) > NAME_LIMIT or "<" in text:
                return self._bad_name(text, calls)
            self._held = text
            return None
        if newline >= 0 and (end < 0 or newline < end):
            return self._bad_name(text, calls)
        name = text[:end].strip()
        if not name or len(name) > NAME_LIMIT or "<" in name:
            return self._bad_name(text, calls)
        if self._at == _NAME:
            self._name = name
            self._at = _BETWEEN
        else:
            self._key_begins(name, calls)
        return text[end + 1 :]

    def _bad_name(self, text: str, calls: Calls) -> str:
        """A tag without its bracket: no call yet, or a parameter that is dropped."""
        if self._at == _NAME:
            self.failed = True
            return text
        self._at = _VALUE
        self._object.drop()
        self._fresh = False
        self._line_start = False
        return text

    def _key_begins(self, key: str, calls: Calls) -> None:
        self._fresh = True
        self._line_start = False
        self._at = _VALUE
        self._object.key(key, parameter_types(calls.schema(self._name), key), calls)

    def _read_value(self, text: str, calls: Calls) -> str | None:
        if self._fresh:
            self._fresh = False
            self._line_start = True
            if text[0] == "\n":
                text = text[1:]
                if not text:
                    return None
        at = 0
        while True:
            match = _tag(text, at)
            if match is None:
                break
            begin = match.start()
            starts_line = text[begin - 1] == "\n" if begin else self._line_start
            if match.group() != _CLOSE:
                if not starts_line:
                    at = match.end()
                    continue
                self._value_ends(self._framed(text, begin), calls)
                return text[begin:]
            behind = text[match.end() :]
            body = behind.lstrip(_SPACE)
            if body.startswith(_FOLLOWING):
                self._value_ends(self._framed(text, begin), calls)
                return body
            if len(behind) - len(body) <= SPACE_LIMIT and any(tag.startswith(body) for tag in _FOLLOWING):
                self._hold(text, begin - 1 if begin and text[begin - 1] == "\n" else begin, calls)
                return None
            at = match.end()
        self._hold(text, self._tail(text, at), calls)
        return None

    def _hold(self, text: str, keep: int, calls: Calls) -> None:
        if keep:
            self._data(text[:keep], calls)
            self._line_start = text[keep - 1] == "\n"
        self._held = text[keep:]

    @staticmethod
    def _framed(text: str, begin: int) -> str:
        """The value's last piece, without the newline in front of the tag."""
        return text[: begin - 1] if begin and text[begin - 1] == "\n" else text[:begin]

    @staticmethod
    def _tail(text: str, at: int) -> int:
        """Where the longest tail begins that can still become a tag."""
        for match in _tail_start(text, max(at, len(text) - _LONGEST + 1)):
            rest = text[match.start() :]
            if any(tail.startswith(rest) for tail in _TAILS):
                return match.start()
        return len(text)

    def _data(self, text: str, calls: Calls) -> None:
        self._line_start = False
        self._object.data(text, calls)

    def _value_ends(self, last: str, calls: Calls) -> None:
        self._data(last, calls)
        self._at = _BETWEEN
        self._object.close(calls)

    # -- beginning and end -----------------------------------------------------------------------------

    def _begin(self, calls: Calls) -> bool:
        if not self._begun:
            if not calls.begin(self._name):
                self.failed = True
                return False
            self._begun = True
        return True

    def _end(self, calls: Calls, closed: bool) -> None:
        self.done = True
        self._object.end(calls, closed)

    def marker(self, marker: str, calls: Calls) -> bool:
        """Inside a value a marker is data, except a closing one right behind a closing tag."""
        closes = marker.startswith("</")
        if self._at == _VALUE and not (closes and _CLOSE in self._held):
            held, self._held = self._held, ""
            if held:
                self._data(held, calls)
            self._fresh = False
            self._data(marker, calls)
            return True
        if self._at == _VALUE:
            self._close_held(calls)
        if closes and self._at == _BETWEEN and self._begun and not self._held:
            self._end(calls, True)
        return False

    def _close_held(self, calls: Calls) -> None:
        """The value ends at the closing tag that is held."""
        held, self._held = self._held, ""
        self._value_ends(held[: held.index(_CLOSE)].removesuffix("\n"), calls)

    def finish(self, calls: Calls) -> None:
        if not self._begun:
            self.failed = True
            return
        if self._at == _VALUE and _CLOSE in self._held:
            self._close_held(calls)
        # what is held may be half a tag: the arguments stay a prefix of what the model was writing
        self._held = ""
        self.done = True
        calls.end(False)

    # -- snapshots -------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        return [
            self._at,
            self._held,
            self._name,
            self._begun,
            self._object.save(),
            self._fresh,
            self._line_start,
            self.failed,
        ]

    def load(self, state: Any) -> None:
        self._at, self._held, self._name, self._begun, written, self._fresh, self._line_start, self.failed = state
        self._object.load(written)
