"""Bodies of answers that are not streamed, in vLLM's shape: its keys, nulls included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.derender.message import MessageBuilder
from proxy.protocol.generate import GenerateEvent
from proxy.routes.generation import Generation
from proxy.routes.sse_chunks import completion_logprobs


def usage(generation: Generation, *, reasoning: bool) -> dict[str, object]:
    """The usage object of a whole answer."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    cached = generation.cached_tokens
    found: dict[str, object] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }
    if reasoning:
        found["completion_tokens_details"] = {"reasoning_tokens": generation.reasoning_tokens}
    return found


def chat(
    chat_id: str,
    created: int,
    model: str,
    messages: Sequence[MessageBuilder],
    usage_object: dict[str, object],
    *,
    reasoning_field: str,
    prompt_token_ids: list[int] | None,
    prompt_text: str | None,
    echo: str,
    token_ids: bool,
    whole: GenerateEvent | None,
    prompt_logprobs: object,
) -> dict[str, object]:
    """A ``chat.completion``. ``echo`` goes before the content; ``whole`` is the engine's answer, where that came in
    one piece."""
    choices = []
    for index, message in enumerate(messages):
        choices.append(
            {
                "index": index,
                "message": message_body(message, reasoning_field=reasoning_field, echo=echo),
                "logprobs": None if message.logprobs is None else {"content": message.logprobs},
                "finish_reason": message.finish_reason,
                "stop_reason": message.stop_reason,
                "token_ids": message.token_ids if token_ids else None,
            }
        )
    return {
        "id": chat_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage_object,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_ids": prompt_token_ids,
        "prompt_text": prompt_text,
        "kv_transfer_params": whole.kv_transfer_params if whole else None,
        "ec_transfer_params": whole.ec_transfer_params if whole else None,
    }


def message_body(message: MessageBuilder, *, reasoning_field: str, echo: str = "") -> dict[str, object]:
    """The ``message`` of a choice."""
    body: dict[str, object] = {
        "role": "assistant",
        "content": echo + (message.content or "") if echo else message.content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message.tool_calls
        ]
    if reasoning_field != "reasoning_content":
        body["reasoning"] = message.reasoning
    if reasoning_field != "reasoning":
        body["reasoning_content"] = message.reasoning
    return body


def completion_choice(
    index: int,
    message: MessageBuilder,
    *,
    echo: str | None,
    prompt_token_ids: list[int] | None,
    token_ids: bool,
    prompt_entries: dict[str, list[object]] | None,
    prompt_logprobs: object,
) -> dict[str, object]:
    """One choice of a ``text_completion``; ``echo`` and ``prompt_entries`` are put before the answer."""
    logprobs: dict[str, list[object]] | None = None
    if message.logprobs is not None or prompt_entries is not None:
        offset = len(echo) if echo is not None else 0
        logprobs = completion_logprobs(message.logprobs or [], offset)
        if prompt_entries is not None:
            logprobs = {key: prompt_entries[key] + logprobs[key] for key in logprobs}
    return {
        "index": index,
        "text": (echo or "") + (message.content or ""),
        "logprobs": logprobs,
        "finish_reason": message.finish_reason,
        "stop_reason": message.stop_reason,
        "token_ids": message.token_ids if token_ids else None,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_ids": prompt_token_ids,
    }


def completion(
    completion_id: str,
    created: int,
    model: str,
    choices: list[dict[str, object]],
    usage_object: dict[str, object],
    wholes: Sequence[GenerateEvent | None],
) -> dict[str, object]:
    """A ``text_completion``; transfer parameters are kept only where all prompts have the same."""
    return {
        "id": completion_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage_object,
        "kv_transfer_params": _common([whole.kv_transfer_params if whole else None for whole in wholes]),
        "ec_transfer_params": _common([whole.ec_transfer_params if whole else None for whole in wholes]),
    }


def _common(values: list[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else None
