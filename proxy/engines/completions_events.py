"""Events of ``/v1/completions`` with token ids to ``GenerateEvent``, as vLLM, SGLang and TensorRT-LLM write them.

Logprobs come in the shape of completions: texts of tokens, ``token_id:785`` where the server writes them so. The
sampled token is known by its place among the ids; a candidate whose text is all there is cannot be kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.engines.failures import read_error
from proxy.errors import UpstreamError
from proxy.protocol.generate import (
    EngineError,
    GenerateChoice,
    GenerateEvent,
    Logprobs,
    TokenLogprob,
    TopLogprob,
    Usage,
)

FLOOR = -9999.0  # for a logprob that JSON has no number for
_PREFIX = "token_id:"


class CompletionLogprobs(msgspec.Struct, gc=False):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Choice(msgspec.Struct, gc=False):
    """``matched_stop`` is what SGLang calls ``stop_reason``."""

    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    matched_stop: int | str | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: list[dict[str, object] | None] | None = None


class Completion(msgspec.Struct, gc=False):
    id: str | None = None
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    kv_transfer_params: dict[str, object] | None = None
    ec_transfer_params: dict[str, object] | None = None


_typed = msgspec.json.Decoder(Completion).decode


class CompletionsReader:
    """Reads one stream. ``logprobs``: whether they were asked for."""

    def __init__(self, *, logprobs: bool) -> None:
        self._logprobs = logprobs

    def event(self, raw: bytes) -> GenerateEvent:
        return _read(raw, self._logprobs)


def read_whole(raw: bytes, *, logprobs: bool) -> GenerateEvent:
    """An answer in one piece. Raises UpstreamError."""
    return _read(raw, logprobs)


def _read(raw: bytes, logprobs: bool) -> GenerateEvent:
    try:
        told = _typed(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return GenerateEvent(error=_error_in(raw))
    if told.error is not None:
        return GenerateEvent(error=_error_in(raw))
    if not (told.choices or told.usage):  # says nothing: perhaps an error in the flat shape
        return GenerateEvent(error=read_error(msgspec.json.decode(raw)))
    choices = []
    prompt_logprobs = None
    for choice in told.choices:
        ids = choice.token_ids
        if ids is None:
            if choice.text:
                raise UpstreamError("The engine sends text without token ids.", status=502, kind="protocol")
            ids = []
        if choice.prompt_logprobs is not None:
            prompt_logprobs = choice.prompt_logprobs
        choices.append(
            GenerateChoice(
                choice.index,
                ids,
                choice.finish_reason,
                choice.matched_stop if choice.stop_reason is None else choice.stop_reason,
                _logprobs_of(choice.logprobs, ids) if logprobs and choice.logprobs is not None and ids else None,
            )
        )
    return GenerateEvent(
        request_id=told.id,
        choices=choices,
        usage=told.usage,
        kv_transfer_params=told.kv_transfer_params,
        ec_transfer_params=told.ec_transfer_params,
        prompt_logprobs=prompt_logprobs,
    )


def _logprobs_of(told: CompletionLogprobs, ids: list[int]) -> Logprobs:
    values, top = told.token_logprobs, told.top_logprobs or []
    content = []
    for at, token_id in enumerate(ids):
        value = values[at] if at < len(values) else None
        logprob = FLOOR if value is None else value
        candidates = (top[at] if at < len(top) else None) or {}
        # As in vLLM's own route: the sampled token first, then the best without it.
        found = [TopLogprob(token_id, logprob)]
        for name, other in candidates.items():
            if name.startswith(_PREFIX) and name[len(_PREFIX) :].isdecimal():
                if (candidate := int(name[len(_PREFIX) :])) != token_id:
                    found.append(TopLogprob(candidate, FLOOR if other is None else other))
        content.append(TokenLogprob(token_id, logprob, None, found))
    return Logprobs(content)


def _error_in(raw: bytes) -> EngineError:
    try:
        body: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    error = read_error(body)
    if error is not None:
        return error
    if isinstance(body, dict) and body.get("error"):
        return EngineError()
    raise UpstreamError("The engine sent an event that cannot be read.", status=502, kind="protocol")
