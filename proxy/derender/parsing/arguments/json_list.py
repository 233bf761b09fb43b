"""Calls written as a JSON array of objects, and the plain JSON that a forced tool choice produces."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.json_value import ValueReader, not_space
from proxy.derender.parsing.model import Calls, Reader

_OPEN, _ITEM, _IN_ITEM, _NEXT = range(4)


class ListReader:
    """``[{"name": ..., "arguments": ...}, ...]``: one call after the other.

    ``item``: what reads one object of the list, where it is written in another way. ``label``: a word that may
    stand in front of the list.
    """

    __slots__ = ("_at", "_item", "_any", "_make", "_label", "_labelled", "done", "failed")

    def __init__(
        self, needs_arguments: bool = False, item: Callable[[], Reader] | None = None, label: str = ""
    ) -> None:
        self._at = _OPEN
        self._label = label
        self._labelled = 0  # characters of the label that were read
        self._item: Reader | None = None
        self._any = False  # a call has begun: what follows cannot be undone
        self._make: Callable[[], Reader] = item or partial(CallReader, needs_arguments=needs_arguments)
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        at = 0
        while at < len(text) and not (self.done or self.failed):
            if self._item is not None:
                at += self._item.text(text[at:] if at else text, calls)
                self._settle()
                continue
            match = not_space(text, at)
            if match is None:
                return len(text)
            at, char = match.start(), match.group()
            if self._at == _OPEN and char == "[" and self._labelled in (0, len(self._label)):
                self._at = _ITEM
                at += 1
            elif self._at == _OPEN and self._label.startswith(char, self._labelled):
                self._labelled += 1
                at += 1
            elif self._at == _ITEM and char == "{":
                self._item = self._make()
                if self._any:
                    calls.further()
                    return at
            elif self._at == _NEXT and char == ",":
                self._at = _ITEM
                at += 1
            elif char == "]" and self._at in (_ITEM, _NEXT):
                self.done = self._any
                self.failed = not self._any
                at += 1
            else:
                self.failed = True
        return at

    def _settle(self) -> None:
        item = self._item
        assert item is not None
        if item.done:
            self._item = None
            self._any = True
            self._at = _NEXT
        if item.failed:
            self.failed = True

    def marker(self, marker: str, calls: Calls) -> bool:
        if self._item is None:
            return False
        taken = self._item.marker(marker, calls)
        self._settle()
        return taken

    def finish(self, calls: Calls) -> None:
        if self._item is not None:
            self._item.finish(calls)
            self._settle()
        if not self._any:
            self.failed = True
        self.done = True

    def save(self) -> list[Any]:
        return [self._at, self._any, self._labelled, None if self._item is None else self._item.save()]

    def load(self, state: Any) -> None:
        self._at, self._any, self._labelled, item = state
        if item is not None:
            self._item = self._make()
            self._item.load(item)


_wrapper = re.compile(
    r"""\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:parameters|arguments)"\s*:""",
)
# what may still become a wrapper: each part optional, but only once all before it is there
_wrapper_start = re.compile(
    r"""\{\s*(?:"(?:n(?:a(?:m(?:e(?:"\s*(?::\s*(?:"[^"\\]*(?:"\s*(?:,\s*(?:"[a-z]*"?\s*)?)?)?)?)?)?)?)?)?)?)?\Z""",
)


class NamedReader:
    """The call of a named tool choice: its arguments alone, or wrapped with the name as in ``CallReader``.

    ``calls.named`` is the tool. The first few tokens decide, so arguments stream all the same.
    """

    __slots__ = ("_probe", "_inner", "_wrapped", "done", "failed")

    def __init__(self) -> None:
        self._probe = ""
        self._inner: Reader | None = None
        self._wrapped = False
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        if self._inner is not None:
            used = self._inner.text(text, calls)
            self.done = self._inner.done
            self.failed = self._inner.failed
            return used
        probe = self._probe + text
        match = _wrapper.match(probe)
        if match is None and _wrapper_start.match(probe) and len(probe) <= 4096:
            self._probe = probe
            return len(text)
        self._probe = ""
        self._decide(match is not None and match["name"] == calls.named, calls)
        return max(0, self.text(probe, calls) - (len(probe) - len(text)))

    def _decide(self, wrapped: bool, calls: Calls) -> None:
        self._wrapped = wrapped
        if wrapped:
            self._inner = CallReader(needs_arguments=True)
            return
        calls.begin(calls.named)
        self._inner = ValueReader()

    def marker(self, marker: str, calls: Calls) -> bool:
        if self._inner is None:
            self._flush(calls)
        assert self._inner is not None
        taken = self._inner.marker(marker, calls)
        self.done = self._inner.done
        self.failed = self._inner.failed
        return taken

    def _flush(self, calls: Calls) -> None:
        probe, self._probe = self._probe, ""
        self._decide(False, calls)
        self.text(probe, calls)

    def finish(self, calls: Calls) -> None:
        if self._inner is None:
            self._flush(calls)
        assert self._inner is not None
        if not self._inner.done:
            self._inner.finish(calls)
        self.done = True

    def save(self) -> list[Any]:
        return [self._probe, self._wrapped, None if self._inner is None else self._inner.save()]

    def load(self, state: Any) -> None:
        self._probe, self._wrapped, inner = state
        if inner is not None:
            self._inner = CallReader(needs_arguments=True) if self._wrapped else ValueReader()
            self._inner.load(inner)
