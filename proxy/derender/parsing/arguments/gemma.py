"""Gemma 4's notation of a call: ``call:NAME{key:<|"|>text<|"|>,n:42,list:[1,{k:true}]}``.

Strings stand raw between two delimiters, keys are bare, everything else is a number, ``true``, ``false``, ``null``, a
list or an object. It is turned into JSON while it comes: a string as it grows, a bare word when it ends.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.derender.parsing.arguments.json_call import NAME_LIMIT
from proxy.derender.parsing.arguments.schema import convert, parameter_types, quote, quote_inner
from proxy.derender.parsing.model import Calls

QUOTE = '<|"|>'

# A key, or a word outside of quotes, that is longer is noise.
WORD_LIMIT = 4096
# More levels are no arguments.
DEPTH_LIMIT = 128

_word_end = re.compile(r"[,}\])]").search
_key_end = re.compile(r"[:}]").search
_SPACE = " \t\r\n"

_NAME, _KEY, _KEY_QUOTED, _COLON, _VALUE, _STRING, _WORD, _NEXT = range(8)


class GemmaReader:
    """Reads one call. The whole is malformed where a bracket closes what is not open, or a key has no value.

    ``delimiter``: what stands around strings.
    """

    __slots__ = (
        "_delimiter",
        "_at",
        "_word",
        "_name",
        "_key",
        "_round",
        "_stack",
        "_keys",
        "_muted",
        "_sound",
        "done",
        "failed",
    )

    def __init__(self, delimiter: str = QUOTE) -> None:
        self._delimiter = delimiter
        self._at = _NAME
        self._word = ""  # the name, key or bare word that is being read
        self._name = ""
        self._key = ""  # the key of the outermost value
        self._round = False  # opened by ( instead of {
        self._stack: list[str] = []  # the brackets that are open
        self._keys: list[list[str]] = []  # the keys that each of them has so far
        self._muted = 0  # the depth at which a repeated key stands: its value is dropped
        self._sound = True
        self.done = False
        self.failed = False

    # -- reading ---------------------------------------------------------------------------------------

    def text(self, text: str, calls: Calls) -> int:
        if self._at == _STRING:
            self._emit(quote_inner(text), calls)
            return len(text)
        at = 0
        while at < len(text) and not (self.done or self.failed):
            where = self._at
            if where == _STRING or where == _KEY_QUOTED:
                self._quoted(text[at:], calls)
                return len(text)
            if where == _NAME:
                at = self._read_name(text, at, calls)
            elif where == _KEY:
                at = self._read_key(text, at, calls)
            elif where == _WORD:
                at = self._read_word(text, at, calls)
            else:
                at = self._structure(text, at, calls)
        return at

    def _quoted(self, text: str, calls: Calls) -> None:
        if self._at == _STRING:
            self._emit(quote_inner(text), calls)
        else:
            self._word += text

    def _read_name(self, text: str, at: int, calls: Calls) -> int:
        ends = [i for i in (text.find("{", at), text.find("(", at)) if i >= 0]
        if not ends:
            self._word += text[at:]
            head = self._word.lstrip()
            self.failed = len(head) > NAME_LIMIT or not (
                "call:".startswith(head[:5]) or head.startswith(("call:", ":"))
            )
            return len(text)
        end = min(ends)
        head = (self._word + text[at:end]).lstrip()
        if len(head) > NAME_LIMIT:
            self.failed = True
            return at
        head = head.rstrip()
        name = head.removeprefix("call").removeprefix(":").strip()
        if not head.startswith(("call:", ":")) or not name or len(name.split()) > 1 or not calls.begin(name):
            self.failed = True
            return at
        self._name, self._word = name, ""
        self._round = text[end] == "("
        self._push("{", calls)
        return end + 1

    def _read_key(self, text: str, at: int, calls: Calls) -> int:
        if not self._word:
            while at < len(text) and text[at] in _SPACE + ",":
                at += 1
            if at < len(text) and self._round and text[at] == ")" and len(self._stack) == 1:
                self._pop("}", calls)
                return at + 1
        match = _key_end(text, at)
        if match is None:
            self._word += text[at:]
            self._sound = self._sound and len(self._word) <= WORD_LIMIT
            self._word = self._word[:WORD_LIMIT]
            return len(text)
        key = self._word + text[at : match.start()]
        self._sound = self._sound and len(key) <= WORD_LIMIT
        key, self._word = key[:WORD_LIMIT].strip(), ""
        if match.group() == "}":
            self._sound = self._sound and not key
            self._pop("}", calls)
        else:
            self._key_ends(key, calls)
        return match.end()

    def _key_ends(self, key: str, calls: Calls) -> None:
        keys = self._keys[-1]
        depth = len(self._stack)
        if depth == 1:
            self._key = key
        if key in keys and not self._muted:
            self._muted = depth
        self._emit((", " if keys else "") + quote(key) + ": ", calls)
        if not self._muted:
            keys.append(key)
        self._at = _VALUE

    def _read_word(self, text: str, at: int, calls: Calls) -> int:
        match = _word_end(text, at)
        while match is not None and match.group() == ")" and not (self._round and len(self._stack) == 1):
            match = _word_end(text, match.end())
        end = match.start() if match is not None else len(text)
        self._word += text[at:end]
        if len(self._word) > WORD_LIMIT:
            self._sound = False
            self._word = self._word[:WORD_LIMIT]
        if match is not None:
            self._word_ends(calls)
        return end

    def _word_ends(self, calls: Calls) -> None:
        word, self._word = self._word.strip(), ""
        types = parameter_types(calls.schema(self._name), self._key) if len(self._stack) == 1 else ()
        # what it is says the word itself, unless the schema wants text
        self._emit(convert(word, types if "string" in types else ()), calls)
        self._value_ends()

    def _structure(self, text: str, at: int, calls: Calls) -> int:
        """In front of a value, or behind it."""
        char = text[at]
        if char in _SPACE:
            return at + 1
        if self._at == _COLON:
            self._at = _VALUE if char == ":" else _COLON
            self._sound = self._sound and char == ":"
        elif char in "}])" and (char != ")" or (self._round and len(self._stack) == 1)):
            if self._at == _VALUE and self._stack[-1] == "{":  # a key without a value
                self._emit('""', calls)
                self._sound = False
            self._pop("}" if char == ")" else char, calls)
        elif self._at == _NEXT:
            if char == ",":
                self._at = _KEY if self._stack[-1] == "{" else _VALUE
            # anything else is noise
        elif char in "{[":
            self._item(calls)
            self._push(char, calls)
        elif char != ",":
            self._item(calls)
            self._at = _WORD
            return at
        return at + 1

    def _item(self, calls: Calls) -> None:
        """An element of a list begins."""
        if self._stack[-1] == "[":
            if self._keys[-1]:
                self._emit(", ", calls)
            elif not self._muted:
                self._keys[-1].append("")

    def _push(self, bracket: str, calls: Calls) -> None:
        if len(self._stack) >= DEPTH_LIMIT:
            self.finish(calls)
            return
        self._stack.append(bracket)
        self._keys.append([])
        self._at = _KEY if bracket == "{" else _VALUE
        self._emit(bracket, calls)

    def _pop(self, bracket: str, calls: Calls) -> None:
        self._keys.pop()
        closes = "}" if self._stack.pop() == "{" else "]"
        self._sound = self._sound and closes == bracket
        self._emit(closes, calls)
        self._value_ends()
        if not self._stack:
            self.done = True
            calls.end(self._sound)

    def _value_ends(self) -> None:
        if self._muted == len(self._stack):
            self._muted = 0
        self._at = _NEXT

    def _emit(self, text: str, calls: Calls) -> None:
        if not self._muted and text:
            calls.arguments(text)

    # -- markers and end -------------------------------------------------------------------------------

    def marker(self, marker: str, calls: Calls) -> bool:
        where = self._at
        if marker != self._delimiter:
            if where in (_STRING, _KEY_QUOTED):
                self._quoted(marker, calls)
                return True
            return False
        if where == _STRING:
            self._emit('"', calls)
            self._value_ends()
        elif where == _KEY_QUOTED:
            word, self._word = self._word, ""
            self._key_ends(word, calls)
            self._at = _COLON
        elif where == _KEY:
            self._word = ""
            self._at = _KEY_QUOTED
        elif where == _VALUE:
            self._item(calls)
            self._emit('"', calls)
            self._at = _STRING
        elif where == _NAME:
            return False
        else:
            self._sound = False
        return True

    def finish(self, calls: Calls) -> None:
        if not self._name:
            self.failed = True
            return
        self.done = True
        calls.end(False)

    def save(self) -> Any:
        keys = [list(keys) for keys in self._keys]
        return [
            self._at, self._word, self._name, self._key, self._round, list(self._stack), keys, self._muted, self._sound
        ]  # fmt: skip

    def load(self, state: Any) -> None:
        self._at, self._word, self._name, self._key, self._round, stack, keys, self._muted, self._sound = state
        self._stack = list(stack)
        self._keys = [list(item) for item in keys]
