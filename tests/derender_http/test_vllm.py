"""The recorded exchanges with vLLM's derender server, sent to ours: status and body, but for ``deviations``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.derender_http import deviations
from tests.servers import Sidecar
from tests.tokenizers import tokenizer_dir

FILE = Path(__file__).parent.parent / "data" / "golden" / "derender-probe.jsonl"
EXCHANGES: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
ITEMS = re.compile(r"\.\.\.\[(\d+) items\]\.\.\.")
CHARS = re.compile(r"(.*?)\.\.\.\[(\d+) (?:chars|characters)\]\.\.\.\Z", re.DOTALL)
DRAWN = re.compile(r"(^|\.)(id|created|request_id)$|last_tool_call_ids\[\d+\]$")


@pytest.fixture(scope="module")
def server() -> Iterator[Sidecar]:
    with Sidecar(
        tokenizer_dir("qwen3"),
        engine_url="none",
        max_model_len=40960,
        served_model_name=["qwen3"],
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    ) as running:
        yield running


def whole(value: Any) -> Any:
    """The request with what the recording left out: long lists and texts repeat their last item."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [whole(item) for item in value]
        left_out = ITEMS.fullmatch(items[-1]) if items and isinstance(items[-1], str) else None
        if left_out is None:
            return items
        return items[:-1] + [items[-2]] * (int(left_out[1]) - len(items) + 1)
    return value


def differences(theirs: Any, ours: Any, at: str = "") -> Iterator[str]:
    """Paths of the values that differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            path = f"{at}.{key}" if at else key
            if key not in theirs or key not in ours:
                yield path
            else:
                yield from differences(theirs[key], ours[key], path)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for n, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{at}[{n}]")
    elif theirs != ours:
        yield at


def folded(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of each call joined, ids left out."""
    found: dict[int, dict[str, Any]] = {}
    for call in calls:
        known = found.setdefault(call["index"], {"name": "", "arguments": ""})
        known["name"] += call["function"]["name"] or ""
        known["arguments"] += call["function"]["arguments"] or ""
    return list(found.values())


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange["name"])
def test_exchange(server: Sidecar, exchange: dict[str, Any]) -> None:
    name = exchange["name"]
    body = exchange["request"]
    if exchange["name"] == "render chat too long":
        body = {**body, "messages": [{"role": "user", "content": "hello " * 42000}]}
    content = body if isinstance(body, str) else json.dumps(whole(body))
    answer = httpx.request(
        exchange["method"],
        server.url + exchange["path"],
        content=content if exchange["method"] == "POST" else None,
        headers={"content-type": "application/json", **(exchange["headers"] or {})},
    )
    deviation = deviations.STATUSES.get(name)
    if deviation is not None:
        assert (exchange["status"], answer.status_code) == deviation[:2]
    else:
        assert answer.status_code == exchange["status"], answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == answer.status_code
        assert name in deviations.FIELDS and error["param"] == deviations.FIELDS[name], error
        return
    if deviation is not None or exchange["response"] == "":
        return
    found = {path for path in differences(exchange["response"], answer.json()) if not DRAWN.search(path)}
    assert found - deviations.OURS == set(deviations.BODIES.get(name, {}))


@pytest.mark.parametrize("name", ["stream chat one chunk", "stream chat length finish mid tool"])
def test_merged_entries_say_the_same(server: Sidecar, name: str) -> None:
    exchange = next(item for item in EXCHANGES if item["name"] == name)
    ours = httpx.post(server.url + exchange["path"], json=exchange["request"]).json()
    calls = ours["chunk"]["choices"][0]["delta"]["tool_calls"]
    assert len(calls) == 1
    theirs = folded(exchange["response"]["chunk"]["choices"][0]["delta"]["tool_calls"])
    assert folded(calls) == theirs or folded(calls)[0]["arguments"].startswith(theirs[0]["arguments"])


def test_table_has_no_idle_rows() -> None:
    names = {exchange["name"] for exchange in EXCHANGES}
    assert {*deviations.STATUSES, *deviations.BODIES, *deviations.FIELDS} <= names
    assert all(status.reason for status in deviations.STATUSES.values())
