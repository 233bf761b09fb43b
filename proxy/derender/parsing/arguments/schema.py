"""Values without types on the wire, and the JSON schema that gives them one.

Formats in the XML style write every value as bare text. The tool's schema decides what it is: a string
stays verbatim, anything else is read as JSON (or as the Python literal that some models write), and a
value that does not fit its type stays a string. Numbers are copied digit by digit: going through a double
would change them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

# References may be nested, or circular.
_DEPTH = 16

_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.0+)?\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_LITERALS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NULLS = ("null", "None")
_ALL_TYPES = ("null", "boolean", "integer", "number", "object", "array", "string")
_NAMES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}

quote = encode_basestring  # JSON string of a text, with its quotes; other characters than those JSON wants stay


def quote_inner(text: str) -> str:
    """A piece of a JSON string: ``text`` escaped, without quotes."""
    return encode_basestring(text)[1:-1]


def types_of(schema: object, root: Mapping[str, object], depth: int = 0) -> tuple[str, ...]:
    """The JSON types that ``schema`` allows, in its order; () where it does not say.

    ``root`` is the schema of all parameters, whose ``$defs`` (or ``definitions``) references point into.
    """
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return ()
    found: list[str] = []
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found += types_of(_resolve(reference, root), root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, str):
        found.append(kind)
    elif isinstance(kind, list):
        found += [name for name in kind if isinstance(name, str)]
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list):
            for option in options:
                found += types_of(option, root, depth + 1)
    if not found:
        if isinstance(schema.get("enum"), list):
            found += [_NAMES.get(type(value), "string") for value in schema["enum"]]
        elif "const" in schema:
            found.append(_NAMES.get(type(schema["const"]), "string"))
        elif "properties" in schema:
            found.append("object")
        elif "items" in schema:
            found.append("array")
    if schema.get("nullable") is True and found:
        found.append("null")
    return tuple(dict.fromkeys(found))


def _resolve(reference: str, root: Mapping[str, object]) -> object:
    node: object = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/"):
        if not part:
            continue
        if not isinstance(node, Mapping):
            return None
        node = node.get(part.replace("~1", "/").replace("~0", "~"))
    return node


def parameter_types(parameters: Mapping[str, object], name: str) -> tuple[str, ...]:
    """The types of one parameter of a tool: () where its schema says nothing of it."""
    properties = parameters.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return types_of(properties[name], parameters)
    extra = parameters.get("additionalProperties")
    return types_of(extra, parameters) if isinstance(extra, Mapping) else ()


def is_verbatim(types: tuple[str, ...]) -> bool:
    """Whether a value of these types is text as it stands, so that it can be sent as it comes."""
    return types == ("string",)


def convert(text: str, types: tuple[str, ...]) -> str:
    """The JSON text of a value that was written as ``text``: the first type that fits, string last."""
    bare = text.strip()
    allowed = types or _ALL_TYPES
    for kind in (*(name for name in allowed if name == "null"), *(n for n in allowed if n not in ("null", "string"))):
        value = _as(kind, bare)
        if value is not None:
            return value
    if "string" in allowed and bare[:1] == '"' and not types:
        value = _json(bare, str)
        if value is not None:
            return value
    return quote(text)


def _as(kind: str, text: str) -> str | None:
    if kind == "null":
        return "null" if text in _NULLS else None
    if kind == "boolean":
        return _LITERALS.get(text)
    if kind == "integer":
        return text if _INTEGER.match(text) else None
    if kind == "number":
        return text if _NUMBER.match(text) else None
    if kind == "object" and text[:1] == "{":
        return _json(text, dict)
    if kind == "array" and text[:1] == "[":
        return _json(text, list)
    return None


def _json(text: str, kind: type) -> str | None:
    """``text`` as JSON if it is a document of that type (or the Python literal of one)."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text)
            rewritten = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        return rewritten if isinstance(value, kind) else None
    return text if isinstance(value, kind) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
