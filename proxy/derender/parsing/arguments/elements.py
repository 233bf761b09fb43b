"""Calls of MiniMax M3: every parameter is an element of its own name, and elements may nest.

The reader gets the call's own tag as its header and reads what stands inside, each tag behind the family's
marker (``]<]minimax[>[``) ::

    <user_id>42 </user_id> <items> <item> <sku>book-001 </sku> </item> </items> </invoke>

Nothing is escaped: what is not behind a marker is data. An element with elements inside is an object, or a list where
the tool's schema says so. A string parameter is sent as it comes, any other when its element closes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from proxy.derender.parsing.arguments.schema import convert, is_verbatim, parameter_types, types_of
from proxy.derender.parsing.arguments.writer import VALUE_LIMIT, ObjectWriter
from proxy.derender.parsing.model import Calls

TAG_LIMIT = 1024
DEPTH_LIMIT = 64

_name = re.compile(r"""invoke\s+name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^>\s]+))""").search

_OUTSIDE, _TAG, _VALUE = range(3)

# An element: its name, the pieces of its text, the elements in it.
Element = list[Any]


class ElementReader:
    """Reads one call behind its opening tag. ``marker``: what stands in front of every tag."""

    __slots__ = ("_marker", "_at", "_tag", "_name", "_stack", "_streams", "_size", "_writer", "done", "failed")

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._at = _OUTSIDE
        self._tag = ""
        self._name = ""
        self._stack: list[Element] = []  # the elements that are open
        self._streams = False  # the outermost is a string
        self._size = 0
        self._writer = ObjectWriter(convert=lambda text, types: text)
        self.done = False
        self.failed = False

    def head(self, head: str, calls: Calls) -> None:
        match = _name(head)
        name = next((part for part in match.groups() if part), "").strip() if match else ""
        if name and calls.begin(name):
            self._name = name
        else:
            self.failed = True

    def text(self, text: str, calls: Calls) -> int:
        if self.failed:
            return 0
        if self._at != _TAG:
            self._data(text, calls)
            return len(text)
        self._tag += text
        end = self._tag.find(">")
        if end < 0 and len(self._tag) <= TAG_LIMIT:
            return len(text)
        tag, rest = self._tag[: end + 1], self._tag[end + 1 :]
        if not 0 <= end <= TAG_LIMIT:  # it was none
            tag, self._tag = self._tag, ""
            self._at = _VALUE if self._stack else _OUTSIDE
            self._data(self._marker + tag, calls)
            return len(text)
        self._tag = ""
        self._tag_ends(tag, calls)
        if self.done:
            return len(text) - len(rest)
        if rest:
            self._data(rest, calls)
        return len(text)

    def _data(self, text: str, calls: Calls) -> None:
        if not self._stack:
            return
        if self._streams:
            self._writer.data(text, calls)
            return
        self._stack[-1][1].append(text)
        self._size += len(text)
        if self._size > VALUE_LIMIT:
            self._over(calls, False)

    def _tag_ends(self, tag: str, calls: Calls) -> None:
        """A whole tag, with its brackets."""
        self._at = _VALUE if self._stack else _OUTSIDE
        name = tag[1:-1]
        if self._streams and name != "/" + self._stack[0][0]:
            # inside a string only its own closing tag counts
            self._data(self._marker + tag, calls)
        elif name == "/invoke" and not self._stack:
            self._over(calls, True)
        elif name in ("/invoke", "/tool_call"):
            self._over(calls, False)
        elif not tag.startswith("<") or not name.strip("/ \n"):
            self._data(self._marker + tag, calls)
        elif name.startswith("/"):
            self._close(name[1:], calls)
        else:
            self._open(name, calls)

    def _open(self, name: str, calls: Calls) -> None:
        if len(self._stack) >= DEPTH_LIMIT:
            self._over(calls, False)
            return
        element: Element = [name, [], []]
        if self._stack:
            self._stack[-1][2].append(element)
        else:
            types = parameter_types(calls.schema(self._name), name)
            self._streams = is_verbatim(types)
            self._writer.key(name, types if self._streams else (), calls)
            self._size = 0
        self._stack.append(element)
        self._at = _VALUE

    def _close(self, name: str, calls: Calls) -> None:
        if not self._stack or self._stack[-1][0] != name:
            return  # it closes nothing
        element = self._stack.pop()
        if self._stack:
            return
        self._at = _OUTSIDE
        if not self._streams:
            schema = calls.schema(self._name)
            properties = schema.get("properties")
            of = properties.get(name) if isinstance(properties, Mapping) else None
            self._writer.data(json_of(element, of if isinstance(of, Mapping) else {}, schema), calls)
        self._streams = False
        self._writer.close(calls)

    def marker(self, marker: str, calls: Calls) -> bool:
        if self.failed:
            return False
        if marker != self._marker:
            if self._at == _VALUE:
                self._data(marker, calls)
            return self._at == _VALUE
        if self._at == _TAG:
            tag, self._tag = self._tag, ""
            self._data(self._marker + tag, calls)
        self._tag = ""
        self._at = _TAG
        return True

    def _over(self, calls: Calls, closed: bool) -> None:
        self.done = True
        self._writer.end(calls, closed)

    def finish(self, calls: Calls) -> None:
        if not self._name:
            self.failed = True
            return
        self._over(calls, False)

    def save(self) -> Any:
        return [self._at, self._tag, self._name, _copy(self._stack[:1]), len(self._stack), self._streams, self._size,
                self._writer.save()]  # fmt: skip

    def load(self, state: Any) -> None:
        self._at, self._tag, self._name, outermost, depth, self._streams, self._size, writer = state
        self._stack = _copy(outermost)
        while len(self._stack) < depth:  # each open element is the last one of the one around it
            self._stack.append(self._stack[-1][2][-1])
        self.failed = not self._name
        self._writer.load(writer)


def _copy(elements: Any) -> list[Element]:
    return [[name, ["".join(text)], _copy(inner)] for name, text, inner in elements]


def json_of(element: Element, schema: Mapping[str, object], root: Mapping[str, object]) -> str:
    """The JSON text of a complete element."""
    _, parts, inner = element
    text = "".join(parts)
    types = types_of(schema, root)
    if not inner:
        if not text.strip() and "string" not in types and ("array" in types or "object" in types):
            return "[]" if "array" in types else "{}"
        return convert(text, types or ("string",))
    if "array" in types:
        return "[" + ", ".join(json_of(item, _part(schema, "items"), root) for item in inner) + "]"
    found: dict[str, list[str]] = {}
    properties = _part(schema, "properties")
    for item in inner:
        found.setdefault(item[0], []).append(json_of(item, _part(properties, item[0]), root))
    pairs = [(key, values[0] if len(values) == 1 else "[" + ", ".join(values) + "]") for key, values in found.items()]
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in pairs) + "}"


def _part(schema: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = schema.get(key)
    return found if isinstance(found, Mapping) else {}
