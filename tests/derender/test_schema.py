"""Untyped values and the schemas that type them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.derender.parsing.arguments.schema import convert, parameter_types, types_of

DEFS: dict[str, Any] = {
    "$defs": {
        "Range": {"type": "object"},
        "Mode": {"type": "string", "enum": ["fast"]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Deep": {"$ref": "#/$defs/Mode"},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, ("string",)),
        ({"type": ["integer", "null"]}, ("integer", "null")),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ("integer", "null")),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, ("array", "string")),
        ({"allOf": [{"$ref": "#/$defs/Range"}]}, ("object",)),
        ({"$ref": "#/$defs/Deep"}, ("string",)),
        ({"$ref": "#/$defs/Loop"}, ()),
        ({"$ref": "#/nowhere"}, ()),
        ({"$ref": "http://elsewhere"}, ()),
        ({"type": "integer", "nullable": True}, ("integer", "null")),
        ({"enum": [1, "a", None, True]}, ("integer", "string", "null", "boolean")),
        ({"const": 1.5}, ("number",)),
        ({"properties": {}}, ("object",)),
        ({"items": {}}, ("array",)),
        ({}, ()),
        (True, ()),
        (None, ()),
        ({"type": 5}, ()),
    ],
)
def test_types_of_a_schema(schema: object, types: tuple[str, ...]) -> None:
    assert types_of(schema, DEFS) == types


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("3", ("integer",), "3"),
        ("9007199254740993", ("integer",), "9007199254740993"),
        ("10.10", ("number",), "10.10"),
        ("1e20", ("number",), "1e20"),
        ("1e-05", (), "1e-05"),
        ("3.0", ("integer",), "3.0"),
        ("3.5", ("integer",), '"3.5"'),
        ("012", ("integer",), '"012"'),
        ("NaN", ("number",), '"NaN"'),
        ("Infinity", (), '"Infinity"'),
        ("123_456", ("integer",), '"123_456"'),
        ("next week", ("integer",), '"next week"'),
        ("true", ("boolean",), "true"),
        ("True", ("boolean",), "true"),
        ("maybe", ("boolean",), '"maybe"'),
        ("null", ("string", "null"), "null"),
        ("None", ("integer", "null"), "null"),
        ("null", ("string",), '"null"'),
        ("007", ("string",), '"007"'),
        ('{"x": 1}', ("object",), '{"x": 1}'),
        ('{"x": 1}', ("string",), '"{\\"x\\": 1}"'),
        ("{'x': True, 'y': None}", ("object",), '{"x": true, "y": null}'),
        ('["a", "b"]', ("array",), '["a", "b"]'),
        ("[1, 2", ("array",), '"[1, 2"'),
        ("5", ("string", "integer"), "5"),
        ("five", ("string", "integer"), '"five"'),
        ("Paris", (), '"Paris"'),
        ("12", (), "12"),
        ("false", (), "false"),
        ('"quoted"', (), '"quoted"'),
        ('"quoted"', ("string",), '"\\"quoted\\""'),
        ("  padded ", ("string",), '"  padded "'),
        ("  5 ", ("integer",), "5"),
        ("(1, 2)", ("array",), '"(1, 2)"'),
        ('é\n\t"', ("string",), '"é\\n\\t\\""'),
    ],
)
def test_a_value_becomes_the_first_type_that_fits(text: str, types: tuple[str, ...], expected: str) -> None:
    assert convert(text, types) == expected
    json.loads(convert(text, types))


def test_a_deeply_nested_value_is_no_crash() -> None:
    assert json.loads(convert("[" * 100_000, ("array",))) == "[" * 100_000


def test_parameters_that_the_schema_does_not_list() -> None:
    parameters = {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert parameter_types(parameters, "a") == ("integer",)
    assert parameter_types(parameters, "b") == ("string",)
    assert parameter_types({"properties": []}, "a") == ()
    assert parameter_types({}, "a") == ()
