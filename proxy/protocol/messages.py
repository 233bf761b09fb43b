"""Checks of what a chat request carries as plain objects: messages, tools, ``tool_choice``.

They stay dicts, because a chat template may read any key of them; what is checked is what every reader relies on.
"""

from __future__ import annotations

from typing import Any

from proxy.errors import RequestError
from proxy.protocol.decode import vllm_error

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# part type -> the key that holds its text
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
MEDIA_PARTS = (
    "image_url",
    "input_image",
    "image_embeds",
    "image_pil",
    "audio_url",
    "input_audio",
    "audio_embeds",
    "video_url",
    "video_embeds",
    "prompt_embeds",
    "file",
)
_TOOL_CHOICE_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


def check_messages(messages: list[dict[str, Any]], *, media: bool) -> None:
    """Raise RequestError at the first message that is not one; ``media``: parts that are not text may pass."""
    if not messages:
        raise RequestError(
            "Cannot apply chat template to an empty conversation. Provide at least one message.", param="messages"
        )
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        role = message.get("role")
        if not isinstance(role, str):
            raise RequestError(f"`{path}.role` must be a string.", param=f"{path}.role")
        if role not in ROLES:
            raise RequestError(f"`{path}.role` must be one of {', '.join(ROLES)}.", param=f"{path}.role")
        _check_content(message.get("content"), f"{path}.content", media)
        for key in ("reasoning", "reasoning_content", "name", "tool_call_id"):
            if not isinstance(message.get(key), str | None):
                raise RequestError(f"`{path}.{key}` must be a string or null.", param=f"{path}.{key}")
        if role == "assistant":
            _check_tool_calls(message.get("tool_calls"), f"{path}.tool_calls")


def has_media(messages: list[dict[str, Any]]) -> bool:
    """Whether a message of checked ``messages`` has a part that is not text."""
    return any(
        isinstance(part, dict) and part.get("type") in MEDIA_PARTS
        for message in messages
        if isinstance(parts := message.get("content"), list)
        for part in parts
    )


def _check_content(content: object, path: str, media: bool) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError(f"`{path}` must be a string, an array of parts or null.", param=path)
    for index, part in enumerate(content):
        at = f"{path}[{index}]"
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise RequestError(f"`{at}` must be an object.", param=at)
        kind = part.get("type")
        if not isinstance(kind, str):
            raise RequestError(f"`{at}.type` must be a string.", param=f"{at}.type")
        if kind in TEXT_PARTS:
            key = TEXT_PARTS[kind]
            # vLLM skips a text or refusal whose value is null
            if not (isinstance(part.get(key), str) or (part.get(key, 0) is None and kind in ("text", "refusal"))):
                raise RequestError(f"`{at}.{key}` must be a string.", param=f"{at}.{key}")
        elif kind not in MEDIA_PARTS:
            supported = ", ".join(TEXT_PARTS)
            raise RequestError(
                f"`{at}.type` is not a supported content part type. Supported types: {supported}.", param=f"{at}.type"
            )
        elif not media:
            raise RequestError(
                f"`{at}`: parts of type {kind} are not supported, since this server takes text only.", param=at
            )


def _check_tool_calls(calls: object, path: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise RequestError(f"`{path}` must be an array or null.", param=path)
    for index, call in enumerate(calls):
        at = f"{path}[{index}]"
        if not isinstance(call, dict):
            raise RequestError(f"`{at}` must be an object.", param=at)
        if call.get("type", "function") != "function":
            raise RequestError(f'`{at}.type` must be "function".', param=f"{at}.type")
        function = call.get("function")
        if not isinstance(function, dict):
            raise RequestError(f"`{at}.function` must be an object.", param=f"{at}.function")
        if not isinstance(function.get("name"), str):
            raise RequestError(f"`{at}.function.name` must be a string.", param=f"{at}.function.name")
        if not isinstance(function.get("arguments"), str | dict | None):
            raise RequestError(f"`{at}.function.arguments` must be a string.", param=f"{at}.function.arguments")


def normalized_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checked ``tools`` with the keys and nulls that vLLM shows to a chat template."""
    if not tools:
        raise vllm_error(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    return [_normalized_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _normalized_tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        raise RequestError(f'`{path}.type` must be "function".', param=f"{path}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"`{path}.function` must be an object.", param=f"{path}.function")
    at = f"{path}.function"
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(f"`{at}.name` must be a non-empty string.", param=f"{at}.name")
    checks: tuple[tuple[str, type, str], ...] = (
        ("description", str, "a string or null"),
        ("parameters", dict, "an object or null"),
        ("strict", bool, "a boolean or null"),
        ("defer_loading", bool, "a boolean or null"),
    )
    for key, kind, words in checks:
        if not isinstance(function.get(key), kind | None):
            raise RequestError(f"`{at}.{key}` must be {words}.", param=f"{at}.{key}")
    normal: dict[str, Any] = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    for key in ("strict", "defer_loading"):
        if function.get(key) is not None:
            normal[key] = function[key]
    return {"type": "function", "function": normal}


def check_tool_choice(choice: object, tools: list[dict[str, Any]] | None) -> None:
    """Raise RequestError unless ``choice`` is none, null, or fits ``tools`` (checked before)."""
    if choice is None or choice == "none":
        return
    if tools is None:
        raise vllm_error("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice in ("auto", "required"):
        return
    if not isinstance(choice, dict):
        raise RequestError(
            'Invalid value for `tool_choice`! Only named tools, "none", "auto" or "required" are supported.',
            param="tool_choice",
        )
    function = choice.get("function")
    if choice.get("type", "function") != "function" or not isinstance(function, dict):
        raise RequestError(
            f"Invalid value for `function` in `tool_choice`! {_TOOL_CHOICE_USAGE}", param="tool_choice.function"
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(
            f"Invalid `name` in `function` in `tool_choice`! {_TOOL_CHOICE_USAGE}", param="tool_choice.function.name"
        )
    if all(tool["function"]["name"] != name for tool in tools):
        raise vllm_error(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
        )
