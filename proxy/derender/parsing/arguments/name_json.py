"""Calls in which the name stands in front of its JSON arguments, as Mistral's tokenizers write them.

Three generations share one opener: ``NAME[ARGS]{...}``, with ``[CALL_ID]`` and an id between them in some
(v11 and v13), ``NAME{...}``, and a JSON array of calls (v3; a single object is read as well).
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT, CallReader
from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.arguments.json_value import ValueReader
from proxy.derender.parsing.model import Calls, Reader

ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"
# A name, an id and two markers.
_HEAD_LIMIT = 2 * NAME_LIMIT

_head = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*(\w*)\s*)?\Z").match
_two_words = re.compile(r"\S\s+[^\s\[]").search

_HEAD, _VALUE, _OBJECT, _LIST = range(4)


class NameJsonReader:
    """What begins decides: ``[`` is an array, ``{`` an object, anything else a name."""

    __slots__ = ("_at", "_text", "_inner", "done", "failed")

    def __init__(self) -> None:
        self._at = _HEAD
        self._text = ""  # the head so far
        self._inner: Reader | None = None
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        if self._inner is not None:
            used = self._inner.text(text, calls)
            self._settle()
            return used
        before = len(self._text)
        head = self._text + text
        body = head.lstrip()
        start = len(head) - len(body)
        if body[:1] in ("[", "{"):
            self._read_by(_LIST if body[0] == "[" else _OBJECT)
            return start - before + self.text(body, calls)
        end = head.find(ARGS)
        behind = end + len(ARGS)
        if end < 0:
            end = behind = head.find("{")
        if end < 0:
            self._text = head
            self.failed = len(head) > _HEAD_LIMIT or _two_words(head) is not None
            return len(text)
        self._text = head[:end]
        self._begin(calls)
        if self.failed:
            return len(text)
        rest = head[behind:]
        return behind - before + (self.text(rest, calls) if rest else 0)

    def _read_by(self, kind: int) -> None:
        self._at = kind
        self._text = ""
        if kind == _LIST:
            self._inner = ListReader()
        elif kind == _OBJECT:
            self._inner = CallReader()
        else:
            self._inner = ValueReader()

    def _begin(self, calls: Calls) -> None:
        match = _head(self._text)
        if match is None or len(match[1]) > NAME_LIMIT or not calls.begin(match[1], match[2] or ""):
            self.failed = True
            return
        self._read_by(_VALUE)

    def _settle(self) -> None:
        assert self._inner is not None
        self.done = self._inner.done
        self.failed = self._inner.failed

    def marker(self, marker: str, calls: Calls) -> bool:
        if self._inner is not None:
            taken = self._inner.marker(marker, calls)
            self._settle()
            return taken
        if marker == ARGS and self._text.strip():
            self._begin(calls)
            return True
        if marker == CALL_ID and self._text.strip():
            self._text += marker
            return True
        return False

    def finish(self, calls: Calls) -> None:
        if self._inner is None:
            self.failed = True
            return
        self._inner.finish(calls)
        self._settle()

    def save(self) -> Any:
        return [self._at, self._text, None if self._inner is None else self._inner.save()]

    def load(self, state: Any) -> None:
        kind, text, inner = state
        if inner is not None:
            self._read_by(kind)
            assert self._inner is not None
            self._inner.load(inner)
        self._text = text
