"""Calls in Kimi K3's XTML: elements that say themselves what type a value has.

The reader gets the call's own tag as its header and reads what stands inside ::

    <|open|>argument key="K" type="T"<|sep|>V<|close|>argument<|sep|>...<|close|>call<|sep|>

Attributes escape ``&`` and ``"``; bodies escape nothing. A value ends at the closing tag of an argument and at
nothing else. A string is sent as it comes, everything else is JSON and is sent when it is complete.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.writer import ObjectWriter
from proxy.derender.parsing.model import Calls

OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"

# A tag that is longer is none.
TAG_LIMIT = 4096

_attribute = re.compile(r'([\w-]+)="([^"]*)"').findall

_OUTSIDE, _OPENING, _CLOSING, _VALUE, _VALUE_CLOSING = range(5)


def attributes(tag: str) -> dict[str, str]:
    """The attributes of a tag, without their escapes."""
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _attribute(tag)}


class XtmlReader:
    """Reads one call behind its opening tag, which is its header."""

    __slots__ = ("_at", "_tag", "_begun", "_writer", "done", "failed")

    def __init__(self) -> None:
        self._at = _OUTSIDE
        self._tag = ""  # the text of a tag that is being read
        self._begun = False
        self._writer = ObjectWriter()
        self.done = False
        self.failed = False

    def head(self, head: str, calls: Calls) -> None:
        name = attributes(head).get("tool", "").strip()
        self._begun = bool(name) and calls.begin(name)
        self.failed = not self._begun

    def text(self, text: str, calls: Calls) -> int:
        if self.failed:
            return 0
        if self._at == _VALUE:
            self._writer.data(text, calls)
        elif self._at == _VALUE_CLOSING:
            self._tag += text
            if not "argument".startswith(self._tag.strip()):
                self._no_tag(calls)
        elif self._at != _OUTSIDE:
            self._tag += text
            if len(self._tag) > TAG_LIMIT:
                self._at = _OUTSIDE
        return len(text)

    def _no_tag(self, calls: Calls) -> None:
        """What looked like the closing tag of a value is part of it."""
        self._writer.data(CLOSE + self._tag, calls)
        self._at = _VALUE

    def marker(self, marker: str, calls: Calls) -> bool:
        if self.failed:
            return False
        if self._at == _VALUE_CLOSING:
            if marker == SEP and self._tag.strip() == "argument":
                self._writer.close(calls)
                self._at = _OUTSIDE
                return True
            self._no_tag(calls)
        if self._at == _VALUE:
            if marker == CLOSE:
                self._tag = ""
                self._at = _VALUE_CLOSING
            else:
                self._writer.data(marker, calls)
        elif marker in (OPEN, CLOSE):
            self._tag = ""
            self._at = _OPENING if marker == OPEN else _CLOSING
        elif marker == SEP:
            self._tag_ends(calls)
        else:
            return False
        return True

    def _tag_ends(self, calls: Calls) -> None:
        at, self._at = self._at, _OUTSIDE
        name = self._tag.split(None, 1)[0] if self._tag.split() else ""
        if at == _OPENING and name == "argument":
            found = attributes(self._tag)
            types = ("string",) if found.get("type", "string") == "string" else ()
            self._writer.key(found.get("key", ""), types, calls)
            self._at = _VALUE
        elif at == _CLOSING and name != "argument":
            # ``call``; anything else closes what is around it
            self.done = True
            self._writer.end(calls, name == "call")

    def finish(self, calls: Calls) -> None:
        if not self._begun:
            self.failed = True
            return
        self.done = True
        self._writer.end(calls, False)

    def save(self) -> Any:
        return [self._at, self._tag, self._begun, self._writer.save()]

    def load(self, state: Any) -> None:
        self._at, self._tag, self._begun, writer = state
        self.failed = not self._begun
        self._writer.load(writer)
