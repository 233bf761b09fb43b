"""Asking the sidecar over HTTP and reading what comes back, as strictly as the strictest client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.servers import DEMO_NAME

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def call(city: str, **more: Any) -> str:
    arguments = json.dumps({"city": city, **more}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


def chat_body(text: str | list[str] = "hello", *, xargs: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A chat request that the simulator answers with ``text``."""
    return {
        "model": DEMO_NAME,
        "messages": [{"role": "user", "content": "Hi"}],
        "vllm_xargs": {"force_text": text, **(xargs or {})},
    } | fields


def completion_body(text: str | list[str] = "hello", *, xargs: dict[str, Any] | None = None, **fields: Any):
    return {
        "model": DEMO_NAME,
        "prompt": "Once upon a time",
        "max_tokens": 200,
        "vllm_xargs": {"force_text": text, **(xargs or {})},
    } | fields


def post(url: str, body: Any, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=30, **options)


def events(text: str) -> list[Any]:
    """The events of an SSE body: comments dropped, ``[DONE]`` as the string "DONE". LF framing is required."""
    assert "\r" not in text
    assert text.endswith("\n\n")
    found: list[Any] = []
    for frame in text[:-2].split("\n\n"):
        if frame.startswith(":"):
            continue
        assert frame.startswith("data: ") and "\n" not in frame
        data = frame[6:]
        found.append("DONE" if data == "[DONE]" else json.loads(data))
    return found


def stream(url: str, body: dict[str, Any], path: str = "/v1/chat/completions", **options: Any) -> list[Any]:
    """The events of a streamed answer, without the final ``[DONE]``, which must be there once."""
    response = post(url, body | {"stream": True}, path, **options)
    assert response.status_code == 200, response.text
    found = events(response.text)
    assert found.count("DONE") == 1 and found[-1] == "DONE"
    return found[:-1]


def fold(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """What a client makes of chat chunks, by choice; checks the shape of every delta on the way."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        for choice in chunk["choices"]:
            assert {"index", "delta", "logprobs", "finish_reason"} <= choice.keys()
            delta = choice["delta"]
            if choice["index"] not in choices:
                assert delta == {"role": "assistant", "content": ""}
                choices[choice["index"]] = {
                    "reasoning": "", "content": "", "tool_calls": [], "finish_reason": None, "stop_reason": None,
                    "logprobs": [], "token_ids": [],
                }  # fmt: skip
                continue
            message = choices[choice["index"]]
            assert "role" not in delta
            assert message["finish_reason"] is None, "something after the finish"
            assert None not in delta.values()
            message["reasoning"] += delta.get("reasoning", "")
            message["content"] += delta.get("content", "")
            for entry in delta.get("tool_calls", []):
                if entry["index"] == len(message["tool_calls"]):
                    assert entry["id"] and entry["type"] == "function" and entry["function"]["name"]
                    begun = {"id": entry["id"], "name": entry["function"]["name"], "arguments": ""}
                    message["tool_calls"].append(begun)
                else:
                    assert entry.keys() == {"index", "function"} and entry["function"].keys() == {"arguments"}
                message["tool_calls"][entry["index"]]["arguments"] += entry["function"].get("arguments", "")
            message["logprobs"] += (choice["logprobs"] or {}).get("content", [])
            message["token_ids"] += choice.get("token_ids") or []
            if choice["finish_reason"] is not None:
                message["finish_reason"] = choice["finish_reason"]
                message["stop_reason"] = choice["stop_reason"]
    return choices


def message_of(answer: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """A non-streamed choice in the shape that ``fold`` gives."""
    choice = answer["choices"][index]
    assert choice["index"] == index
    message = choice["message"]
    return {
        "reasoning": message["reasoning"] or "",
        "content": message["content"] or "",
        "tool_calls": [
            {"id": entry["id"], "name": entry["function"]["name"], "arguments": entry["function"]["arguments"]}
            for entry in message.get("tool_calls") or []
        ],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
        "logprobs": (choice["logprobs"] or {}).get("content", []),
        "token_ids": choice["token_ids"] or [],
    }


def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait for what happens in another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
