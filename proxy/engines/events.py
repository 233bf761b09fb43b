"""One event of vLLM's generate stream, as its JSON text, to ``GenerateEvent``: the typed way, and the tolerant one.

The typed decoder takes what current servers send, in 0.3 us. Where it refuses, the text is decoded untyped and read
again for the shapes of other servers: errors that are not objects, and the logprobs of servers before 0.30 (``token:
"token_id:785"`` instead of ``token_id``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.engines.failures import read_error
from proxy.errors import UpstreamError
from proxy.protocol.generate import EngineError, GenerateEvent

_typed = msgspec.json.Decoder(GenerateEvent).decode
_PREFIX = "token_id:"


def decode_event(raw: bytes) -> GenerateEvent:
    """The event in ``raw``; an error of any shape is in ``error``. Raises UpstreamError (protocol)."""
    try:
        event = _typed(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerant(raw)
    if not event.choices and event.usage is None and event.error is None:
        return _tolerant(raw)  # says nothing: perhaps an error in the flat shape
    return event


def _tolerant(raw: bytes) -> GenerateEvent:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unreadable() from None
    if not isinstance(body, dict):
        raise _unreadable()
    error = read_error(body)
    if error is not None:
        return GenerateEvent(error=error)
    if body.get("error"):
        return GenerateEvent(error=EngineError())
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            _modernise(choice)
    try:
        return msgspec.convert(body, GenerateEvent)
    except msgspec.ValidationError:
        raise _unreadable() from None


def _modernise(choice: dict[str, Any]) -> None:
    """Logprobs in the shape of chat completions, in place. Candidates without an id cannot be kept."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return
    ids = choice.get("token_ids") or []
    for position, entry in enumerate(content):
        if not isinstance(entry, dict) or "token_id" in entry:
            continue
        token_id = _id_of(entry)
        if token_id is None and len(ids) == len(content):
            token_id = ids[position]
        if token_id is None:
            raise _unreadable()
        candidates = [top for top in entry.get("top_logprobs") or () if isinstance(top, dict)]
        for top in candidates:
            top.setdefault("token_id", _id_of(top))
        entry["token_id"] = token_id
        entry["top_logprobs"] = [top for top in candidates if top["token_id"] is not None]


def _id_of(entry: dict[str, Any]) -> int | None:
    token = entry.get("token")
    if isinstance(token, str) and token.startswith(_PREFIX) and token[len(_PREFIX) :].isdecimal():
        return int(token[len(_PREFIX) :])
    return None


def _unreadable() -> UpstreamError:
    return UpstreamError("The engine sent an event that cannot be read.", status=502, kind="protocol")
