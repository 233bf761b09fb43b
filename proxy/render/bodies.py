"""Answers of ``/v1/chat/completions/render`` and ``/v1/completions/render``: requests of vLLM's generate type."""

from __future__ import annotations

from typing import Any

from proxy.protocol.openai import ChatCompletionRequest, CompletionRequest
from proxy.render.rendered import Rendered


def chat_body(rendered: Rendered, request: ChatCompletionRequest, request_id: str) -> dict[str, Any]:
    """The JSON object for a chat; ``request_id`` is the client's or a fresh one, without prefix."""
    return _body(rendered, request, f"chatcmpl-{request_id}")


def completion_bodies(rendered: list[Rendered], request: CompletionRequest, request_id: str) -> list[dict[str, Any]]:
    """The JSON array for a completion, one object per prompt."""
    base = f"cmpl-{request_id}"
    if len(rendered) == 1:
        return [_body(rendered[0], request, base)]
    return [_body(one, request, f"{base}-{index}") for index, one in enumerate(rendered)]


def _body(rendered: Rendered, request: ChatCompletionRequest | CompletionRequest, request_id: str) -> dict[str, Any]:
    options = request.stream_options if request.stream else None
    return {
        "request_id": request_id,
        "token_ids": rendered.prompt_token_ids,
        "token_offsets": rendered.token_offsets,
        "features": rendered.features,
        "content_parts": rendered.content_parts,
        "sampling_params": rendered.render_params,
        "model": request.model,
        "reasoning_ended": rendered.reasoning_ended,
        "reasoning_parser_kwargs": rendered.reasoning_parser_kwargs,
        "return_token_ids": request.return_token_ids,
        "output_mode": "tokens",
        "parse_context": rendered.parse_context,
        "stream": bool(request.stream),
        "stream_options": options,
        "cache_salt": rendered.cache_salt,
        "priority": rendered.priority,
        "kv_transfer_params": rendered.kv_transfer_params,
        "ec_transfer_params": rendered.ec_transfer_params,
    }
