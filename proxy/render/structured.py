"""What constrains an answer: ``response_format``, ``structured_outputs`` and a forced tool call, as vLLM 0.33 sends it.

Only an engine with a tokenizer can constrain. Without one the first two are refused, and a forced call goes
unconstrained: the parsers then take the family's markup as well as plain JSON.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.errors import RequestError
from proxy.protocol.decode import vllm_error
from proxy.protocol.openai import ChatCompletionRequest, GenerationFields

Tool = dict[str, Any]
# vLLM's StructuredOutputsParams on the wire
EMPTY: dict[str, Any] = {
    "json": None,
    "regex": None,
    "choice": None,
    "grammar": None,
    "json_object": None,
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
    "whitespace_pattern": None,
    "structural_tag": None,
    "_backend": None,
    "_backend_was_auto": False,
}
# families whose calls stand between tags and are a JSON object with name and arguments
_HERMES_STYLE = {"hermes": ("<tool_call>", "</tool_call>"), "longcat": ("<longcat_tool_call>", "</longcat_tool_call>")}
# A JSON answer in the place of markup would break the channels that these families write
_UNCONSTRAINED = frozenset({"openai", "none"})


def constraint(request: GenerationFields, *, has_tokenizer: bool, tool_parser: str | None) -> dict[str, Any] | None:
    """The ``structured_outputs`` of the sampling parameters, or None.

    RequestError where the engine cannot constrain and the client insists. A forced call needs no parser: plain JSON
    is read as a call then.
    """
    if not has_tokenizer:
        _refuse(request)
        return None
    asked = _asked(request)
    if isinstance(request, ChatCompletionRequest) and request.tools:
        forced = _tool_constraint(request, request.tools, tool_parser, asked)
        if forced is not None:
            return {**EMPTY, **forced}
    return asked


def _refuse(request: GenerationFields) -> None:
    reason = "is not supported: the engine runs without a tokenizer and cannot constrain its output."
    if request.response_format is not None and request.response_format["type"] != "text":
        raise RequestError(f"`response_format` {reason}", param="response_format")
    for param in ("structured_outputs", "bad_words"):
        if getattr(request, param):
            raise RequestError(f"`{param}` {reason}", param=param)


def _asked(request: GenerationFields) -> dict[str, Any] | None:
    given = {key: value for key, value in (request.structured_outputs or {}).items() if key in EMPTY and key[0] != "_"}
    form = request.response_format
    if form is not None and form["type"] != "text":
        if form["type"] == "json_object":
            given["json_object"] = True
        elif form["type"] == "json_schema":
            given["json"] = form["json_schema"]["schema"]
        else:
            given["structural_tag"] = json.dumps(form)
        if (
            sum(given.get(key) is not None for key in ("json", "regex", "choice", "grammar", "json_object"))
            + (given.get("structural_tag") is not None)
            > 1
        ):
            raise RequestError(
                "You can only use one kind of structured outputs constraint but multiple are specified.",
                param="structured_outputs",
            )
    return {**EMPTY, **given} if given else None


def _tool_constraint(
    request: ChatCompletionRequest, tools: list[Tool], tool_parser: str | None, asked: dict[str, Any] | None
) -> dict[str, Any] | None:
    choice = request.tool_choice
    single = request.parallel_tool_calls is False
    if choice in (None, "none") or tool_parser in _UNCONSTRAINED:
        return None
    if tool_parser in _HERMES_STYLE:
        strict = any(tool["function"].get("strict") for tool in tools)
        if choice == "auto" and (asked is not None or not (strict or single)):
            return None
        tag = _hermes_tag(tools, choice, _HERMES_STYLE[tool_parser])
        if single:
            tag["stop_after_first"] = True
        return {"structural_tag": json.dumps({"type": "structural_tag", "format": tag})}
    if isinstance(choice, dict):
        return {"json": _parameters(_named(tools, choice))}
    return None if choice == "auto" else {"json": _any_call(tools, single)}


def _named(tools: list[Tool], choice: dict[str, Any]) -> Tool:
    return next(tool for tool in tools if tool["function"]["name"] == choice["function"]["name"])


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool["function"]["parameters"] or {"type": "object", "properties": {}}


def _hermes_tag(tools: list[Tool], choice: str | dict[str, Any] | None, marks: tuple[str, str]) -> dict[str, Any]:
    start, end = marks
    named = [_named(tools, choice)] if isinstance(choice, dict) else tools
    tags = [
        {
            "type": "tag",
            "begin": f'{start}{gap}{{"name": "{tool["function"]["name"]}", "arguments": ',
            "content": {
                "type": "json_schema",
                # only a strict tool has its arguments constrained, not just its envelope
                "json_schema": tool["function"]["parameters"] or True if tool["function"].get("strict") else True,
                "style": "json",
                "any_order": False,
                "max_whitespace_cnt": None,
                "excludes": [],
            },
            "end": f"}}{gap}{end}",
        }
        for tool in named
        for gap in ("\n", "")
    ]
    if choice == "auto":
        return {
            "type": "triggered_tags",
            "triggers": [start],
            "tags": tags,
            "at_least_one": False,
            "stop_after_first": False,
            "excludes": [],
        }
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "",
        "at_least_one": True,
        "stop_after_first": isinstance(choice, dict),
    }


def _any_call(tools: list[Tool], single: bool) -> dict[str, Any]:
    """A JSON array of calls, each ``{"name", "parameters"}``; shared ``$defs`` move to the top."""
    shared: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict(_parameters(tool))
        defs = parameters.pop("$defs", {})
        name = tool["function"]["name"]
        if not isinstance(defs, dict):
            raise vllm_error(f"`$defs` in the parameters of tool '{name}' must be an object.", "tools")
        for key, value in defs.items():
            if shared.setdefault(key, value) != value:
                raise vllm_error(f"Tool definition '{key}' has multiple schemas, which is not supported.", "tools")
        calls.append(
            {
                "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
                "required": ["name", "parameters"],
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    if single:
        schema["maxItems"] = 1
    if shared:
        schema["$defs"] = shared
    return schema
