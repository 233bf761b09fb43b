"""A call written as one JSON object: ``{"name": ..., "arguments": {...}}``.

Keys may come in any order and others are ignored; only the top level counts, since arguments may well have
a key ``name`` of their own.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.derender.parsing.arguments.json_value import ValueReader, ValueScanner, not_space, string_end
from proxy.derender.parsing.model import Calls

# A tool's name is at most 64 characters at OpenAI; anything much longer is no name.
NAME_LIMIT = 256
# Keys that some models write in front of the name.
_EXTRA_KEYS = ("type", "id")
# Arguments that stand before the name have to wait for it.
BUFFER_LIMIT = 1 << 20


class _Buffer:
    """Stands in for ``Calls`` while the name of the call is not known yet."""

    __slots__ = ("parts", "size")

    named = ""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0

    def begin(self, name: str, call_id: str = "") -> bool:
        return True

    def arguments(self, text: str) -> None:
        self.parts.append(text)
        self.size += len(text)

    def end(self, closed: bool, listed: bool = False) -> None:
        pass

    def end_list(self, closed: bool) -> None:
        pass

    def further(self) -> None:
        pass

    def schema(self, name: str) -> dict[str, object]:
        return {}


# Where the object reader stands.
_OPEN, _KEY, _KEY_TEXT, _COLON, _VALUE, _NAME, _ARGUMENTS, _SKIP, _NEXT, _ID = range(10)


class CallReader:
    """A call as one JSON object with a name and its arguments, in any order, other keys ignored.

    ``name_keys`` and ``argument_keys``: what the keys are called. ``id_keys``: keys in front of the name whose
    string is the call's id. ``needs_arguments``: the object is a call only once its arguments' key has been
    seen, and none the moment another key comes (for formats in which a plain JSON answer looks alike).
    The name is said when its string has closed; arguments stream from then on.
    """

    __slots__ = (
        "_name_keys",
        "_argument_keys",
        "_id_keys",
        "_needs_arguments",
        "_at",
        "_captured",
        "_escaped",
        "_name",
        "_id",
        "_begun",
        "_value",
        "_skip",
        "_buffer",
        "_has_arguments",
        "done",
        "failed",
    )

    def __init__(
        self,
        name_keys: tuple[str, ...] = ("name",),
        argument_keys: tuple[str, ...] = ("arguments", "parameters"),
        needs_arguments: bool = False,
        id_keys: tuple[str, ...] = (),
    ) -> None:
        self._name_keys = name_keys
        self._argument_keys = argument_keys
        self._id_keys = id_keys
        self._needs_arguments = needs_arguments
        self._at = _OPEN
        self._captured = ""  # the key or the name that is being read
        self._escaped = False
        self._name = ""
        self._id = ""
        self._begun = False
        self._value: ValueReader | None = None
        self._skip: ValueScanner | None = None
        self._buffer: _Buffer | None = None
        self._has_arguments = False
        self.done = False
        self.failed = False

    def text(self, text: str, calls: Calls) -> int:
        at = 0
        if self._at == _ARGUMENTS and self._begun:
            at = self._read_arguments(text, 0, calls)
        size = len(text)
        while at < size and not (self.done or self.failed):
            where = self._at
            if where == _ARGUMENTS:
                assert self._value is not None
                at = self._read_arguments(text, at, calls)
            elif where == _SKIP:
                assert self._skip is not None
                at = self._skip.scan(text, at)
                if self._skip.done:
                    self._skip = None
                    self._at = _NEXT
            elif where in (_KEY_TEXT, _NAME, _ID):
                at = self._read_string(text, at, calls)
            else:
                match = not_space(text, at)
                if match is None:
                    return size
                at = self._structure(match.group(), match.start(), calls)
        return at

    def _structure(self, char: str, at: int, calls: Calls) -> int:
        where = self._at
        if where == _OPEN and char == "{":
            self._at = _KEY
        elif where == _KEY and char == '"':
            self._at = _KEY_TEXT
            self._captured = ""
        elif where in (_KEY, _NEXT) and char == "}":
            self._close(calls)
        elif where == _NEXT and char == ",":
            self._at = _KEY
        elif where == _COLON and char == ":":
            self._at = _VALUE
        elif where == _VALUE:
            return self._value_begins(char, at, calls)
        else:
            self._fail(calls)
            return at
        return at + 1

    def _value_begins(self, char: str, at: int, calls: Calls) -> int:
        key = self._captured
        self._captured = ""
        if char in ",}]:":
            self._fail(calls)
        elif key in self._name_keys and not self._name:
            if char != '"':
                self._fail(calls)
                return at
            self._at = _NAME
            return at + 1
        elif key in self._id_keys and char == '"' and not self._begun:
            self._at = _ID
            return at + 1
        elif key in self._argument_keys and not self._has_arguments:
            self._has_arguments = True
            self._value = ValueReader(ends_call=False)
            self._at = _ARGUMENTS
            self._begin(calls)
        else:
            self._skip = ValueScanner()
            self._at = _SKIP
        return at

    def _begin(self, calls: Calls) -> None:
        """Say the name, if it is known and everything is there that makes this a call."""
        if self._begun or not self._name or (self._needs_arguments and not self._has_arguments):
            return
        if not calls.begin(self._name, self._id):
            self.failed = True
            return
        self._begun = True
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            for part in buffer.parts:
                calls.arguments(part)

    def _read_arguments(self, text: str, at: int, calls: Calls) -> int:
        value = self._value
        assert value is not None
        if self.failed:
            return at
        if not self._begun and self._buffer is None:
            self._buffer = _Buffer()
        used = value.text(text[at:] if at else text, calls if self._buffer is None else self._buffer)
        if value.failed or (self._buffer is not None and self._buffer.size > BUFFER_LIMIT):
            self._fail(calls)
        elif value.done:
            self._value = None
            self._at = _NEXT
        return at + used

    def _read_string(self, text: str, at: int, calls: Calls) -> int:
        """A key or the name: to the closing quote."""
        end, closed, self._escaped = string_end(text, at, self._escaped)
        self._captured += text[at : end - 1 if closed else end]
        if closed:
            self._string_ends(calls)
            return end
        if len(self._captured) > NAME_LIMIT:
            self._fail(calls)
        return end

    def _may_precede(self, key: str) -> bool:
        """Whether the key can stand in a call that is not named yet: the first other one tells a plain answer."""
        return key in (*self._name_keys, *self._argument_keys, *self._id_keys, *_EXTRA_KEYS)

    def _string_ends(self, calls: Calls) -> None:
        raw = self._captured
        if "\\" in raw:
            try:
                raw = json.loads(f'"{raw}"')
            except ValueError:
                self._fail(calls)
                return
        if self._at == _KEY_TEXT:
            if self._needs_arguments and not self._begun and not self._may_precede(raw):
                self._fail(calls)
                return
            self._captured = raw
            self._at = _COLON
            return
        self._captured = ""
        if self._at == _ID:
            self._id = raw
            self._at = _NEXT
            return
        self._at = _NEXT
        if not raw or len(raw) > NAME_LIMIT:
            self._fail(calls)
            return
        self._name = raw
        self._begin(calls)

    def _close(self, calls: Calls) -> None:
        if not self._begun:
            self._begin(calls)
        if not self._begun:
            self.failed = True
            return
        if not self._has_arguments:
            calls.arguments("{}")
        self.done = True
        calls.end(True)

    def _fail(self, calls: Calls) -> None:
        self.failed = True
        if self._begun:
            self.finish(calls)

    def marker(self, marker: str, calls: Calls) -> bool:
        if self._at == _ARGUMENTS:
            assert self._value is not None
            if self._value.in_string:
                self.text(marker, calls)
                return True
        elif self._at == _SKIP:
            assert self._skip is not None
            if self._skip.in_string:
                self.text(marker, calls)
                return True
        return False

    def finish(self, calls: Calls) -> None:
        if not self._begun:
            self.failed = True
            return
        closed = False
        if self._value is not None and self._at == _ARGUMENTS:
            self._value.finish(calls)
        elif not self._has_arguments:
            calls.arguments("{}")
        self.done = True
        calls.end(closed)

    def save(self) -> list[Any]:
        return [
            self._at,
            self._captured,
            self._escaped,
            self._name,
            self._id,
            self._begun,
            None if self._value is None else self._value.save(),
            None if self._skip is None else self._skip.save(),
            None if self._buffer is None else "".join(self._buffer.parts),
            self._has_arguments,
        ]

    def load(self, state: Any) -> None:
        (
            self._at,
            self._captured,
            self._escaped,
            self._name,
            self._id,
            self._begun,
            value,
            skip,
            buffer,
            self._has_arguments,
        ) = state
        if value is not None:
            self._value = ValueReader(ends_call=False)
            self._value.load(value)
        if skip is not None:
            self._skip = ValueScanner()
            self._skip.load(skip)
        if buffer is not None:
            self._buffer = _Buffer()
            self._buffer.arguments(buffer)
