"""Incremental detokenizing: ids in, text out, linear in the ids and never a half character.

Two implementations of one small interface. ``ByteDetokenizer`` looks bytes up in a table; its whole
state is the bytes of an unfinished character (at most three). ``WindowDetokenizer`` is for tokenizers
that only offer ``decode``: it decodes a short window twice and emits the difference, and gives up
waiting for a character after a bounded number of ids.

Bytes that can never become a character are replaced by U+FFFD as soon as that is certain (one for each
maximal subpart, as WHATWG and Rust's lossy decoding do); a character that is unfinished when the stream
ends is dropped, since no token stands for a replacement character that the model did not write.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Any, Protocol

from proxy.derender.vocabulary import Vocabulary

# A character has at most four bytes; more undecidable ids than this are not one character.
_WINDOW_PATIENCE = 8
_WINDOW_CONTEXT = 6


class Detokenizer(Protocol):
    idle: bool  # nothing is pending: the text of an id is that of the vocabulary's table

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""

    def break_off(self) -> str:
        """An id that is not text follows: what is pending can no longer become a character."""

    def resume(self, pending: bytes) -> None:
        """Text has come before, of which ``pending`` is the unfinished character."""

    def save(self) -> Any: ...

    def load(self, state: Any) -> None: ...


class ByteDetokenizer:
    """For vocabularies with a table of bytes. ``pending``: bytes of an unfinished character."""

    __slots__ = ("_pieces", "_texts", "_strip", "idle", "pending")

    def __init__(self, vocabulary: Vocabulary, has_context: bool) -> None:
        self._pieces = vocabulary.pieces
        self._texts = vocabulary.texts
        self._strip = vocabulary.strips_first_space and not has_context
        self.idle = not self._strip
        self.pending = b""

    def push(self, ids: Sequence[int]) -> str:
        if self.idle and len(ids) == 1:
            token_id = ids[0]
            text = self._texts[token_id] if token_id < len(self._texts) else ""
            if text is not None:
                return text
        pieces = self._pieces
        try:
            data = self.pending + b"".join([pieces[token_id] for token_id in ids])
        except IndexError:  # an id that no table has says nothing
            data = self.pending + b"".join([pieces[i] for i in ids if 0 <= i < len(pieces)])
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        text, used = utf_8_decode(data, "replace", False)
        self.pending = data[used:]
        self.idle = not (self.pending or self._strip)
        return text

    def break_off(self) -> str:
        if not self.pending:
            return ""
        text = self.pending.decode(errors="replace")
        self.pending = b""
        self.idle = not self._strip
        return text

    def resume(self, pending: bytes) -> None:
        self.pending = pending
        self._strip = False
        self.idle = not pending

    def save(self) -> Any:
        return [self.pending, self._strip]

    def load(self, state: Any) -> None:
        self.pending, self._strip = state
        self.idle = not (self.pending or self._strip)


class WindowDetokenizer:
    """For tokenizers known only by ``decode``; primed with the last ids of the prompt."""

    __slots__ = ("_decode", "_ids", "_read", "idle")

    def __init__(self, vocabulary: Vocabulary, prompt_ids: Sequence[int]) -> None:
        assert vocabulary.decode is not None
        self._decode = vocabulary.decode
        self.idle = False
        self._ids = list(prompt_ids[-_WINDOW_CONTEXT:])
        self._read = len(self._ids)

    def push(self, ids: Sequence[int]) -> str:
        # id by id: what is emitted after n ids must not depend on how they were cut
        return "".join([self._push(token_id) for token_id in ids])

    def _push(self, token_id: int) -> str:
        self._ids.append(token_id)
        before = self._decode(self._ids[: self._read]) if self._read else ""
        whole = self._decode(self._ids)
        waiting = len(self._ids) - self._read
        if whole.endswith("\ufffd") and waiting < _WINDOW_PATIENCE:
            return ""
        text = whole[len(before) :] if whole.startswith(before) else self._decode(self._ids[self._read :])
        keep = self._ids[self._read :][-_WINDOW_CONTEXT:]
        self._ids, self._read = keep, len(keep)
        return text

    def break_off(self) -> str:
        if len(self._ids) == self._read:
            return ""
        before = self._decode(self._ids[: self._read]) if self._read else ""
        text = self._decode(self._ids)[len(before) :]
        self._read = len(self._ids)
        return text

    def resume(self, pending: bytes) -> None:
        """Its context is ids, which nobody carries as bytes: it begins anew."""
        self._ids, self._read = [], 0

    def save(self) -> Any:
        return [self._ids, self._read]

    def load(self, state: Any) -> None:
        ids, self._read = state
        self._ids = list(ids)


def detokenizer(vocabulary: Vocabulary, prompt_ids: Sequence[int] = ()) -> Detokenizer:
    """A detokenizer for one stream whose prompt ends with ``prompt_ids`` (empty: no context)."""
    if vocabulary.decode is not None:
        return WindowDetokenizer(vocabulary, prompt_ids)
    return ByteDetokenizer(vocabulary, bool(prompt_ids))
