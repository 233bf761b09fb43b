"""Ids of tool calls: derived, not drawn, so that a repeated or replayed stream gives the same ones."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def digest_ids(ids: Sequence[int]) -> bytes:
    """A digest of token ids, 16 bytes."""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).digest()


class ToolCallIds:
    """The ids of one choice's calls.

    ``shape``: ``vllm`` (``chatcmpl-tool-`` and 16 hex digits), ``kimi`` (``functions.NAME:N``, N counting over the
    conversation, of which ``history`` calls are past), ``mistral`` (nine letters and digits).
    """

    __slots__ = ("_seed", "_shape", "_history")

    def __init__(self, request_id: str, prompt_digest: bytes, choice: int, shape: str, history: int) -> None:
        seed = hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16, key=prompt_digest[:16])
        seed.update(b"\0%d" % choice)
        self._seed = seed
        self._shape = shape
        self._history = history

    def make(self, index: int, name: str, written: str = "") -> str:
        """The id of call ``index``; ``written``: the id that the model itself wrote, which wins."""
        if written:
            return written
        if self._shape == "kimi":
            return f"functions.{name}:{self._history + index}"
        digest = self._seed.copy()
        digest.update(b"\0%d" % index)
        if self._shape == "mistral":
            number = int.from_bytes(digest.digest(), "little")
            letters = []
            for _ in range(9):
                number, rest = divmod(number, len(_ALPHABET))
                letters.append(_ALPHABET[rest])
            return "".join(letters)
        return "chatcmpl-tool-" + digest.hexdigest()[:16]
