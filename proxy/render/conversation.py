"""OpenAI messages as chat templates expect them (vLLM 0.33's rules, compared in tests/render).

Content becomes one string or a list of parts, whichever the template reads; the arguments of past tool calls become
objects; reasoning goes by both names that templates use; ``developer`` becomes ``system`` where the template does
not know it.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.protocol.messages import MEDIA_PARTS, TEXT_PARTS

Message = dict[str, Any]
# keys of parts that have a meaning of their own; templates get to see the others (``cache_control``, say)
_PART_KEYS = frozenset({"type", "uuid", "closed", "signature", *TEXT_PARTS.values(), *MEDIA_PARTS})


def template_messages(messages: list[Message], *, as_parts: bool) -> list[Message]:
    """Checked ``messages`` for a template; ``as_parts``: it iterates over content. The input is not changed."""
    return [_template_message(message, as_parts) for message in messages]


def _template_message(message: Message, as_parts: bool) -> Message:
    role = message["role"]
    result: Message = {"role": role, "content": _content(message.get("content"), as_parts)}
    if role == "assistant":
        # an empty list of calls would keep templates from their ordinary branch
        if calls := message.get("tool_calls"):
            result["tool_calls"] = [_tool_call(call) for call in calls]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        content = result["content"]
        # most templates take a tool's answer as a string only
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            result["content"] = "\n".join(part["text"] for part in content)
    elif role == "developer":
        result["tools"] = message.get("tools")
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            result[key] = message[key]
    return result


def _content(content: str | list[Any] | None, as_parts: bool) -> str | list[Message]:
    parts: list[Any] = [] if content is None else [content] if isinstance(content, str) else content
    result: list[Message] = []
    for part in parts:
        kind = "text" if isinstance(part, str) else part["type"]
        text = part if isinstance(part, str) else part.get(TEXT_PARTS[kind])
        if text is None:
            continue
        if kind == "tool_reference":
            result.append({"type": kind, "name": text})
        else:
            unknown = {} if isinstance(part, str) else {k: v for k, v in part.items() if k not in _PART_KEYS}
            result.append({"type": "text", "text": text, **unknown})
    if as_parts:
        return result
    return "\n".join(text for part in result if (text := part.get("text") or part.get("name")))


def _tool_call(call: Message) -> Message:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            # history cannot be mended by the client: an error here would end the conversation for good
            arguments = {}
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": function}


def developer_as_system(messages: list[Message]) -> list[Message]:
    """``developer`` turned into ``system``, and all system messages merged in front if they are not there already."""
    converted = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    system = [message for message in converted if message["role"] == "system"]
    if not system or (len(system) == 1 and converted[0] is system[0]):
        return converted
    texts = [_joined(message["content"]) for message in system]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in converted if message["role"] != "system")]


def _joined(content: str | list[Message]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def history_tool_calls(messages: list[Message]) -> int:
    """How many tool calls the conversation has had so far; Kimi's ids count on from there."""
    return sum(len(message.get("tool_calls") or ()) for message in messages if message["role"] == "assistant")
