"""One Python literal, turned into JSON while it is being read.

Strings are sent as they come: escapes are decoded, prefixes, triple quotes and adjacent literals understood.
Tuples and sets become arrays, keys of dicts strings. Numbers are copied digit by digit where JSON can
take them. A bare word that is no literal becomes a string.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from typing import Any

from proxy.derender.parsing.arguments.json_value import not_space
from proxy.derender.parsing.arguments.schema import quote, quote_inner
from proxy.derender.parsing.model import Calls

SCALAR_LIMIT = 4096
_ESCAPE_LIMIT = 96
# What stands behind a brace waits until it is known to be a key or the element of a set.
BUFFER_LIMIT = 1 << 20

_word_end = re.compile(r"[\s,)\]}:'\"(\[{=]").search
_number = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z").match
_PREFIX = re.compile(r"[rRbBuUfF]{1,2}\Z").match
_WORDS = {"None": "null", "null": "null", "True": "true", "true": "true", "False": "false", "false": "false"}
_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r",
    "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": "",
}  # fmt: skip
_HEX = {"x": 2, "u": 4, "U": 8}

# Where the reader stands.
_VALUE, _QUOTE, _STRING, _STRING_END, _WORD, _AFTER = range(6)
# What is open: arrays (also tuples and sets), objects, and braces that may be either.
_CLOSERS = {"[": "]", "(": ")", "{": "}", "?": "}", "s": "}"}


def scalar(word: str) -> str:
    """The JSON of a bare word: a literal, a number, or else a string."""
    if word in _WORDS:
        return _WORDS[word]
    bare = word.replace("_", "").removeprefix("+")
    if _number(bare):
        return bare
    try:
        value = ast.literal_eval(word)
        if isinstance(value, (int, float)):
            return json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    return quote(word)


class PythonValueReader:
    """Reads one value up to the delimiter that follows it; ``read`` returns how far.

    ``done`` is True once it is complete, ``failed`` where it is no literal.
    """

    __slots__ = (
        "_stack",
        "_at",
        "_text",
        "_quote",
        "_raw",
        "_key",
        "_comma",
        "_first",
        "_size",
        "_out",
        "done",
        "failed",
    )

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._at = _VALUE
        self._text = ""  # a word, an escape, or quotes that are being read
        self._quote = ""
        self._raw = False
        self._key = False  # the string or word that is being read is a key of an object
        self._comma = False  # a comma has to go in front of the next element
        self._first: list[str] | None = None  # the first element behind a brace, until it is known what the brace is
        self._size = 0
        self._out: list[str] = []
        self.done = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        return self._at == _STRING

    def read(self, text: str, at: int, calls: Calls) -> int:
        """Read ``text`` from ``at``; returns the index behind what belongs to the value."""
        size = len(text)
        if self._at == _STRING and not (at or self._text or self._first is not None):
            if self._quote[0] not in text and "\\" not in text:
                calls.arguments(quote_inner(text))
                return size
        while at < size and not (self.done or self.failed):
            where = self._at
            if where == _STRING:
                at = self._string(text, at)
            elif where == _QUOTE:
                at = self._opening(text, at)
            elif where == _WORD:
                at = self._word(text, at)
            else:
                match = not_space(text, at)
                if match is None:
                    at = size
                    break
                at = self._structure(match.group(), match.start())
        if self._out:
            out, self._out = "".join(self._out), []
            if out:
                calls.arguments(out)
        return at

    def _say(self, text: str) -> None:
        if self._first is None:
            self._out.append(text)
            return
        self._first.append(text)
        self._size += len(text)
        if self._size > BUFFER_LIMIT:
            self.failed = True

    # -- structure -------------------------------------------------------------------------------------

    def _structure(self, char: str, at: int) -> int:
        if self._at == _STRING_END:
            if char in "'\"":  # adjacent literals are one
                self._quote, self._text, self._at = char, "", _QUOTE
                return at + 1
            self._say('"')
            self._at = _AFTER
        if self._at == _VALUE:
            return self._value_begins(char, at)
        return self._value_ended(char, at)

    def _value_begins(self, char: str, at: int) -> int:
        inside = self._stack[-1] if self._stack else ""
        if inside and char == _CLOSERS[inside] and (inside != "{" or self._key):
            self._close()
            return at + 1
        if char in ",)]}:=":
            self.failed = True
            return at
        if char in "[({":
            if self._key:
                self.failed = True
                return at
            if self._first is not None:  # no key of an object: the brace is a set
                self._decide("s")
            self._separate()
            self._stack.append("?" if char == "{" else char)
            if char == "{":
                self._first, self._size = [], 0
            else:
                self._say("[")
            return at + 1
        self._separate()
        if char in "'\"":
            self._say('"')
            self._quote, self._text, self._raw, self._at = char, "", False, _QUOTE
            return at + 1
        self._text, self._at = "", _WORD
        return at

    def _separate(self) -> None:
        if self._comma:
            self._comma = False
            self._say(", ")

    def _value_ended(self, char: str, at: int) -> int:
        """What follows a value: a comma, a colon, or what closes."""
        if not self._stack:
            self.done = True
            return at
        inside = self._stack[-1]
        if inside == "?" and char in ":,}":
            self._decide("{" if char == ":" else "s")
            inside = self._stack[-1]
            self._key = inside == "{"
        if inside == "{" and self._key:
            if char != ":":
                self.failed = True
                return at
            self._say(": ")
            self._key = False
            self._at = _VALUE
        elif char == ",":
            self._comma = True
            self._key = inside == "{"
            self._at = _VALUE
        elif char == _CLOSERS[inside]:
            self._close()
        else:
            self.failed = True
            return at
        return at + 1

    def _decide(self, kind: str) -> None:
        """The innermost brace is an object or a set."""
        first, self._first = self._first or [], None
        self._stack[-1] = kind
        text = "".join(first)
        if kind == "{" and text and text[0] != '"':
            text = quote(text)
        self._say(("{" if kind == "{" else "[") + text)

    def _close(self) -> None:
        if self._stack[-1] == "?":
            self._decide("{")
        inside = self._stack.pop()
        self._say("}" if inside == "{" else "]")
        self._comma = False
        self._key = False
        self._at = _AFTER
        # the value that a colon or comma can follow is now one of the outer container
        if not self._stack:
            self.done = True

    # -- words and strings -----------------------------------------------------------------------------

    def _word(self, text: str, at: int) -> int:
        match = _word_end(text, at)
        end = len(text) if match is None else match.start()
        self._text += text[at:end]
        if len(self._text) > SCALAR_LIMIT:
            self.failed = True
            return end
        if match is None:
            return end
        word, char = self._text, match.group()
        self._text = ""
        if char in "'\"" and _PREFIX(word):
            self._say('"')
            self._quote, self._raw, self._at = char, "r" in word.lower(), _QUOTE
            return end + 1
        if not word or char in "'\"([{=":
            self.failed = True
            return end
        said = scalar(word)
        self._say(quote(said) if self._key and said[0] != '"' else said)
        self._at = _AFTER
        if not self._stack:
            self.done = True
        return end

    def _opening(self, text: str, at: int) -> int:
        """Behind a quote: two more of them make it a triple one, one more an empty string."""
        if text[at] == self._quote:
            self._text += text[at]
            at += 1
            if len(self._text) == 2:
                self._quote, self._text, self._at = self._quote * 3, "", _STRING
        elif self._text:
            self._text, self._at = "", _STRING_END
        else:
            self._at = _STRING
        return at

    def _string(self, text: str, at: int) -> int:
        if self._text:
            return self._escape_or_quote(text, at)
        quote_char = self._quote[0]
        end = min((i for i in (text.find(quote_char, at), text.find("\\", at)) if i >= 0), default=len(text))
        if end > at:
            self._say(quote_inner(text[at:end]))
        if end == len(text):
            return end
        if text[end] == "\\" or len(self._quote) == 3:
            self._text = text[end]
            return self._escape_or_quote(text, end + 1)
        self._at = _STRING_END
        return end + 1

    def _escape_or_quote(self, text: str, at: int) -> int:
        """``self._text`` holds a backslash and what followed, or quotes of a triple one."""
        while True:
            held = self._text
            if held[0] != "\\":
                if len(held) == 3:
                    self._text, self._at = "", _STRING_END
                    return at
                if at < len(text) and text[at] == held[0]:
                    self._text += text[at]
                    at += 1
                    continue
                if at < len(text):
                    self._say(quote_inner(held))
                    self._text = ""
                return at
            decoded = self._decode(held)
            if decoded is not None:
                self._say(decoded)
                self._text = ""
                return at
            if at >= len(text):
                return at
            if self._ends_octal(text[at]):
                self._say(quote_inner(chr(int(held[1:], 8))))
                self._text = ""
                return at
            self._text += text[at]
            at += 1

    def _ends_octal(self, char: str) -> bool:
        return self._text[1:].isdigit() and char not in "01234567"

    def _decode(self, held: str) -> str | None:
        """The JSON of a complete escape; None: more of it is needed."""
        if len(held) == 1:
            return None
        kind = held[1]
        if self._raw:
            return quote_inner(held)
        if kind in _SIMPLE:
            return quote_inner(_SIMPLE[kind])
        if kind in _HEX:
            digits = held[2:]
            if digits.strip("0123456789abcdefABCDEF"):
                return quote_inner(held)
            if len(digits) < _HEX[kind]:
                return None
            code = int(digits, 16)
            if 0xD800 <= code < 0xE000:
                return f"\\u{code:04x}"
            return quote_inner(chr(code)) if code < 0x110000 else quote_inner(held)
        if kind in "01234567":
            return quote_inner(chr(int(held[1:], 8))) if len(held) == 4 else None
        if kind == "N":
            if len(held) == 2 or (held[2] == "{" and held[-1] != "}" and len(held) < _ESCAPE_LIMIT):
                return None
            try:
                return quote_inner(unicodedata.lookup(held[3:-1]))
            except KeyError:
                return quote_inner(held)
        return quote_inner(held)

    def data(self, text: str, calls: Calls) -> None:
        """Text inside a string that is data whatever it says."""
        if self._text:
            self._say(quote_inner(self._text))
            self._text = ""
        self._say(quote_inner(text))
        if self._out:
            out, self._out = "".join(self._out), []
            calls.arguments(out)

    def save(self) -> Any:
        first = None if self._first is None else "".join(self._first)
        return ["".join(self._stack), self._at, self._text, self._quote, self._raw, self._key, self._comma, first]

    def load(self, state: Any) -> None:
        stack, self._at, self._text, self._quote, self._raw, self._key, self._comma, first = state
        self._stack = list(stack)
        self._first = None if first is None else [first]
        self._size = len(first or "")
