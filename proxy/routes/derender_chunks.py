"""The bytes of streamed derender answers: vLLM's chunks with all their nulls, prepared but for what changes.

``Shape`` is made for a stream; a chunk that says text alone then costs one string encoding and one join.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.derender.deltas import Delta, LogprobEntry, ToolCallDelta
from proxy.protocol.derender import NULL
from proxy.protocol.generate import Usage

_encode = msgspec.json.Encoder().encode

_CHAT_END = (
    b',"system_fingerprint":null,"prompt_token_ids":%b,"prompt_text":null,"metrics":%b,"kv_transfer_params":null}'
    b',"stream_state":'
)
_TEXT_END = b',"system_fingerprint":null,"metrics":%b,"kv_transfer_params":null},"stream_state":'
_QUIET = (
    b'},"logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null,"weight_versions":null}],"usage":null'
)
_CHAT_QUIET_END = _QUIET + _CHAT_END % (NULL, NULL)
_TEXT_QUIET_END = (
    b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null,'
    b'"weight_versions":null}],"usage":null' + _TEXT_END % NULL
)


def usage_bytes(usage: Usage, prompt_tokens: int | None) -> bytes:
    """``usage`` of a chunk; the caller's count of prompt tokens wins over the engine's."""
    prompt = usage.prompt_tokens if prompt_tokens is None else prompt_tokens
    completion = usage.completion_tokens or 0
    return (
        b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null,'
        b'"completion_tokens_details":null}'
    ) % (prompt, prompt + completion, completion)


class Rest:
    """What few chunks have. All JSON, ``null`` where a chunk has none of it."""

    __slots__ = ("usage", "metrics", "prompt_token_ids", "token_ids")

    def __init__(self, usage: bytes, metrics: bytes, prompt_token_ids: bytes, token_ids: bytes) -> None:
        self.usage = usage
        self.metrics = metrics
        self.prompt_token_ids = prompt_token_ids
        self.token_ids = token_ids


QUIET = Rest(NULL, NULL, NULL, NULL)


class ChatShape:
    """Answers of one chat stream; each ends where the state begins."""

    def __init__(self, chunk_id: str, model: str, created: int, index: int, reasoning_field: str = "reasoning") -> None:
        self._open = b'{"chunk":{"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(chunk_id),
            created,
            _encode(model),
        )
        self._delta = self._open + b'{"index":%d,"delta":{"role":' % index
        first = b"reasoning_content" if reasoning_field == "reasoning_content" else b"reasoning"
        self._reasoning = b',"%b":' % first
        self._twice = reasoning_field == "both"
        self._content = self._delta + b'null,"content":'
        self._thought = self._delta + b'null,"content":null' + self._reasoning
        self._no_thought = self._reasoning + NULL + (b',"reasoning_content":null' if self._twice else b"")

    def text(self, delta: Delta) -> bytes:
        """A chunk with nothing but content or reasoning, and not the first."""
        if delta.content is not None and delta.reasoning is None:
            return self._content + _encode(delta.content) + self._no_thought + _CHAT_QUIET_END
        return self.full(delta, False, None, QUIET)

    def full(self, delta: Delta, role: bool, logprobs: Sequence[LogprobEntry] | None, rest: Rest) -> bytes:
        """Any chunk with a choice. ``role``: it is the first."""
        thought = _encode(delta.reasoning)
        parts = [
            self._delta,
            b'"assistant"' if role else NULL,
            b',"content":',
            _encode(delta.content),
            self._reasoning,
            thought,
        ]
        if self._twice:
            parts += (b',"reasoning_content":', thought)
        if delta.tool_calls:
            parts += (b',"tool_calls":[', b",".join([_call(call) for call in delta.tool_calls]), b"]")
        if logprobs is None and delta.finish_reason is None and rest is QUIET:
            parts.append(_CHAT_QUIET_END)
            return b"".join(parts)
        parts.append(
            b'},"logprobs":%b,"finish_reason":%b,"stop_reason":%b,"token_ids":%b,"weight_versions":null}],"usage":%b'
            % (
                NULL if logprobs is None else b'{"content":' + _encode(logprobs) + b"}",
                _encode(delta.finish_reason),
                _encode(delta.stop_reason),
                rest.token_ids,
                rest.usage,
            )
        )
        parts.append(_CHAT_END % (rest.prompt_token_ids, rest.metrics))
        return b"".join(parts)

    def without_choice(self, rest: Rest) -> bytes:
        """A chunk without choices: usage, most often."""
        return self._open + b'],"usage":' + rest.usage + _CHAT_END % (rest.prompt_token_ids, rest.metrics)


def _call(call: ToolCallDelta) -> bytes:
    return b'{"id":%b,"type":%b,"index":%d,"function":{"name":%b,"arguments":%b}}' % (
        _encode(call.id),
        NULL if call.id is None else b'"function"',
        call.index,
        _encode(call.name),
        _encode(call.arguments),
    )


class TextShape:
    """Answers of one completion stream; each ends where the state begins."""

    def __init__(self, chunk_id: str, model: str, created: int, index: int) -> None:
        self._open = b'{"chunk":{"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            _encode(chunk_id),
            created,
            _encode(model),
        )
        self._text = self._open + b'{"index":%d,"text":' % index

    def text(self, text: str) -> bytes:
        """A chunk with nothing but text."""
        return self._text + _encode(text) + _TEXT_QUIET_END

    def full(self, delta: Delta, logprobs: dict[str, list[object]] | None, rest: Rest) -> bytes:
        """Any chunk with a choice."""
        return (
            self._text
            + _encode(delta.content or "")
            + b',"logprobs":%b,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":%b,"token_ids":%b,'
            b'"weight_versions":null}],"usage":%b'
            % (
                _encode(logprobs),
                _encode(delta.finish_reason),
                _encode(delta.stop_reason),
                rest.prompt_token_ids,
                rest.token_ids,
                rest.usage,
            )
            + _TEXT_END % rest.metrics
        )

    def without_choice(self, rest: Rest) -> bytes:
        return self._open + b'],"usage":' + rest.usage + _TEXT_END % rest.metrics
