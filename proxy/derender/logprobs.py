"""Logprobs of token ids in OpenAI's shape: the token's text and its bytes.

A character may be spread over tokens. Chat and completions give each token its own bytes, which is what OpenAI has
``bytes`` for. vLLM's derender endpoints give all of the character to the token that completes it, and nothing to those
before: there, what one token says depends on the sampled ids before it, of which at most three bytes are pending.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from proxy.derender.deltas import LogprobCandidate, LogprobEntry
from proxy.derender.vocabulary import Vocabulary
from proxy.protocol.generate import TokenLogprob

# JSON has no infinity: vLLM reports impossible tokens as this.
FLOOR = -9999.0


class LogprobFormatter:
    """``top``: how many alternatives to show, -1 for all; ``as_ids``: tokens are written ``token_id:N``.

    ``whole``: only whole characters are shown, as vLLM's derender does. ``context``: the sampled ids before the first
    entry, of which the last four are looked at.
    """

    __slots__ = ("_vocabulary", "_top", "_as_ids", "_whole", "_pending")

    def __init__(
        self,
        vocabulary: Vocabulary,
        top: int,
        as_ids: bool = False,
        *,
        whole: bool = False,
        context: Sequence[int] = (),
    ) -> None:
        self._whole = whole
        self._vocabulary = vocabulary
        self._top = None if top < 0 else top
        self._as_ids = as_ids
        self._pending = b""
        for token_id in context[-4:]:
            self._pending = self._decode(token_id)[1]

    def entry(self, token_id: int, logprob: TokenLogprob | None) -> LogprobEntry:
        """The entry of one position; an engine that sent none for it gives the floor."""
        if logprob is None:
            text, data, self._pending = self._token(token_id)
            return LogprobEntry(text, FLOOR, data, [])
        top = [self._candidate(item.token_id, item.logprob) for item in logprob.top_logprobs[: self._top]]
        text, data, self._pending = self._token(logprob.token_id)
        return LogprobEntry(text, max(logprob.logprob, FLOOR), data, top)

    def entries(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> list[LogprobEntry]:
        return [self.entry(token_id, logprobs[n] if n < len(logprobs) else None) for n, token_id in enumerate(ids)]

    def _candidate(self, token_id: int, logprob: float) -> LogprobCandidate:
        text, data, _ = self._token(token_id)
        return LogprobCandidate(text, max(logprob, FLOOR), data)

    def _token(self, token_id: int) -> tuple[str, list[int], bytes]:
        """Its text, the bytes of that, and what of a character is pending behind it."""
        if not self._whole:
            piece = self._vocabulary.piece(token_id)
            text = f"token_id:{token_id}" if self._as_ids else piece.decode(errors="replace")
            return text, list(piece), b""
        text, pending = self._decode(token_id)
        data = list(text.encode())
        return (f"token_id:{token_id}" if self._as_ids else text), data, pending

    def _decode(self, token_id: int) -> tuple[str, bytes]:
        vocabulary = self._vocabulary
        if 0 <= token_id < len(vocabulary.texts):
            text = vocabulary.texts[token_id]
            if text:
                return text, b""
        text, used = utf_8_decode(data := self._pending + vocabulary.piece(token_id), "replace", False)
        return text, data[used:]
