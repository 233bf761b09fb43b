"""Events of SGLang's ``/generate`` to ``GenerateEvent``: which of the ids are new, logprobs, finishes, errors.

SGLang sends all ids so far with every event, unless started with ``--incremental-streaming-output``; nothing in the
stream says which. Rules:

1. With s ids taken before, an event of L ids and ``completion_tokens`` C is cumulative if L = C and incremental if
   s + L = C. For s = 0 both hold and mean the same, however many ids the first event has; for s > 0 they exclude each
   other. What has been seen once holds for the rest of the stream.
2. Of a cumulative event the part behind s is taken, and nothing is fed twice. It is not even decoded twice: JSON that
   begins as that of the event before is cut off as text, which is a memcmp (5 times faster at 8,000 ids).
3. Logprobs were cumulative beside incremental ids for a while (before #21583): their own length says which they are.
4. An error that has no code is a ``ValueError`` of SGLang's own checks, a 400 before the stream.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from proxy.engines.failures import read_error
from proxy.errors import UpstreamError
from proxy.protocol.generate import (
    EngineError,
    GenerateChoice,
    GenerateEvent,
    Logprobs,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    Usage,
)

log = logging.getLogger("derender")

FLOOR = -9999.0  # for a logprob that JSON has no number for
# From here on a cumulative stream is worth a line: 2,000 tokens are 12 MB of JSON.
LONG_STREAM = 1_000

Entry = tuple[float | None, int, str | None]  # logprob, token id, its text
Top = list[list[Entry] | None]


class Finish(msgspec.Struct, gc=False):
    type: str = "stop"
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class Meta(msgspec.Struct, gc=False):
    id: str | None = None
    finish_reason: Finish | str | None = None
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[Entry] | None = None
    output_top_logprobs: Top | None = None
    input_token_logprobs: list[Entry] | None = None
    input_top_logprobs: Top | None = None


class Answer(msgspec.Struct, gc=False):
    """One choice of an answer in one piece."""

    meta_info: Meta
    output_ids: list[int] | None = None


class Event(msgspec.Struct, gc=False):
    """One event; ``output_ids`` as they stand in it."""

    meta_info: Meta
    output_ids: msgspec.Raw = msgspec.Raw(b"[]")
    index: int = 0


_typed = msgspec.json.Decoder(Event).decode
_ids_in = msgspec.json.Decoder(list[int] | None).decode
_typed_whole = msgspec.json.Decoder(Answer | list[Answer]).decode
_warned = False


class SGLangReader:
    """Reads one stream of ``choices`` choices. ``logprobs``: how many candidates were asked for, None for none."""

    def __init__(self, choices: int, *, logprobs: int | None) -> None:
        self.request_ids: dict[int, str] = {}  # by choice, as events tell
        self.cumulative: bool | None = None  # None: not known yet
        self._seen = [0] * choices
        self._texts = [b""] * choices  # of a cumulative stream: the list so far, without its closing bracket
        self._logprobs = logprobs

    def event(self, raw: bytes) -> GenerateEvent:
        try:
            answer = _typed(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return GenerateEvent(error=_error_in(raw))
        index, meta = answer.index, answer.meta_info
        if not 0 <= index < len(self._seen):
            return GenerateEvent(choices=[GenerateChoice(index=index)])  # dropped by the stream
        if index not in self.request_ids and meta.id is not None:
            self.request_ids[index] = meta.id
        error, finish, cause = _finish_of(meta)
        if error is not None:
            return GenerateEvent(error=error)
        before = self._seen[index]
        try:
            ids = self._fresh(index, bytes(answer.output_ids), before, meta.completion_tokens)
        except msgspec.DecodeError:
            raise UpstreamError("The engine sent ids that cannot be read.", kind="protocol") from None
        self._seen[index] = before + len(ids)
        logprobs = None
        if self._logprobs is not None and ids:
            logprobs = _logprobs_of(meta.output_token_logprobs, meta.output_top_logprobs, before, len(ids))
        choice = GenerateChoice(index, ids, finish, cause, logprobs)
        return GenerateEvent(meta.id, [choice], _usage_of([meta]) if finish is not None else None)

    def _fresh(self, index: int, text: bytes, seen: int, total: int | None) -> list[int]:
        """Those ids of the list in ``text`` that have not been taken before."""
        if seen and self.cumulative:
            if seen >= LONG_STREAM:
                _warn_once()
            before = self._texts[index]
            if before and text.startswith(before) and text[len(before) : len(before) + 1] in (b",", b"]"):
                self._texts[index] = text[:-1]
                return _ids_in(b"[" + text[len(before) :].removeprefix(b",")) or []
        ids = _ids_in(text) or []
        if not seen:
            return ids
        if self.cumulative is None:
            if total == len(ids):
                self.cumulative = True
            elif total == seen + len(ids):
                self.cumulative = False
            else:
                raise UpstreamError("The engine's ids do not add up to its count of them.", kind="protocol")
        if not self.cumulative:
            return ids
        if len(ids) < seen:
            raise UpstreamError("The engine took ids back.", kind="protocol")
        self._texts[index] = text[:-1].rstrip()
        return ids[seen:]


def read_whole(raw: bytes, prompt: list[int], *, logprobs: int | None, prompt_logprobs: int | None) -> GenerateEvent:
    """An answer in one piece: an object, or a list of them for n > 1. Raises UpstreamError."""
    try:
        whole = _typed_whole(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return GenerateEvent(error=_error_in(raw))
    answers = whole if isinstance(whole, list) else [whole]
    choices = []
    for position, answer in enumerate(answers):
        meta = answer.meta_info
        error, finish, cause = _finish_of(meta)
        if error is not None:
            return GenerateEvent(error=error)
        ids = answer.output_ids or []
        told = None
        if logprobs is not None:
            told = _logprobs_of(meta.output_token_logprobs, meta.output_top_logprobs, 0, len(ids))
        choices.append(GenerateChoice(position, ids, finish, cause, told))
    first = answers[0].meta_info if answers else Meta()
    return GenerateEvent(
        request_id=first.id,
        choices=choices,
        usage=_usage_of([answer.meta_info for answer in answers]),
        prompt_logprobs=None if prompt_logprobs is None else _prompt_logprobs_of(first, prompt, prompt_logprobs),
    )


def _logprobs_of(entries: list[Entry] | None, top: Top | None, seen: int, count: int) -> Logprobs | None:
    """Logprobs of the ``count`` ids behind the first ``seen``."""
    if entries is None:
        return None
    start = seen if len(entries) >= seen + count else max(0, len(entries) - count)
    start_top = start if top is not None and len(top) == len(entries) else None
    content = []
    for at in range(start, min(start + count, len(entries))):
        logprob, token_id, _ = entries[at]
        sampled = TopLogprob(token_id, FLOOR if logprob is None else logprob)
        candidates = (top[at] or []) if top is not None and start_top is not None else []
        # As in vLLM: the sampled token first, then the best without it.
        others = [
            TopLogprob(other, FLOOR if value is None else value) for value, other, _ in candidates if other != token_id
        ]
        content.append(TokenLogprob(token_id, sampled.logprob, None, [sampled, *others]))
    return Logprobs(content)


def _prompt_logprobs_of(meta: Meta, prompt: list[int], k: int) -> list[dict[str, object] | None]:
    """In vLLM's shape: nothing for the first token, then by id, the prompt's own first."""
    entries, top = meta.input_token_logprobs or [], meta.input_top_logprobs or []
    found: list[dict[str, object] | None] = []
    for position in range(len(prompt)):
        own = entries[position] if position < len(entries) else None
        if position == 0 or own is None or own[0] is None:
            found.append(None)
            continue
        candidates = (top[position] if position < len(top) else None) or []
        others = [entry for entry in candidates[:k] if entry[1] != own[1]]
        ranks = {entry[1]: rank for rank, entry in enumerate(candidates, 1)}
        found.append(
            {str(token_id): {"logprob": value, "rank": ranks.get(token_id)} for value, token_id, _ in (own, *others)}
        )
    return found


def _usage_of(metas: list[Meta]) -> Usage | None:
    if not metas:
        return None
    completion = sum(meta.completion_tokens or 0 for meta in metas)
    cached = metas[0].cached_tokens
    return Usage(
        prompt_tokens=metas[0].prompt_tokens,
        completion_tokens=completion,
        total_tokens=metas[0].prompt_tokens + completion,
        # Always there, 0 also where nobody counts: shown only if it says something, as SGLang's own frontend does.
        prompt_tokens_details=PromptTokensDetails(cached) if cached else None,
    )


def _finish_of(meta: Meta) -> tuple[EngineError | None, str | None, int | str | None]:
    """The error that an abort with a status is (one without was asked for), else reason and cause of the finish."""
    finish = meta.finish_reason
    if not isinstance(finish, Finish):
        return None, finish, None
    if finish.type == "abort" and finish.status_code is not None:
        message, kind = finish.message or "", finish.err_type or ""
        return EngineError(message=message, type=kind, code=finish.status_code), None, None
    return None, finish.type, finish.matched


def _error_in(raw: bytes) -> EngineError:
    try:
        body: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    error = read_error(body)
    if error is None:
        raise UpstreamError("The engine sent an event that cannot be read.", status=502, kind="protocol")
    if error.code is None and not error.type and isinstance(body.get("error"), dict):
        error.code = 400  # rule 4
    return error


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        log.warning(
            "engine sends all ids with every event, which is quadratic in bytes; "
            "SGLang's --incremental-streaming-output avoids it"
        )
