"""Writes the JSON object of a call whose keys and values arrive one by one, as raw text.

String values go out as they come; typed ones (see ``schema``) when they are complete, which is what is
buffered. A key that was there before is dropped with its value: what was sent cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy.derender.parsing.arguments.schema import convert, is_verbatim, quote, quote_inner
from proxy.derender.parsing.model import Calls

# A typed value is held until it is complete; a larger one is taken for a string.
VALUE_LIMIT = 1 << 20

# What a complete typed value becomes: its JSON text.
Convert = Callable[[str, tuple[str, ...]], str]


class ObjectWriter:
    """One object. ``open``: a value has begun. ``convert`` turns the text of a typed value into JSON."""

    __slots__ = ("_convert", "_keys", "_types", "_string", "_skipped", "_value", "_size", "open")

    def __init__(self, convert: Convert = convert) -> None:
        self._convert = convert
        self._keys: list[str] = []
        self._types: tuple[str, ...] = ()
        self._string = False  # the value is sent as it comes
        self._skipped = False
        self._value: list[str] = []
        self._size = 0
        self.open = False

    @property
    def empty(self) -> bool:
        return not self._keys

    def key(self, key: str, types: tuple[str, ...], calls: Calls) -> None:
        """A key, and the types that its value may have."""
        self.open = True
        self._types = types
        self._string = is_verbatim(types)
        self._skipped = key in self._keys
        self._value = []
        self._size = 0
        if not self._skipped:
            calls.arguments(("{" if not self._keys else ", ") + quote(key) + (': "' if self._string else ": "))
            self._keys.append(key)

    def drop(self) -> None:
        """A value without a usable key begins; it is dropped."""
        self.open = True
        self._skipped = True

    def data(self, text: str, calls: Calls) -> None:
        """A piece of the value."""
        if self._skipped or not text:
            return
        if self._string:
            calls.arguments(quote_inner(text))
            return
        self._value.append(text)
        self._size += len(text)
        if self._size > VALUE_LIMIT:
            self._string = True
            calls.arguments('"' + quote_inner("".join(self._value)))
            self._value = []

    def close(self, calls: Calls) -> None:
        """The value is complete."""
        self.open = False
        if self._skipped:
            return
        if self._string:
            calls.arguments('"')
        else:
            calls.arguments(self._convert("".join(self._value), self._types))
            self._value = []

    def end(self, calls: Calls, closed: bool) -> None:
        """The call is over; an object that is not ``closed`` stays the prefix that it is."""
        if closed:
            calls.arguments("}" if self._keys else "{}")
        calls.end(closed)

    def save(self) -> Any:
        return [list(self._keys), list(self._types), self._string, self._skipped, "".join(self._value), self.open]

    def load(self, state: Any) -> None:
        keys, types, self._string, self._skipped, value, self.open = state
        self._keys = list(keys)
        self._types = tuple(types)
        self._value = [value] if value else []
        self._size = len(value)
