"""Takes back what ``return_token_ids`` changed in an answer, byte for byte, and keeps the ids.

What it changes (vLLM 0.33, read and observed): ``token_ids`` of each choice and ``prompt_token_ids`` of the first
event (of a choice, in completions) are lists instead of null, and a chat stream has an event for every engine step,
where without it steps that say nothing have none. Everything else stays as it is. So the lists become null again,
where they stand, and events that are there only because of it are dropped: an empty delta, no finish, no logprobs.

A server that leaves nulls out (vLLM's Rust frontend) would not have had the fields at all: there they are cut out,
with one comma.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

# A key can be told from text that spells it: inside a string its quotes would have backslashes before them.
_IDS = re.compile(rb'"(?:prompt_)?token_ids"\s*:\s*(\[[\d,\s]*\])')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.S)
_COMMA_AFTER = re.compile(rb"\s*,\s*")
_EMPTY_DELTA = re.compile(rb'"delta"\s*:\s*\{\s*\}')
# What vLLM writes into every event of a stream, null or not; its Rust frontend does not.
_WRITES_NULLS = re.compile(
    rb'"(?:logprobs|(?:finish|stop)_reason|prompt_t(?:ext|oken_ids)|kv_transfer_params)"\s*:\s*null'
)


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, gc=False):
    index: int | None = None  # streams only
    function: Function = msgspec.field(default_factory=Function)


class Said(msgspec.Struct, gc=False):
    """A ``delta`` or a ``message``."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: Said | None = None
    message: Said | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class ReasoningDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    completion_tokens_details: ReasoningDetails | None = None


class Event(msgspec.Struct, gc=False):
    """An event of a chat or completion stream, or a whole answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


decode = msgspec.json.Decoder(Event).decode


def undone(data: bytes, event: Event) -> bytes:
    """``data``, the JSON of ``event``, with its ids taken back; ``event`` keeps them."""
    wanted = int(event.prompt_token_ids is not None)
    for choice in event.choices:
        wanted += (choice.token_ids is not None) + (choice.prompt_token_ids is not None)
    if not wanted:
        return data
    if wanted == 1 and event.choices and data.count(b'token_ids":') == 1:
        # The common event: one list, after a key that stands nowhere else.
        start = data.find(b'"token_ids":[')
        if start >= 0 and _WRITES_NULLS.search(data) is not None:
            return data[: start + 12] + b"null" + data[data.index(b"]", start) + 1 :]
    spans = [match.span() for match in _IDS.finditer(data)]
    if len(spans) != wanted:
        # The same key stands somewhere else too, in parameters of a KV transfer perhaps.
        spans = list(_places(data))
    nulls = _WRITES_NULLS.search(data) is not None
    for start, end in reversed(spans):
        data = _with_null(data, start, end) if nulls else _without(data, start, end)
    return data


def only_for_ids(data: bytes, event: Event) -> bool:
    """Whether a chat event is there only because ids were asked for."""
    if len(event.choices) != 1:
        return False
    choice = event.choices[0]
    delta = choice.delta
    if delta is None or choice.finish_reason is not None or choice.token_ids is None:
        return False
    if delta.content is not None or delta.reasoning is not None or delta.tool_calls is not None:
        return False
    return bytes(choice.logprobs) == b"null" and _EMPTY_DELTA.search(data) is not None


def _with_null(data: bytes, start: int, end: int) -> bytes:
    return data[: data.index(b"[", start)] + b"null" + data[end:]


def _without(data: bytes, start: int, end: int) -> bytes:
    after = _COMMA_AFTER.match(data, end)
    if after is not None:
        return data[:start] + data[after.end() :]
    return data[:start].rstrip().removesuffix(b",") + data[end:]


def _places(data: bytes) -> Iterator[tuple[int, int]]:
    """Where ``token_ids`` and ``prompt_token_ids`` of the answer and of its choices stand, and nowhere deeper."""
    path: list[bytes] = []  # the key under which each open bracket stands
    last = b""  # the last string, which is the key where a value follows
    for token in _TOKEN.finditer(data):
        text = token.group()
        if text in (b"{", b"["):
            if text == b"[" and last in (b'"token_ids"', b'"prompt_token_ids"'):
                in_choice = len(path) == 3 and path[1] == b'"choices"'
                if in_choice or (len(path) == 1 and last == b'"prompt_token_ids"'):
                    start = data.rindex(last, 0, token.start())
                    yield start, data.index(b"]", token.end()) + 1
            path.append(last)
            last = b""
        elif text in (b"}", b"]"):
            path.pop()
            last = b""
        elif text == b",":
            last = b""
        else:
            last = text
