"""The decode window of vLLM's plain derender path: ``prev_tokens``, ``prefix_offset``, ``read_offset``.

vLLM decodes a few trailing token strings twice and sends the difference; between calls the client carries them. What
they say is no more than which bytes of a character are pending, so a window can be written for our detokenizer's
state, and its state read out of a window. ``tokens[:read]`` have been sent, ``tokens[read:]`` are pending; the
prefix offset is always 0, as vLLM leaves it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from proxy.derender.vocabulary import Vocabulary

# A character has at most four bytes; more tokens without an end than this are not one.
PATIENCE = 8
# vLLM primes a window with so many tokens of the prompt (INITIAL_INCREMENTAL_DETOKENIZATION_OFFSET).
PRIMED = 5


def unfinished(vocabulary: Vocabulary, ids: Sequence[int]) -> int:
    """How many of the last ids end in the middle of a character, so that vLLM says nothing of them yet.

    A token may hold the end of one character and the beginning of the next, or a space and half a character: vLLM
    knows whole tokens only. 0 for vocabularies that are no table of bytes, whose detokenizer waits by itself.
    """
    texts = vocabulary.texts
    if not ids or vocabulary.decode is not None:
        return 0
    last = ids[-1]
    if last >= len(texts) or texts[last] is not None:
        return 0
    start = len(ids) - 1
    while start and len(ids) - start <= PATIENCE and texts[ids[start - 1]] is None:
        start -= 1
    data, begin = b"", start
    for n in range(start, len(ids)):
        data += vocabulary.piece(ids[n])
        if utf_8_decode(data, "replace", False)[1] == len(data):
            data, begin = b"", n + 1
    return len(ids) - begin if len(ids) - begin <= PATIENCE else 0


class Window:
    """Follows a stream id by id. ``pending``: the bytes of the unfinished character."""

    __slots__ = ("_vocabulary", "_skip", "tokens", "read", "pending")

    def __init__(self, vocabulary: Vocabulary, skip_special: bool, prompt_ids: Sequence[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special
        self.tokens: list[str] = []
        self.read = 0
        self.pending = b""
        if prompt_ids:
            tail = [i for i in prompt_ids[-PRIMED - 2 :] if not (skip_special and i in vocabulary.special)]
            self.tokens = [vocabulary.spell(vocabulary.piece(i)) for i in tail[-PRIMED:]]
            self.read = len(self.tokens)

    @classmethod
    def carried(cls, vocabulary: Vocabulary, skip_special: bool, tokens: list[str], prefix: int, read: int) -> Window:
        """The window that a client carries; the offsets have been checked."""
        window = cls(vocabulary, skip_special)
        window.tokens = tokens[min(prefix, read) :]
        window.read = read - min(prefix, read)
        window.pending = b"".join([vocabulary.token_bytes(token) for token in window.tokens[window.read :]])
        return window

    def push(self, ids: Sequence[int]) -> None:
        """Take the ids of a chunk, without the token that ended generation."""
        vocabulary = self._vocabulary
        for token_id in ids:
            if token_id in vocabulary.special:
                # it is no part of a character: what was pending has been sent as U+FFFD
                self.read, self.pending = len(self.tokens), b""
                if self._skip:
                    continue
            piece = vocabulary.piece(token_id)
            if not piece:
                continue
            data = self.pending + piece
            text, used = utf_8_decode(data, "replace", False)
            group = [*self.tokens[self.read :], vocabulary.spell(piece)]
            if text and used == len(data):
                self.tokens, self.read, self.pending = group, len(group), b""
            elif len(group) <= PATIENCE:
                self.tokens = [*self.tokens[: self.read], *group]
                self.pending = data
            else:  # half of what these tokens say has been sent: vLLM knows whole tokens only, so two are made of it
                self.pending = data[used:]
                self.tokens, self.read = [vocabulary.spell(data[:used]), vocabulary.spell(self.pending)], 1
