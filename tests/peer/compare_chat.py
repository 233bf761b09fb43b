"""By hand: the same scripted conversations through the sidecar and through a coupled vLLM server.

Needs a real token-only engine behind a running sidecar and a coupled server of the same model, both of which
take scripted answers (``vllm_xargs.force_ids``). Usage::

    python -m tests.peer.compare_chat --sidecar http://127.0.0.1:8000 --coupled http://127.0.0.1:8202 CAPTURE...

Each CAPTURE is a recorded chat request (``>>> POST /v1/chat/completions`` and ``>>> {body}``); it is sent to both
servers, streamed and not, with usage, and the folded answers are compared: reasoning, content, tool calls,
finish and stop reason, usage. Both sidecar answers are compared with the *streamed* one of the coupled server.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import httpx

Answer = dict[str, Any]


def body_of(capture: Path) -> dict[str, Any]:
    lines = [line[4:] for line in capture.read_text().splitlines() if line.startswith(">>> ")]
    body: dict[str, Any] = json.loads(lines[1])
    return body


def folded(base: str, body: dict[str, Any]) -> Answer:
    """A streamed answer, all its deltas added up."""
    answer: Answer = {"choices": {}, "usage": None}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{base}/v1/chat/completions", json={**body, **options}, timeout=120) as response:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            answer["usage"] = event.get("usage") or answer["usage"]
            for choice in event["choices"]:
                add(answer["choices"].setdefault(choice["index"], empty()), choice)
    return answer


def empty() -> Answer:
    return {
        "reasoning": "",
        "content": "",
        "tool_calls": [],
        "finish_reason": None,
        "stop_reason": None,
        "logprobs": [],
    }


def add(into: Answer, choice: dict[str, Any]) -> None:
    delta = choice["delta"]
    into["reasoning"] += delta.get("reasoning") or ""
    into["content"] += delta.get("content") or ""
    for call in delta.get("tool_calls") or ():
        if call["index"] == len(into["tool_calls"]):
            into["tool_calls"].append({"name": "", "arguments": ""})
        entry, function = into["tool_calls"][call["index"]], call.get("function") or {}
        entry["name"] += function.get("name") or ""
        entry["arguments"] += function.get("arguments") or ""
    if choice.get("logprobs"):
        into["logprobs"] += [entry["token"] for entry in choice["logprobs"]["content"]]
    if choice["finish_reason"]:
        into["finish_reason"], into["stop_reason"] = choice["finish_reason"], choice.get("stop_reason")


def whole(base: str, body: dict[str, Any]) -> Answer:
    """The answer in one piece, in the same shape."""
    options = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    response = httpx.post(f"{base}/v1/chat/completions", json=options, timeout=120)
    response.raise_for_status()
    data = response.json()
    choices = {}
    for choice in data["choices"]:
        message = choice["message"]
        choices[choice["index"]] = {
            "reasoning": message.get("reasoning") or "",
            "content": message["content"] or "",
            "tool_calls": [
                {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
                for call in message.get("tool_calls") or ()
            ],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
            "logprobs": [entry["token"] for entry in (choice["logprobs"] or {}).get("content") or ()],
        }
    return {"choices": choices, "usage": data["usage"]}


def usage(answer: Answer) -> Answer:
    """The counts that both servers give."""
    found = {key: answer["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    found["reasoning_tokens"] = (answer["usage"].get("completion_tokens_details") or {}).get("reasoning_tokens")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sidecar", required=True)
    parser.add_argument("--coupled", required=True)
    parser.add_argument("captures", nargs="+", type=Path)
    options = parser.parse_args()
    differences = 0
    for capture in options.captures:
        body = body_of(capture)
        expected = folded(options.coupled, body)
        for mode, answer in (("streamed", folded(options.sidecar, body)), ("whole", whole(options.sidecar, body))):
            same = answer["choices"] == expected["choices"] and usage(answer) == usage(expected)
            print(f"{capture.stem:45} {mode:9} {'equal' if same else 'DIFFERENT'}")
            if not same:
                differences += 1
                print("  sidecar", json.dumps([answer["choices"], usage(answer)], ensure_ascii=False))
                print("  coupled", json.dumps([expected["choices"], usage(expected)], ensure_ascii=False))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
