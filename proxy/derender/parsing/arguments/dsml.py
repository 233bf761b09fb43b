"""Calls in DeepSeek's DSML: ``invoke`` elements with named ``parameter`` elements.

A parameter says itself whether it is text: ``string="true"`` is raw text without escaping, whitespace
included, and is sent as it comes; ``string="false"`` is JSON and is sent when it is complete. Nothing is
escaped, so a value ends at the closing tag of a parameter and at nothing else. Without the attribute the
tool's schema decides; what is no JSON is text.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.schema import parameter_types
from proxy.derender.parsing.arguments.writer import ObjectWriter
from proxy.derender.parsing.model import Calls

NAME_LIMIT = 256
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
        "_object",
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
        self._object = ObjectWriter()
        self.done = False
        self.failed = False

    # -- reading ---------------------------------------------------------------------------------------

    def text(self, text: str, calls: Calls) -> int:
        if self._at == _VALUE and not self._held and "<" not in text:
            self._object.data(text, calls)
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
        self._at = _VALUE
        if not key:
            self._object.drop()
        elif string == "true":
            self._object.key(key, ("string",), calls)
        else:
            types = () if string == "false" else parameter_types(calls.schema(self._name), key)
            self._object.key(key, types, calls)

    def _read_value(self, text: str, calls: Calls) -> str | None:
        end = text.find(self._shut)
        if end >= 0:
            self._object.data(text[:end], calls)
            self._object.close(calls)
            self._at = _BETWEEN
            return text[end + len(self._shut) :]
        keep = self._tail(text)
        self._object.data(text[:keep], calls)
        self._held = text[keep:]
        return None

    def _tail(self, text: str) -> int:
        """Where the longest tail begins that can still become the closing tag."""
        at = text.find("<", max(0, len(text) - len(self._shut) + 1))
        while at >= 0 and not self._shut.startswith(text[at:]):
            at = text.find("<", at + 1)
        return at if at >= 0 else len(text)

    # -- beginning and end -----------------------------------------------------------------------------

    def _end(self, calls: Calls, closed: bool) -> None:
        self.done = True
        self._object.end(calls, closed)

    def marker(self, marker: str, calls: Calls) -> bool:
        """Data inside a value, noise between values."""
        if self._at == _VALUE:
            held, self._held = self._held, ""
            self._object.data(held + marker, calls)
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
        return [self._at, self._held, self._name, self._object.save(), self.failed]

    def load(self, state: Any) -> None:
        self._at, self._held, self._name, written, self.failed = state
        self._object.load(written)
