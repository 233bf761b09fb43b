"""Events and bodies of ``/inference/v1/generate``: vLLM's shape (0.33), with text or chat deltas in the choices.

The derender mode streamed, which vLLM refuses, has the shape of its other modes: what a choice would have as
``message`` comes in pieces as ``delta``. Fields of which this proxy knows nothing (``routed_experts`` and the like) are
null; the tokens mode, whose bytes are the engine's, has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.derender.deltas import Delta
from proxy.derender.message import MessageBuilder
from proxy.protocol.generate import GenerateEvent
from proxy.protocol.generate_request import GenerateBody
from proxy.routes.answers import message_body
from proxy.routes.sse_chunks import dumps


class GenerateChunks:
    """Events of one stream with choices 0..n-1. ``visible``: whether ids may be shown (reasoning is not hidden)."""

    def __init__(self, request_id: str, asked: GenerateBody, *, reasoning_field: str, visible: bool) -> None:
        self._head = b'data: {"request_id":%s' % dumps(request_id)
        self._mode = asked.output_mode
        self._reasoning_field = reasoning_field
        self._visible = visible
        self._prompt = asked.token_ids if asked.return_token_ids else None
        self._begun: set[int] = set()

    def add(self, out: list[bytes], index: int, deltas: list[Delta], usage: bytes | None = None) -> None:
        """Append one event for each delta; ``usage`` (continuous) stands in every one of them."""
        for delta in deltas:
            choice: dict[str, object] = {
                "index": index,
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
                "token_ids": (delta.token_ids or []) if self._visible else None,
                "routed_experts": None,
                "sampling_mask": None,
                "weight_versions": None,
            }
            if self._mode == "text":
                choice["text"] = delta.content or ""
            elif self._mode == "derender":
                choice["delta"] = self._delta(index, delta)
            choice["logprobs"] = None if delta.logprobs is None else {"content": delta.logprobs}
            prompt = b""
            if self._prompt is not None:
                prompt, self._prompt = b',"prompt_token_ids":' + dumps(self._prompt), None
            shown = usage or b"null"
            rest = b',"usage":%s%s,"output_mode":"%s","choices":[' % (shown, prompt, self._mode.encode())
            out.append(self._head + rest + dumps(choice) + b"]}\n\n")

    def _delta(self, index: int, delta: Delta) -> dict[str, object]:
        fields: dict[str, object] = {}
        if index not in self._begun:
            self._begun.add(index)
            fields["role"] = "assistant"
        if delta.reasoning is not None:
            if self._reasoning_field != "reasoning_content":
                fields["reasoning"] = delta.reasoning
            if self._reasoning_field != "reasoning":
                fields["reasoning_content"] = delta.reasoning
        if delta.content is not None:
            fields["content"] = delta.content
        if delta.tool_calls:
            calls = []
            for call in delta.tool_calls:
                function: dict[str, object] = {"arguments": call.arguments or ""}
                begun: dict[str, object] = {}
                if call.name is not None:
                    begun, function = {"id": call.id, "type": "function"}, {"name": call.name, **function}
                calls.append({"index": call.index, **begun, "function": function})
            fields["tool_calls"] = calls
        return fields

    def usage(self, usage: bytes) -> bytes:
        """The event without choices that carries the final usage."""
        return self._head + b',"usage":%s,"output_mode":"%s","choices":[]}\n\n' % (usage, self._mode.encode())


def whole(
    request_id: str,
    model: str,
    created: int,
    asked: GenerateBody,
    messages: Sequence[MessageBuilder],
    usage: dict[str, object],
    *,
    reasoning_field: str,
    visible: bool,
    answer: GenerateEvent | None,
    prompt_logprobs: object,
) -> dict[str, object]:
    """The answer in one piece. ``answer``: the engine's, where it was asked for in one piece."""
    choices: list[dict[str, object]] = []
    for index, message in enumerate(messages):
        choice: dict[str, object] = {
            "index": index,
            "finish_reason": message.finish_reason,
            "stop_reason": message.stop_reason,
            "token_ids": (message.token_ids or []) if visible else None,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None,
        }
        if asked.output_mode == "text":
            choice["text"] = message.content or ""
        elif asked.output_mode == "derender":
            choice["message"] = message_body(message, reasoning_field=reasoning_field)
        choice["logprobs"] = None if message.logprobs is None else {"content": message.logprobs}
        choices.append(choice)
    return {
        "request_id": request_id,
        "model": model,
        "created": created,
        "usage": usage,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": asked.token_ids if asked.return_token_ids else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": answer.kv_transfer_params if answer else None,
        "ec_transfer_params": answer.ec_transfer_params if answer else None,
        "output_mode": asked.output_mode,
        "choices": choices,
    }
