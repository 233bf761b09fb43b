"""Calls in Python's syntax: ``[f(a=1, b='x'), g()]``.

A call is named once its first keyword, or its closing parenthesis, is there: a list of anything else
is text. Values stream as ``python_value`` says.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT
from proxy.derender.parsing.arguments.json_value import not_space
from proxy.derender.parsing.arguments.python_value import PythonValueReader
from proxy.derender.parsing.arguments.schema import quote
from proxy.derender.parsing.model import Calls

_word_end = re.compile(r"[^\w.\-]").search

# Where the reader stands.
_OPEN, _NEXT, _NAME, _NAMED, _KEY, _KEY_TEXT, _EQUALS, _VALUE, _AFTER, _BETWEEN = range(10)


class PythonicReader:
    """``listed``: the calls stand in one pair of brackets, and count only when that has closed.

    Else they follow each other, separated by whitespace, commas or semicolons, until the format's next marker.
    """

    __slots__ = ("_listed", "_at", "_text", "_name", "_begun", "_keys", "_value", "_any", "done", "failed")

    def __init__(self, listed: bool = True) -> None:
        self._listed = listed
        self._at = _OPEN if listed else _NEXT
        self._text = ""  # the name or key that is being read
        self._name = ""
        self._begun = False  # the call that is being read has been named
        self._keys: list[str] = []
        self._value: PythonValueReader | None = None
        self._any = False  # a call is complete
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        if self._value is not None:
            at = self._read_value(text, 0, calls)
            if at == len(text):
                return at
        else:
            at = 0
        size = len(text)
        while at < size and not (self.done or self.failed):
            if self._value is not None:
                at = self._read_value(text, at, calls)
            elif self._at in (_NAME, _KEY_TEXT):
                at = self._word(text, at, calls)
            else:
                match = not_space(text, at)
                if match is None:
                    return size
                at = self._structure(match.group(), match.start(), calls)
                if self._at == _NAME and self._any:
                    calls.further()
                    return at
        return at

    def _word(self, text: str, at: int, calls: Calls) -> int:
        match = _word_end(text, at)
        end = len(text) if match is None else match.start()
        self._text += text[at:end]
        if len(self._text) > NAME_LIMIT:
            self._fail(calls)
        elif match is not None:
            if self._at == _NAME:
                self._name, self._at = self._text, _NAMED
            else:
                self._at = _EQUALS
        return end

    def _structure(self, char: str, at: int, calls: Calls) -> int:
        where = self._at
        if where == _OPEN and char == "[":
            self._at = _NEXT
        elif where in (_NEXT, _KEY) and (char.isalpha() or char == "_"):
            self._text = ""
            self._at = _NAME if where == _NEXT else _KEY_TEXT
            return at
        elif where == _NAMED and char == "(":
            self._at = _KEY
        elif where == _EQUALS and char == "=":
            if self._begin(calls):
                self._key(calls)
        elif where in (_KEY, _AFTER) and char == ")":
            if self._begin(calls):
                self._end(calls)
        elif where == _AFTER and char == ",":
            self._at = _KEY
        elif where == _BETWEEN and char in (",;" if not self._listed else ","):
            self._at = _NEXT
        elif where in (_NEXT, _BETWEEN) and char == "]" and self._listed and self._any:
            self.done = True
            calls.end_list(True)
        elif where == _BETWEEN and not self._listed:
            self._at = _NEXT
            return at
        else:
            self._fail(calls)
            return at
        return at + 1

    def _begin(self, calls: Calls) -> bool:
        if not self._begun:
            self._begun = calls.begin(self._name)
            self.failed = not self._begun
        return self._begun

    def _key(self, calls: Calls) -> None:
        if self._text in self._keys:  # Python takes none twice either, and JSON could not say it
            self._fail(calls)
            return
        calls.arguments(("{" if not self._keys else ", ") + quote(self._text) + ": ")
        self._keys.append(self._text)
        self._value = PythonValueReader()
        self._at = _VALUE

    def _read_value(self, text: str, at: int, calls: Calls) -> int:
        value = self._value
        assert value is not None
        at = value.read(text, at, calls)
        if value.failed:
            self._fail(calls)
        elif value.done:
            self._value = None
            self._at = _AFTER
        return at

    def _end(self, calls: Calls) -> None:
        calls.arguments("}" if self._keys else "{}")
        calls.end(True, self._listed)
        self._any = True
        self._begun = False
        self._keys = []
        self._at = _BETWEEN

    def _fail(self, calls: Calls) -> None:
        """What follows is no call. Those before it stay what they are, as long as nothing holds them back."""
        self.failed = True
        self._close(calls)

    def _close(self, calls: Calls) -> None:
        self._value = None
        if self._begun:
            self._begun = False
            calls.end(False)
        if self._any and self._listed:
            calls.end_list(False)

    def marker(self, marker: str, calls: Calls) -> bool:
        if self._value is None or not self._value.in_string:
            return False
        self._value.data(marker, calls)
        return True

    def finish(self, calls: Calls) -> None:
        if not (self._begun or self._any):
            self.failed = True
            return
        self._close(calls)
        self.done = True

    def save(self) -> Any:
        value = None if self._value is None else self._value.save()
        return [self._at, self._text, self._name, self._begun, list(self._keys), self._any, value]

    def load(self, state: Any) -> None:
        self._at, self._text, self._name, self._begun, keys, self._any, value = state
        self._keys = list(keys)
        if value is not None:
            self._value = PythonValueReader()
            self._value.load(value)
