"""A call written as a JSON object whose only key is the name: ``{"NAME": {...}}``."""

from __future__ import annotations

import json
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT
from proxy.derender.parsing.arguments.json_value import ValueReader, not_space, string_end
from proxy.derender.parsing.model import Calls

_OPEN, _KEY, _NAME, _COLON, _ARGUMENTS, _CLOSE = range(6)


class KeyedReader:
    """The first key is the name, its value the arguments; the object ends behind them."""

    __slots__ = ("_at", "_name", "_escaped", "_begun", "_value", "done", "failed")

    def __init__(self) -> None:
        self._at = _OPEN
        self._name = ""
        self._escaped = False
        self._begun = False
        self._value = ValueReader(ends_call=False)
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        at = 0
        while at < len(text) and not (self.done or self.failed):
            if self._at == _ARGUMENTS:
                at += self._value.text(text[at:] if at else text, calls)
                if self._value.failed:
                    self.finish(calls)
                elif self._value.done:
                    self._at = _CLOSE
            elif self._at == _NAME:
                at = self._read_name(text, at, calls)
            else:
                match = not_space(text, at)
                if match is None:
                    return len(text)
                at = match.start()
                if self._structure(match.group(), calls):
                    at += 1
        return at

    def _structure(self, char: str, calls: Calls) -> bool:
        if self._at == _OPEN and char == "{":
            self._at = _KEY
        elif self._at == _KEY and char == '"':
            self._at = _NAME
        elif self._at == _COLON and char == ":":
            self._begun = calls.begin(self._name)
            self.failed = not self._begun
            self._at = _ARGUMENTS
        elif self._at == _CLOSE and char == "}":
            self.done = True
            calls.end(True)
        else:
            self.finish(calls)
            self.failed = True
            return False
        return True

    def _read_name(self, text: str, at: int, calls: Calls) -> int:
        end, closed, self._escaped = string_end(text, at, self._escaped)
        self._name += text[at : end - 1 if closed else end]
        if closed:
            self._name_ends()
        else:
            self.failed = len(self._name) > NAME_LIMIT
        return end

    def _name_ends(self) -> None:
        try:
            self._name = json.loads(f'"{self._name}"')
        except ValueError:
            self._name = ""
        self._at = _COLON
        self.failed = not self._name or len(self._name) > NAME_LIMIT

    def marker(self, marker: str, calls: Calls) -> bool:
        return self._at == _ARGUMENTS and self._value.marker(marker, calls)

    def finish(self, calls: Calls) -> None:
        if not self._begun:
            self.failed = True
            return
        if self._at == _ARGUMENTS and not self._value.done:
            self._value.finish(calls)
        self.done = True
        calls.end(False)

    def save(self) -> list[Any]:
        return [self._at, self._name, self._escaped, self._begun, self._value.save()]

    def load(self, state: Any) -> None:
        self._at, self._name, self._escaped, self._begun, value = state
        self._value.load(value)
