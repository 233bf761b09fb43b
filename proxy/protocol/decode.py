"""From the bytes of a request body to a typed struct, with every fault told in our own words and by its field.

A fault raises ``RequestError`` whose ``param`` is written as OpenAI writes it: ``messages[0].role``,
``stop_token_ids[2]``. No library's text gets into a message.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from proxy.errors import RequestError

T = TypeVar("T", bound=msgspec.Struct)

MAX_NESTING = 200  # of a body: what reads it later, templates too, recurses, and Python allows 1000 frames in all

_AT = re.compile(r" - at `\$\.?(.*)`$")
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_MISSING_VALUE = object()


def vllm_error(text: str, parameter: str, value: object = _MISSING_VALUE) -> RequestError:
    """A fault that vLLM's render tells too, in the words that clients of vLLM may look for."""
    shown = "" if value is _MISSING_VALUE else f", value={value}"
    return RequestError(f"{text} (parameter={parameter}{shown})", param=parameter)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Anything else, too deeply nested included, is a RequestError."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise RequestError("The request body is not valid JSON.") from error
    if not isinstance(value, dict):
        raise RequestError("The request body must be a JSON object.")
    # few brackets cannot nest deeply, and most bodies have few
    if body.count(b"{") + body.count(b"[") > MAX_NESTING and _deeper_than(value, MAX_NESTING):
        raise RequestError("The request body is nested too deeply.")
    return value


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        inner: list[object] = []
        for node in level:
            items = list(node.values()) if isinstance(node, dict) else node
            # the types first: a prompt of 100,000 ids is not to be walked in Python
            if isinstance(items, list) and not {dict, list}.isdisjoint(map(type, items)):
                inner += [item for item in items if isinstance(item, dict | list)]
        if not inner:
            return False
        level = inner
    return True


def to_struct(data: dict[str, Any], kind: type[T]) -> T:
    """``data`` as ``kind``, strictly: no coercion, a boolean is no integer and ``1.0`` neither.

    Keys that ``kind`` does not know are kept in its field ``extra``.
    """
    known = set(kind.__struct_fields__) - {"extra"}
    fields = {key: value for key, value in data.items() if key in known}
    fields["extra"] = {key: value for key, value in data.items() if key not in known}
    try:
        return msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as error:
        raise in_our_words(str(error)) from error
    except RecursionError as error:
        raise RequestError("The request body is nested too deeply.") from error


def in_our_words(text: str, inside: str = "") -> RequestError:
    """msgspec's validation error ``text`` as one that names the field; ``inside``: where the decoded value stands."""
    at = _AT.search(text)
    path = at.group(1).replace("[...]", "") if at else ""
    path = f"{inside}.{path}".rstrip(".") if inside else path
    if missing := _MISSING.search(text):
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return RequestError(f"`{path}` is required.", param=path)
    if expected := _EXPECTED.search(text):
        want = " or ".join(_WORDS.get(word, word) for word in expected.group(1).split(" | "))
        got = "a fractional number" if expected.group(2) == "float" else _WORDS.get(expected.group(2), "something else")
        return RequestError(f"`{path}` must be {want}, got {got}.", param=path or None)
    return RequestError(f"`{path}` has a value that is not supported.", param=path or None)
