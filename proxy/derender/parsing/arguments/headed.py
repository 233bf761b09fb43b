"""Calls whose name stands in a header of its own, with a JSON value as arguments behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT
from proxy.derender.parsing.arguments.json_value import ValueReader
from proxy.derender.parsing.model import Calls

# What a header says: the name, and the id the model wrote ("" if none). None: this is no call.
ParseHead = Callable[[str], tuple[str, str] | None]


def plain_name(head: str) -> tuple[str, str] | None:
    """A header that is the name and nothing else."""
    name = head.strip()
    return (name, "") if name and len(name) <= NAME_LIMIT and not any(c.isspace() for c in name) else None


class HeadedReader:
    """``parse`` turns the header into name and id; the arguments are one JSON value.

    ``marker_data``: a marker inside a string of the arguments is data (else it ends the call there too).
    """

    __slots__ = ("_parse", "_value", "_marker_data", "done", "failed")

    def __init__(self, parse: ParseHead = plain_name, marker_data: bool = True) -> None:
        self._parse = parse
        self._marker_data = marker_data
        self._value = ValueReader()
        self.done = False
        self.failed = False

    def head(self, head: str, calls: Calls) -> None:
        parsed = self._parse(head)
        if parsed is None or not calls.begin(*parsed):
            self.failed = True

    def text(self, text: str, calls: Calls) -> int:
        if self.failed:
            return 0
        used = self._value.text(text, calls)
        self.done = self._value.done
        return used

    def marker(self, marker: str, calls: Calls) -> bool:
        if self.failed or not self._marker_data:
            return False
        taken = self._value.marker(marker, calls)
        self.done = self._value.done
        return taken

    def finish(self, calls: Calls) -> None:
        if self.failed:
            return
        self._value.finish(calls)
        self.done = True

    def save(self) -> Any:
        return [self.failed, self._value.save()]

    def load(self, state: Any) -> None:
        self.failed, value = state
        self._value.load(value)


class FencedReader(HeadedReader):
    """DeepSeek V3: the header is the word ``function``; the name is the first line behind it, then a fence.

    Any other header is the name itself (V3.1), so that one reader serves both.
    """

    __slots__ = ("_line", "_fenced")

    def __init__(self) -> None:
        super().__init__()
        self._line = ""
        self._fenced = 0  # 1: the name's line is being read, 2: the fence

    def head(self, head: str, calls: Calls) -> None:
        if head.strip() == "function":
            self._fenced = 1
        else:
            super().head(head, calls)

    def text(self, text: str, calls: Calls) -> int:
        at = 0
        if self._fenced == 1:
            line = self._line + text
            end = line.find("\n")
            if end < 0:
                self._line = line
                self.failed = len(line) > NAME_LIMIT
                return len(text)
            at = end + 1 - len(self._line)
            self._line = ""
            super().head(line[:end], calls)
            self._fenced = 2
        if self._fenced == 2 and not self.failed:
            begin = min((i for i in (text.find("{", at), text.find("[", at)) if i >= 0), default=-1)
            if begin < 0:
                return len(text)
            at = begin
            self._fenced = 0
        return at + super().text(text[at:], calls)

    def marker(self, marker: str, calls: Calls) -> bool:
        return False if self._fenced else super().marker(marker, calls)

    def finish(self, calls: Calls) -> None:
        if self._fenced == 1:
            self.failed = True
            return
        super().finish(calls)

    def save(self) -> Any:
        return [super().save(), self._line, self._fenced]

    def load(self, state: Any) -> None:
        value, self._line, self._fenced = state
        super().load(value)
