"""Prompt logprobs of a token-only engine, which knows ids but not their text."""

from __future__ import annotations

from typing import Any

# Of JSON's numbers; engines write -inf so.
FLOOR = -9999.0


def with_tokens(
    positions: list[dict[str, object] | None] | None, tokenizer: Any
) -> list[dict[str, dict[str, object]] | None] | None:
    """``prompt_logprobs`` (one entry a prompt token, id to ``logprob``, ``rank``) with ``decoded_token`` filled in."""
    if positions is None:
        return None
    found: list[dict[str, dict[str, object]] | None] = []
    for position in positions:
        if position is None:
            found.append(None)
            continue
        entries: dict[str, dict[str, object]] = {}
        for token_id, value in position.items():
            entry = dict(value) if isinstance(value, dict) else {"logprob": value}
            if entry.get("decoded_token") is None:
                entry["decoded_token"] = tokenizer.decode([int(token_id)])
            entries[token_id] = entry
        found.append(entries)
    return found


def as_completion_logprobs(
    positions: list[dict[str, dict[str, object]] | None] | None, prompt_token_ids: list[int], tokenizer: Any
) -> dict[str, list[object]]:
    """The same in the shape of the completions endpoint, for an answer that repeats its prompt.

    The first token has no logprob; the engine's entry of each later token names the token itself first.
    """
    shaped: dict[str, list[object]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    offset = 0
    for index, token_id in enumerate(prompt_token_ids):
        position = positions[index] if positions is not None and index < len(positions) else None
        own = position.get(str(token_id)) if position else None
        token = str(own["decoded_token"]) if own else str(tokenizer.decode([token_id]))
        shaped["text_offset"].append(offset)
        shaped["tokens"].append(token)
        if position is None or own is None:
            shaped["token_logprobs"].append(None)
            shaped["top_logprobs"].append(None)
        else:
            shaped["token_logprobs"].append(_finite(own["logprob"]))
            shaped["top_logprobs"].append(
                {str(entry["decoded_token"]): _finite(entry["logprob"]) for entry in position.values()}
            )
        offset += len(token)
    return shaped


def _finite(value: object) -> float:
    return max(float(value), FLOOR) if isinstance(value, int | float) else FLOOR
