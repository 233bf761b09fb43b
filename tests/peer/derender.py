"""A stream that goes back and forth between this server and vLLM's derender server, chunk by chunk.

    python -m tests.peer.derender [http://127.0.0.1:8100]

By hand: it needs the reference's ``render-hermes-qwen3``. Every chunk goes to a random one of the two, with the
state that the other made; what is said in all must be what either says alone. Known to differ: 4 of the 80 streams,
where vLLM holds back a lone ``<`` at the moment of the change, since its marker might begin there.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import httpx

from tests.bench.derender import ASKED, CHAT, PROMPT, encode, event, serve

TEXTS = (
    "<think>\nThe user wants weather. 日本語 😀\n</think>\n\nLet me check.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich 鰻", "note": "a \\"b\\""}}\n</tool_call>\n<tool_call>\n'
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "<think>\nNothing to do.\n</think>\n\nJust text, with <b>markup</b> and 🏽 in it.",
)


def chunks_of(text: str, rng: random.Random) -> list[list[int]]:
    ids = [*encode(text), *encode("<|im_end|>")]
    chunks = []
    while ids:
        n = rng.choice((1, 1, 2, 4))
        chunks.append(ids[:n])
        del ids[:n]
    return chunks


def run(servers: list[str], chunks: list[list[int]], rng: random.Random, path: str = CHAT) -> dict[str, Any]:
    """The folded answer; ids of calls must stay what they were first."""
    state: Any = None
    said: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}, "finish": None}
    for n, ids in enumerate(chunks):
        chunk = event(ids, "stop" if n == len(chunks) - 1 else None)
        body = {"stream": True, "model": "qwen3", "generate_chunk": chunk, "stream_state": state}
        if path == CHAT:
            body |= {"chat_request": ASKED, "prompt_token_ids": encode(PROMPT)}
        answer = httpx.post(rng.choice(servers) + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        state = answer.json()["stream_state"]
        choice = answer.json()["chunk"]["choices"][0]
        delta = choice.get("delta") or {"content": choice.get("text")}
        said["reasoning"] += delta.get("reasoning") or ""
        said["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            known = said["calls"].setdefault(call["index"], ["", ""])
            known[0] += call["function"]["name"] or ""
            known[1] += call["function"]["arguments"] or ""
        said["finish"] = choice["finish_reason"] or said["finish"]
    return said


def main() -> int:
    theirs = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8100"
    failures = count = 0
    with serve() as ours:
        for seed in range(20):
            for text in TEXTS:
                for path in (CHAT, "/v1/completions/derender"):
                    rng = random.Random(seed)
                    chunks = chunks_of(text, rng)
                    alone = run([ours.url], chunks, rng, path)
                    mixed = run([ours.url, theirs], chunks, rng, path)
                    count += 1
                    if alone != mixed:
                        failures += 1
                        print(
                            json.dumps({"seed": seed, "path": path, "alone": alone, "mixed": mixed}, ensure_ascii=False)
                        )
    print(f"{count} streams, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
