"""One JSON value: where it ends, and the reader of arguments that stand alone.

JSON ends where its brackets and strings say so; nothing here searches for a closing marker, and a marker
inside a string is data. Arguments are passed on as the model wrote them, to the byte, while it writes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from proxy.derender.parsing.model import Calls

in_string = re.compile(r'["\\]').search
_structure = re.compile(r'["{}\[\]]').search
_scalar_end = re.compile(r"[\s,}\]:\"{\[]").search
# blanks, written out or escaped, in front of what a string holds
_escaped_space = re.compile(r"(?:[ \t\r\n]|\\[nrt])*").match
# the end of a string's inside that the next piece may continue: an escape, or half of a surrogate pair
_unfinished_escape = re.compile(
    r"(?<!\\)(?:\\\\)*((?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?)\Z"
).search
# A string that has not begun by then holds no object.
PROBE_LIMIT = 64
not_space = re.compile(r"[^ \t\r\n]").search


def string_end(text: str, at: int, escaped: bool) -> tuple[int, bool, bool]:
    """Look for the closing quote of a string whose inside goes on at ``at``, behind a backslash if ``escaped``.

    Returns the index behind what was read, whether that is the quote, and whether a backslash is pending.
    """
    while True:
        if escaped:
            if at >= len(text):
                return at, False, True
            escaped = False
            at += 1
        match = in_string(text, at)
        if match is None:
            return len(text), False, False
        at = match.end()
        if match.group() == '"':
            return at, True, False
        escaped = True


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


class StringDecoder:
    """The text of a JSON string, from its inside as it is written; escapes may be cut anywhere."""

    __slots__ = ("tail",)

    def __init__(self) -> None:
        self.tail = ""  # the beginning of an escape

    def push(self, raw: str) -> str:
        raw = self.tail + raw
        self.tail = ""
        if "\\" not in raw:
            return raw
        held = _unfinished_escape(raw)
        if held is not None and held.group(1):
            raw, self.tail = raw[: held.start(1)], held.group(1)
        try:
            text = str(json.loads(f'"{raw}"', strict=False))
        except ValueError:  # an escape that JSON does not know
            return raw
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# How a value is passed on: as it is; a string of which too little is known; the text of a string.
_PLAIN, _PROBING, _DECODING = range(3)


class ValueReader:
    """Arguments alone: one JSON value behind a name that the format has read elsewhere.

    Streams the value as it is; an empty or null value is ``{}``. A string that holds an object in its turn (models
    encode arguments twice) is passed on as that object. ``calls.begin`` must have been said. ``ends_call``: the call
    is over with the value (else somebody else says so).
    """

    __slots__ = ("_scanner", "_lead", "_form", "_decoder", "_ends_call", "done", "failed")

    def __init__(self, ends_call: bool = True) -> None:
        self._ends_call = ends_call
        self._scanner = ValueScanner()
        self._lead = ""  # the beginning of what may be null, or of a string
        self._form = _PLAIN
        self._decoder = StringDecoder()
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        scanner = self._scanner
        if scanner.in_string and not scanner.escaped and not self._form and '"' not in text and "\\" not in text:
            calls.arguments(text)
            return len(text)
        at = 0
        if scanner.empty:
            match = not_space(text)
            if match is None:
                return len(text)
            at = match.start()
            if text[at] in ",}]:":
                self.failed = True
                self._close(calls, closed=False)
                return at
            self._form = _PROBING if text[at] == '"' else _PLAIN
        end = scanner.scan(text, at)
        piece = text[at:end]
        if self._form:
            self._string(piece, calls)
        elif self._lead or (scanner.scalar and "null".startswith(piece)):
            self._lead += piece
            if not scanner.done and "null".startswith(self._lead):
                return end
            self._say("{}" if self._lead == "null" else self._lead, calls)
        else:
            self._say(piece, calls)
        if scanner.done:
            self._end(calls, True)
        return end

    def _say(self, text: str, calls: Calls) -> None:
        self._lead = ""
        if text:
            calls.arguments(text)

    def _string(self, piece: str, calls: Calls) -> None:
        """A piece of a value that is a string."""
        done = self._scanner.done
        if self._form == _PROBING:
            self._lead += piece
            inside = self._lead[1:-1] if done else self._lead[1:]
            body = _escaped_space(inside)
            if body is not None and body.end() == len(inside):
                if done:  # nothing in it
                    self._say("{}", calls)
                elif len(inside) > PROBE_LIMIT:
                    self._form = _PLAIN
                    self._say(self._lead, calls)
                return
            if body is not None and inside[body.end()] == "\\" and len(inside) - body.end() == 1 and not done:
                return
            if body is None or inside[body.end()] != "{":
                self._form = _PLAIN
                self._say(self._lead, calls)
                return
            self._form = _DECODING
            self._say(self._decoder.push(inside), calls)
        else:
            self._say(self._decoder.push(piece[:-1] if done else piece), calls)

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
        empty = self._scanner.empty or self._lead == "null"
        self._say("{}" if empty else self._lead, calls)
        self._end(calls, closed)

    def _end(self, calls: Calls, closed: bool) -> None:
        self.done = True
        if self._ends_call:
            calls.end(closed)

    def save(self) -> list[Any]:
        return [self._scanner.save(), self._lead, self._form, self._decoder.tail]

    def load(self, state: Any) -> None:
        scanner, self._lead, self._form, self._decoder.tail = state
        self._scanner.load(scanner)
