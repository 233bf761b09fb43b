"""Logprobs of token ids in OpenAI's shape: the token's text and its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.derender.deltas import LogprobCandidate, LogprobEntry
from proxy.derender.vocabulary import Vocabulary
from proxy.protocol.generate import TokenLogprob

# JSON has no infinity: vLLM reports impossible tokens as this.
FLOOR = -9999.0


class LogprobFormatter:
    """``top``: how many alternatives to show; ``as_ids``: tokens are written ``token_id:N``."""

    __slots__ = ("_vocabulary", "_top", "_as_ids")

    def __init__(self, vocabulary: Vocabulary, top: int, as_ids: bool = False) -> None:
        self._vocabulary = vocabulary
        self._top = top
        self._as_ids = as_ids

    def entry(self, token_id: int, logprob: TokenLogprob | None) -> LogprobEntry:
        """The entry of one position; an engine that sent none for it gives the floor."""
        if logprob is None:
            token, data = self._token(token_id)
            return LogprobEntry(token, FLOOR, data, [])
        token, data = self._token(logprob.token_id)
        top = [self._candidate(item.token_id, item.logprob) for item in logprob.top_logprobs[: self._top]]
        return LogprobEntry(token, max(logprob.logprob, FLOOR), data, top)

    def entries(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> list[LogprobEntry]:
        return [self.entry(token_id, logprobs[n] if n < len(logprobs) else None) for n, token_id in enumerate(ids)]

    def _candidate(self, token_id: int, logprob: float) -> LogprobCandidate:
        token, data = self._token(token_id)
        return LogprobCandidate(token, max(logprob, FLOOR), data)

    def _token(self, token_id: int) -> tuple[str, list[int]]:
        piece = self._vocabulary.piece(token_id)
        text = f"token_id:{token_id}" if self._as_ids else piece.decode(errors="replace")
        return text, list(piece)
