"""Ours against what vLLM 0.33's render servers answered (recorded by ``record.py``), field by field.

Where we differ, ``deviations.py`` says so row by row; a listed deviation that is none is a failure too.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.render import deviations
from tests.render.ours import answer, renderer
from tests.render.record import DATA, ROWS, body_of

MISSING = "(missing)"


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def comparable(value: Any) -> Any:
    """Without what cannot be equal: random ids, and a template variable that every vLLM server adds."""
    for body in value if isinstance(value, list) else [value]:
        if "request_id" in body:
            body["request_id"] = body["request_id"].partition("-")[0]
        for key in ("reasoning_parser_kwargs", "parse_context"):
            if body.get(key):
                body[key]["chat_template_kwargs"].pop("cohere_format", None)
    return value


def differences(theirs: Any, ours: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        result = {}
        for key in theirs.keys() | ours.keys():
            inner = f"{path}.{key}" if path else key
            result.update(differences(theirs.get(key, MISSING), ours.get(key, MISSING), inner))
        return result
    if isinstance(theirs, list) and isinstance(ours, list) and any(isinstance(item, dict) for item in theirs + ours):
        return differences(_numbered(theirs), _numbered(ours), path)
    return {} if theirs == ours and type(theirs) is type(ours) else {path: (theirs, ours)}


def _numbered(items: list[Any]) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}


CASES = [(name, index, row[0]) for name, rows in ROWS.items() for index, row in enumerate(rows)]


@pytest.mark.parametrize(("name", "index", "row"), CASES, ids=[f"{name}-{row}" for name, _, row in CASES])
async def test_same_as_vllm(name: str, index: int, row: str) -> None:
    record = recorded(name)[index]
    assert record["name"] == row
    _, path, body = ROWS[name][index]
    status, response = await answer(renderer(name), path, body_of(name, body))
    listed = deviations.of(name, row)
    if listed is None:
        assert status == record["status"], response
        assert differences(comparable(record["response"]), comparable(response)) == {}
        return
    if isinstance(listed, deviations.Refused):
        assert (status, response["error"]["type"]) == (400, "BadRequestError")
        assert response["error"]["param"] == listed.param
        assert listed.message in response["error"]["message"]
        assert record["status"] == 200, "vLLM refuses too"
        return
    assert status == record["status"]
    found = differences(comparable(record["response"]), comparable(response))
    assert {path: value[1] for path, value in found.items()} == listed.ours


def test_every_row_is_recorded() -> None:
    for name, rows in ROWS.items():
        assert [record["name"] for record in recorded(name)] == [row[0] for row in rows]


def test_listed_deviations_are_rows() -> None:
    rows = {(name, row[0]) for name, corpus in ROWS.items() for row in corpus}
    assert set(deviations.LISTED) <= rows
