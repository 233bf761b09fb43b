"""What a token id says: its bytes, its text, and whether it is special.

Byte-level BPE vocabularies (GPT-2 style, the bulk of today's checkpoints) and SentencePiece
vocabularies with byte fallback become a table of bytes per id, so that decoding is a lookup and the
only state of a stream is the bytes of a half character. Any other tokenizer keeps its own ``decode``,
called on a bounded window of ids (see ``detokenizer``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_BYTE_PIECES = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    rest = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(rest)})
    return alphabet


_ALPHABET = _byte_level_alphabet()
_LETTERS = {byte: char for char, byte in _ALPHABET.items()}


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:  # an added token is plain text
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_PIECE.match(token)
    return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode()


def _complete(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class Vocabulary:
    """The vocabulary of one checkpoint; shared by all streams and never changed.

    ``pieces[i]`` are the bytes of id ``i`` and ``texts[i]`` the same as text, or None where they are not
    whole characters. ``added`` maps the text of each added token (markers among them) to its id,
    ``special`` are the ids that ``skip_special_tokens`` hides. ``size`` is the number of ids that the
    model can emit: ids of the model's vocabulary beyond the tokenizer's decode to nothing.
    ``strips_first_space`` says that the first space of a text that has no context is not its own.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        added: Mapping[str, int],
        special: Iterable[int],
        strips_first_space: bool = False,
        decode: Callable[[list[int]], str] | None = None,
        fingerprint: str = "",
        byte_level: bool = True,
    ) -> None:
        self.pieces = list(pieces)
        self.texts: list[str | None] = [_complete(piece) for piece in self.pieces]
        self.size = len(self.pieces)
        self.added = dict(added)
        self.special = frozenset(special)
        self.strips_first_space = strips_first_space
        self.decode = decode
        self.fingerprint = fingerprint
        self._byte_level = byte_level
        self._ids: dict[bytes, int] | None = None

    @classmethod
    def load(cls, tokenizer: Any, size: int | None = None) -> Vocabulary:
        """Read a ``tokenizers.Tokenizer`` or a transformers tokenizer.

        ``size``: rows of the model's embedding, where it is larger than the tokenizer's vocabulary.
        A tokenizer without a ``tokenizers`` backend is decoded by its own ``decode``.
        """
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "to_str"):
            return cls._from_decode(tokenizer, size)
        spec = json.loads(backend.to_str())
        added = {entry["content"]: entry["id"] for entry in spec.get("added_tokens", [])}
        special = {entry["id"] for entry in spec.get("added_tokens", []) if entry["special"]}
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        length = max(size or 0, max(vocab.values(), default=-1) + 1)
        decoders = _decoder_types(spec.get("decoder"))
        fingerprint = hashlib.blake2b(backend.to_str().encode(), digest_size=16).hexdigest()
        if "ByteLevel" in decoders:
            to_bytes = _byte_level
        elif "ByteFallback" in decoders:
            to_bytes = _byte_fallback
        else:
            return cls._from_decode(tokenizer, size, added, special, fingerprint)
        pieces = [b""] * length
        for token, token_id in vocab.items():
            pieces[token_id] = to_bytes(token)
        for token, token_id in added.items():
            pieces[token_id] = _byte_level(token) if to_bytes is _byte_level else token.encode()
        return cls(
            pieces,
            added=added,
            special=special,
            strips_first_space="Strip" in decoders,
            fingerprint=fingerprint,
            byte_level=to_bytes is _byte_level,
        )

    @classmethod
    def _from_decode(
        cls,
        tokenizer: Any,
        size: int | None,
        added: Mapping[str, int] | None = None,
        special: Iterable[int] | None = None,
        fingerprint: str = "",
    ) -> Vocabulary:
        if added is None:
            added = {str(text): token_id for text, token_id in tokenizer.get_added_vocab().items()}
        if special is None:
            special = tokenizer.all_special_ids
        length = max(size or 0, max(tokenizer.get_vocab().values(), default=-1) + 1)

        def decode(ids: list[int]) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=False))

        by_id = {token_id: text for text, token_id in added.items()}
        pieces = [by_id[i].encode() if i in by_id else b"" for i in range(length)]
        if not fingerprint:
            listing = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=False)
            fingerprint = hashlib.blake2b(listing.encode(), digest_size=16).hexdigest()
        return cls(pieces, added=added, special=special, decode=decode, fingerprint=fingerprint)

    def piece(self, token_id: int) -> bytes:
        """The bytes of one id (``b""`` for an id that is in no table)."""
        if not 0 <= token_id < self.size:
            return b""
        if self.decode is not None and not self.pieces[token_id]:
            return self.decode([token_id]).encode()
        return self.pieces[token_id]

    def id_of(self, piece: bytes) -> int | None:
        """An id with these bytes. The table for it is made when it is first asked for, which is rarely."""
        if self._ids is None:
            self._ids = {known: n for n, known in enumerate(self.pieces)}
        return self._ids.get(piece)

    def spell(self, data: bytes) -> str:
        """A token string, as tokenizers write them, that decodes to ``data`` (for tables of bytes only)."""
        if self._byte_level:
            return "".join([_LETTERS[byte] for byte in data])
        text = _complete(data)
        return "".join([f"<0x{byte:02X}>" for byte in data]) if text is None else text.replace(" ", "\u2581")

    def spells(self, token: str) -> bool:
        """Whether a token string can be one of this vocabulary's (as far as its alphabet tells)."""
        return not self._byte_level or token in self.added or all(letter in _ALPHABET for letter in token)

    def token_bytes(self, token: str) -> bytes:
        """The bytes that a token string stands for; ``spell`` the other way round."""
        if self._byte_level:
            return _byte_level(token)
        parts = _BYTE_PIECES.findall(token)
        return b"".join(map(_byte_fallback, parts)) if "".join(parts) == token else _byte_fallback(token)


def _decoder_types(decoder: Any) -> list[str]:
    if not decoder:
        return []
    if decoder["type"] == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _decoder_types(part)]
    return [decoder["type"]]
