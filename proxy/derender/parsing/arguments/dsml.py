"""Calls in DeepSeek's DSML: ``invoke`` elements with named ``parameter`` elements.

A parameter says itself whether it is text: ``string="true"`` is raw text without escaping, whitespace
included, and is sent as it comes; ``string="false"`` is JSON and is sent when it is complete. Nothing is
escaped, so a value ends at the closing tag of a parameter and at nothing else. Without the attribute the
tool's schema decides; what is no JSON is text.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.schema import convert, is_verbatim, parameter_types, quote, quote_inner
from proxy.derender.parsing.model import Calls

NAME_LIMIT = 256
# A typed value is held until it is complete; a larger one is taken for a string.
VALUE_LIMIT = 1 << 20
# A tag that is longer is none.
TAG_LIMIT = 1024

_attribute = re.compile(r'([A-Za-z_]+)\s*=\s*"([^"]*)"')

# Where the reader stands.
_NAME, _NAME_END, _BETWEEN, _TAG, _VALUE = range(5)


class DsmlReader:
    """Reads one ``invoke``, whose name begins where the reader does. ``space``: what stands behind ``｜DSML｜``."""

    __slots__ = (
        "_open",
        "_shut",
        "_over",
        "_at",
        "_held",
        "_name",
        "_keys",
        "_types",
        "_string",
        "_skipped",
        "_value",
        "_size",
        "done",
        "failed",
    )

    def __init__(self, space: str = "") -> None:
        self._open = f"<｜DSML｜{space}parameter"
        self._shut = f"</｜DSML｜{space}parameter>"
        self._over = f"</｜DSML｜{space}invoke>"
        self._at = _NAME
        self._held = ""
        self._name = ""
        self._keys: list[str] = []
        self._types: tuple[str, ...] = ()
        self._string = False  # the value is being sent as it comes
        self._skipped = False  # a key that was there before: JSON has no use for it
        self._value: list[str] = []  # pieces of a typed value
        self._size = 0
        self.done = False
        self.failed = False

    # -- reading ---------------------------------------------------------------------------------------

    def text(self, text: str, calls: Calls) -> int:
        if self._at == _VALUE and not self._held and "<" not in text:
            self._data(text, calls)
            return len(text)
        rest = self._held + text
        self._held = ""
        while rest and not (self.done or self.failed):
            where = self._at
            if where == _VALUE:
                left = self._read_value(rest, calls)
            elif where == _BETWEEN:
                left = self._read_between(rest, calls)
            elif where == _TAG:
                left = self._read_tag(rest, calls)
            else:
                left = self._read_name(rest, calls)
            if left is None:
                return len(text)
            rest = left
        return len(text) - min(len(rest), len(text))

    def _read_name(self, text: str, calls: Calls) -> str | None:
        """The name up to its quote, then ``>`` or ``/>``. None: the text is held."""
        if self._at == _NAME:
            end = text.find('"')
            if end < 0:
                self.failed = len(text) > NAME_LIMIT or "\n" in text
                self._held = text
                return None
            self._name = text[:end].strip()
            self._at = _NAME_END
            text = text[end + 1 :]
        body = text.lstrip()
        if body in ("", "/"):
            self._held = body
            return None
        empty = body.startswith("/>")
        if not (empty or body.startswith(">")) or not self._name or not calls.begin(self._name):
            self.failed = True
            return text
        self._at = _BETWEEN
        if empty:
            self._end(calls, True)
        return body[2 if empty else 1 :]

    def _read_between(self, text: str, calls: Calls) -> str | None:
        """Whitespace (and noise, which is dropped) up to the next tag."""
        at = text.find("<")
        if at < 0:
            return ""
        body = text[at:]
        if body.startswith(self._over):
            self._end(calls, True)
            return body[len(self._over) :]
        if body.startswith(self._open):
            self._at = _TAG
            return body[len(self._open) :]
        if self._over.startswith(body) or self._open.startswith(body):
            self._held = body
            return None
        return body[1:]

    def _read_tag(self, text: str, calls: Calls) -> str | None:
        """The attributes of a parameter, up to ``>``."""
        end = text.find(">")
        if end < 0 and len(text) <= TAG_LIMIT:
            self._held = text
            return None
        attributes = dict(_attribute.findall(text[: end if end >= 0 else TAG_LIMIT]))
        self._key_begins(attributes.get("name", ""), attributes.get("string", ""), calls)
        return text[end + 1 :] if end >= 0 else text

    def _key_begins(self, key: str, string: str, calls: Calls) -> None:
        self._types = parameter_types(calls.schema(self._name), key) if string not in ("true", "false") else ()
        self._string = string == "true" or is_verbatim(self._types)
        self._skipped = not key or key in self._keys
        self._value = []
        self._size = 0
        self._at = _VALUE
        if not self._skipped:
            calls.arguments(("{" if not self._keys else ", ") + quote(key) + (': "' if self._string else ": "))
            self._keys.append(key)

    def _read_value(self, text: str, calls: Calls) -> str | None:
        end = text.find(self._shut)
        if end >= 0:
            self._data(text[:end], calls)
            self._value_ends(calls)
            return text[end + len(self._shut) :]
        keep = self._tail(text)
        self._data(text[:keep], calls)
        self._held = text[keep:]
        return None

    def _tail(self, text: str) -> int:
        """Where the longest tail begins that can still become the closing tag."""
        at = text.find("<", max(0, len(text) - len(self._shut) + 1))
        while at >= 0 and not self._shut.startswith(text[at:]):
            at = text.find("<", at + 1)
        return at if at >= 0 else len(text)

    def _data(self, text: str, calls: Calls) -> None:
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

    def _value_ends(self, calls: Calls) -> None:
        self._at = _BETWEEN
        if self._skipped:
            return
        calls.arguments('"' if self._string else convert("".join(self._value), self._types))
        self._value = []

    # -- beginning and end -----------------------------------------------------------------------------

    def _end(self, calls: Calls, closed: bool) -> None:
        calls.arguments("}" if self._keys else "{}")
        self.done = True
        calls.end(closed)

    def marker(self, marker: str, calls: Calls) -> bool:
        """Data inside a value, noise between values."""
        if self._at == _VALUE:
            held, self._held = self._held, ""
            self._data(held + marker, calls)
            return True
        return self._at == _BETWEEN

    def finish(self, calls: Calls) -> None:
        if self._at in (_NAME, _NAME_END):
            self.failed = True
            return
        # what is held may be half a tag: the arguments stay a prefix of what the model was writing
        self._held = ""
        self.done = True
        calls.end(False)

    # -- snapshots -------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        return [
            self._at,
            self._held,
            self._name,
            list(self._keys),
            list(self._types),
            self._string,
            self._skipped,
            "".join(self._value),
        ]

    def load(self, state: Any) -> None:
        self._at, self._held, self._name, keys, types, self._string, self._skipped, value = state
        self._keys = list(keys)
        self._types = tuple(types)
        self._value = [value] if value else []
        self._size = len(value)
