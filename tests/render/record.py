"""Record what vLLM's render servers answer: ``python -m tests.render.record NAME URL [FILTER]``.

NAME is a file of tests/data/render: qwen3 (a server with hermes and qwen3 parsers, ``--trust-request-chat-template``),
gptoss (VLLM_SYSTEM_START_DATE=2026-01-01), llama3_1_tool (llama3_json), deepseek_r1 (deepseek_v3, deepseek_r1).
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.render import corpus

DATA = Path(__file__).resolve().parent.parent / "data" / "render"
ROWS = {
    "qwen3": [
        *corpus.PROMPTS, *corpus.TEMPLATES, *corpus.SAMPLING, *corpus.COMPLETIONS, *corpus.TOKENS, *corpus.ERRORS,
    ],
    "gptoss": corpus.PROMPTS,
    "llama3_1_tool": [*corpus.PROMPTS, *corpus.COMPLETIONS],
    "deepseek_r1": corpus.PROMPTS,
}  # fmt: skip


def body_of(name: str, body: dict[str, Any] | str) -> bytes:
    """The bytes of a row's body, with the server's model name in it."""
    if isinstance(body, str):
        return body.encode()
    return json.dumps({**body, "model": name} if body.get("model") == "MODEL" else body).encode()


def answer(url: str, path: str, body: bytes) -> tuple[int, Any]:
    request = urllib.request.Request(url + path, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main(name: str, url: str) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    with (DATA / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for row, path, body in ROWS[name]:
            status, response = answer(url, path, body_of(name, body))
            file.write(json.dumps({"name": row, "status": status, "response": response}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
