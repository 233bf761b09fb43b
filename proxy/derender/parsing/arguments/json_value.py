"""One JSON value: where it ends, and the reader of arguments that stand alone.

JSON ends where its brackets and strings say so; nothing here searches for a closing marker, and a marker
inside a string is data. Arguments are passed on as the model wrote them, to the byte, while it writes.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.model import Calls

in_string = re.compile(r'["\\]').search
_structure = re.compile(r'["{}\[\]]').search
_scalar_end = re.compile(r"[\s,}\]:\"{\[]").search
not_space = re.compile(r"[^ \t\r\n]").search


class ValueScanner:
    """Finds the end of one JSON value. ``scan`` may be fed in any pieces.

    ``empty`` until the first character of the value; ``in_string`` while a string is open.
    """

    __slots__ = ("depth", "in_string", "escaped", "scalar", "empty", "done")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self.escaped = False
        self.scalar = False
        self.empty = True
        self.done = False

    def scan(self, text: str, at: int = 0) -> int:
        """Read ``text`` from ``at``; return the index behind what belongs to the value.

        Leading whitespace must have been skipped. A scalar (number, true, null) ends in front of the
        first character that cannot be part of it.
        """
        size = len(text)
        while at < size:
            if self.in_string:
                if self.escaped:
                    self.escaped = False
                    at += 1
                    continue
                match = in_string(text, at)
                if match is None:
                    return size
                at = match.end()
                if match.group() == "\\":
                    self.escaped = True
                    continue
                self.in_string = False
                if self.depth == 0:
                    self.done = True
                    return at
                continue
            if self.scalar:
                match = _scalar_end(text, at)
                if match is None:
                    return size
                self.done = True
                return match.start()
            if self.empty:
                self.empty = False
                if text[at] not in '{["':
                    self.scalar = True
                    continue
            match = _structure(text, at)
            if match is None:
                return size
            at = match.end()
            char = match.group()
            if char == '"':
                self.in_string = True
            elif char in "{[":
                self.depth += 1
            else:
                self.depth -= 1
                if self.depth <= 0:
                    self.done = True
                    return at
        return at

    def save(self) -> list[Any]:
        return [self.depth, self.in_string, self.escaped, self.scalar, self.empty, self.done]

    def load(self, saved: Any) -> None:
        self.depth, self.in_string, self.escaped, self.scalar, self.empty, self.done = saved


class ValueReader:
    """Arguments alone: one JSON value behind a name that the format has read elsewhere.

    Streams the value as it is; an empty or null value is ``{}``. ``calls.begin`` must have been said.
    ``ends_call``: the call is over with the value (else somebody else says so).
    """

    __slots__ = ("_scanner", "_null", "_ends_call", "done", "failed")

    def __init__(self, ends_call: bool = True) -> None:
        self._ends_call = ends_call
        self._scanner = ValueScanner()
        self._null = ""  # the beginning of what may be null
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        scanner = self._scanner
        if scanner.in_string and not scanner.escaped and '"' not in text and "\\" not in text:
            calls.arguments(text)
            return len(text)
        at = 0
        if self._scanner.empty:
            match = not_space(text)
            if match is None:
                return len(text)
            at = match.start()
            if text[at] in ",}]:":
                self.failed = True
                self._close(calls, closed=False)
                return at
        end = self._scanner.scan(text, at)
        piece = text[at:end]
        if self._null or (piece and "null".startswith(piece) and self._scanner.scalar):
            self._null += piece
            if not self._scanner.done and "null".startswith(self._null):
                return end
            if self._null != "null":
                calls.arguments(self._null)
                self._null = ""
                if self._scanner.done:
                    self._end(calls, True)
                return end
            piece = ""
            calls.arguments("{}")
        elif piece:
            calls.arguments(piece)
        if self._scanner.done:
            self._null = ""
            self._end(calls, True)
        return end

    @property
    def in_string(self) -> bool:
        return self._scanner.in_string

    def marker(self, marker: str, calls: Calls) -> bool:
        if not self._scanner.in_string:
            return False
        self.text(marker, calls)
        return True

    def finish(self, calls: Calls) -> None:
        self._close(calls, closed=self._scanner.scalar or self._scanner.empty)

    def _close(self, calls: Calls, closed: bool) -> None:
        if self._scanner.empty or self._null == "null":
            calls.arguments("{}")
        elif self._null:
            calls.arguments(self._null)
        self._null = ""
        self._end(calls, closed)

    def _end(self, calls: Calls, closed: bool) -> None:
        self.done = True
        if self._ends_call:
            calls.end(closed)

    def save(self) -> list[Any]:
        return [self._scanner.save(), self._null]

    def load(self, state: Any) -> None:
        scanner, self._null = state
        self._scanner.load(scanner)
