"""The bytes of streamed answers: chunk templates made once a request, strings put between their halves.

Pure: deltas in, bytes out. What does not change within a request (id, object, created, model, index) is encoded
once; a content delta then costs one string encoding and three references. Keys that say nothing are left out,
but for ``logprobs`` and ``finish_reason``, which OpenAI's own chunks always have.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.derender.deltas import Delta, LogprobEntry, ToolCallDelta
from proxy.errors import DONE

_encode = msgspec.json.Encoder().encode

KEEP_ALIVE = b": keep-alive\n\n"
PLAIN_TAIL = b'},"logprobs":null,"finish_reason":null}]}\n\n'

__all__ = ["DONE", "KEEP_ALIVE", "ChatChunks", "CompletionChunks", "dumps", "usage_bytes"]


def dumps(value: object) -> bytes:
    """JSON that survives clients which split lines at every Unicode line end (U+2028, U+2029, U+0085)."""
    raw = _encode(value)
    if raw.isascii():
        return raw
    # In UTF-8 no sequence is part of another character's, so bytes may be searched.
    if b"\xe2\x80\xa8" in raw:
        raw = raw.replace(b"\xe2\x80\xa8", b"\\u2028")
    if b"\xe2\x80\xa9" in raw:
        raw = raw.replace(b"\xe2\x80\xa9", b"\\u2029")
    if b"\xc2\x85" in raw:
        raw = raw.replace(b"\xc2\x85", b"\\u0085")
    return raw


def usage_bytes(prompt: int, completion: int, *, cached: int | None = None, reasoning: int | None = None) -> bytes:
    """The JSON of a usage object; counts are tokens, details are left out where they are not known."""
    tail = b""
    if cached is not None:
        tail += b',"prompt_tokens_details":{"cached_tokens":%d}' % cached
    if reasoning is not None:
        tail += b',"completion_tokens_details":{"reasoning_tokens":%d}' % reasoning
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%s}' % (
        prompt,
        prompt + completion,
        completion,
        tail,
    )


def logprobs_bytes(entries: Sequence[LogprobEntry] | None) -> bytes:
    return b"null" if entries is None else b'{"content":' + dumps(entries) + b"}"


class ChatChunks:
    """Chunks of one ``chat.completion.chunk`` stream with choices 0..n-1."""

    def __init__(
        self,
        chunk_id: str,
        model: str,
        created: int,
        n: int,
        *,
        reasoning_field: str = "reasoning",
        token_ids: bool = False,
    ) -> None:
        self._prefix = b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s,"choices":[' % (
            dumps(chunk_id),
            created,
            dumps(model),
        )
        self._token_ids = token_ids
        self._twice = reasoning_field == "both"
        name = "reasoning_content" if reasoning_field == "reasoning_content" else "reasoning"
        self._reasoning_key = b'"%s":' % name.encode()
        self._heads: list[tuple[bytes, bytes, bytes]] = []
        for index in range(n):
            head = self._prefix + b'{"index":%d,"delta":{' % index
            self._heads.append((head, head + b'"content":', head + self._reasoning_key))

    def role(
        self,
        index: int,
        prompt_token_ids: Sequence[int] | None = None,
        usage: bytes | None = None,
        prompt_text: str | None = None,
    ) -> bytes:
        """The first chunk of a choice; the prompt, as ids or text, is given with it where the client asked for it."""
        head = self._heads[index][0] + b'"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        if prompt_token_ids is not None:
            head += b',"prompt_token_ids":' + dumps(prompt_token_ids)
        if prompt_text is not None:
            head += b',"prompt_text":' + dumps(prompt_text)
        if usage is not None:
            head += b',"usage":' + usage
        return head + b"}\n\n"

    def add(self, out: list[bytes], index: int, deltas: list[Delta], usage: bytes | None = None) -> None:
        """Append to ``out`` one event for each delta; ``usage`` (continuous) stands in every one of them."""
        head, content_head, reasoning_head = self._heads[index]
        plain = usage is None and not self._token_ids
        for delta in deltas:
            if plain and delta.finish_reason is None and delta.logprobs is None and delta.tool_calls is None:
                text = delta.content
                if text is not None:
                    if delta.reasoning is None:
                        # One concatenation is half the price of three appends.
                        out.append(content_head + (_encode(text) if text.isascii() else dumps(text)) + PLAIN_TAIL)
                        continue
                elif not self._twice:
                    text = delta.reasoning
                    if text is not None:
                        out.append(reasoning_head + (_encode(text) if text.isascii() else dumps(text)) + PLAIN_TAIL)
                        continue
            self._full(out, head, delta, usage)

    def _full(self, out: list[bytes], head: bytes, delta: Delta, usage: bytes | None) -> None:
        out.append(head)
        fields: list[bytes] = []
        if delta.reasoning is not None:
            text = dumps(delta.reasoning)
            fields.append(self._reasoning_key + text)
            if self._twice:
                fields.append(b'"reasoning_content":' + text)
        if delta.content is not None:
            fields.append(b'"content":' + dumps(delta.content))
        if delta.tool_calls:
            fields.append(b'"tool_calls":[' + b",".join([_call(call) for call in delta.tool_calls]) + b"]")
        out.append(b",".join(fields))
        if delta.finish_reason is None:
            if delta.logprobs is None and usage is None and not self._token_ids:
                out.append(PLAIN_TAIL)
                return
            finish = b',"finish_reason":null'
        else:
            finish = b',"finish_reason":%s,"stop_reason":%s' % (dumps(delta.finish_reason), dumps(delta.stop_reason))
        out += (b'},"logprobs":', logprobs_bytes(delta.logprobs), finish)
        if self._token_ids:
            out.append(b',"token_ids":' + _encode(delta.token_ids))
        out.append(b"}]}\n\n" if usage is None else b'}],"usage":' + usage + b"}\n\n")

    def usage(self, usage: bytes) -> bytes:
        """The chunk without choices that carries the final usage."""
        return self._prefix + b'],"usage":' + usage + b"}\n\n"


def _call(call: ToolCallDelta) -> bytes:
    """One entry of ``tool_calls``: id, type and name with the first piece of a call, arguments with all."""
    arguments = dumps(call.arguments or "")
    if call.name is None and call.id is None:
        return b'{"index":%d,"function":{"arguments":%s}}' % (call.index, arguments)
    return b'{"index":%d,"id":%s,"type":"function","function":{"name":%s,"arguments":%s}}' % (
        call.index,
        dumps(call.id),
        dumps(call.name),
        arguments,
    )


class CompletionChunks:
    """Chunks of one ``text_completion`` stream; choices are flat over the prompts."""

    def __init__(self, chunk_id: str, model: str, created: int, n: int, *, token_ids: bool = False) -> None:
        self._prefix = b'data: {"id":%s,"object":"text_completion","created":%d,"model":%s,"choices":[' % (
            dumps(chunk_id),
            created,
            dumps(model),
        )
        self._token_ids = token_ids
        self._heads = [self._prefix + b'{"index":%d,"text":' % index for index in range(n)]
        self._offsets = [0] * n

    def echo(
        self, index: int, text: str, prompt_token_ids: Sequence[int] | None = None, usage: bytes | None = None
    ) -> bytes:
        """The chunk that gives the prompt back; later logprobs count their offsets from its end."""
        self._offsets[index] += len(text)
        head = self._heads[index] + dumps(text) + b',"logprobs":null,"finish_reason":null,"stop_reason":null'
        if prompt_token_ids is not None:
            head += b',"prompt_token_ids":' + dumps(prompt_token_ids) + b',"token_ids":[]'
        return head + (b"}]}\n\n" if usage is None else b'}],"usage":' + usage + b"}\n\n")

    def add(self, out: list[bytes], index: int, deltas: list[Delta], usage: bytes | None = None) -> None:
        """Append to ``out`` one event for each delta."""
        head = self._heads[index]
        plain = usage is None and not self._token_ids
        for delta in deltas:
            text = delta.content or ""
            encoded = _encode(text) if text.isascii() else dumps(text)
            if plain and delta.finish_reason is None and delta.logprobs is None:
                out.append(head + encoded + b',"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n')
                continue
            if delta.logprobs is None:
                logprobs = b"null"
            else:
                shaped = completion_logprobs(delta.logprobs, self._offsets[index])
                logprobs = dumps(shaped)
            tail = b',"logprobs":%s,"finish_reason":%s,"stop_reason":%s' % (
                logprobs,
                dumps(delta.finish_reason),
                dumps(delta.stop_reason),
            )
            if self._token_ids:
                tail += b',"token_ids":' + _encode(delta.token_ids)
            if delta.logprobs:
                self._offsets[index] += sum(len(entry.token) for entry in delta.logprobs)
            out += (head, encoded, tail, b"}]}\n\n" if usage is None else b'}],"usage":' + usage + b"}\n\n")

    def usage(self, usage: bytes) -> bytes:
        """The chunk without choices that carries the final usage."""
        return self._prefix + b'],"usage":' + usage + b"}\n\n"


def completion_logprobs(entries: Sequence[LogprobEntry], offset: int) -> dict[str, list[object]]:
    """Entries in the shape of the completions endpoint; ``text_offset`` counts characters from ``offset``."""
    shaped: dict[str, list[object]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for entry in entries:
        shaped["text_offset"].append(offset)
        shaped["token_logprobs"].append(entry.logprob)
        shaped["tokens"].append(entry.token)
        candidates = {entry.token: entry.logprob}
        for candidate in entry.top_logprobs:
            candidates.setdefault(candidate.token, candidate.logprob)
        shaped["top_logprobs"].append(candidates)
        offset += len(entry.token)
    return shaped
