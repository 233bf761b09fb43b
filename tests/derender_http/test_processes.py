"""Two real processes behind a client that sends every chunk to a random one; one is killed in the middle."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.derender_http.replicas import CHAT, split, stream_body
from tests.servers import DEMO_MODEL, DEMO_NAME, Process, free_port

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
TEXT = (
    "The user asks about the weather in Zürich, so I call the tool. 天気 😀\n</think>\n\nLet me see.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, 3]}}\n</tool_call>\n<tool_call>\n'
    '{"name": "get_weather", "arguments": {"city": "Genève"}}\n</tool_call>'
)
REQUEST: dict[str, Any] = {
    "chat_request": {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS},
    "prompt_token_ids": [1, 2, 3],
    "model": DEMO_NAME,
}


class Member:
    """One process of the pair, on a port that it keeps."""

    def __init__(self, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.flags = flags
        self.start()

    def start(self) -> None:
        self.process = Process(
            "serve", str(DEMO_MODEL), "--engine-url", "none", "--max-model-len", "8192", "--host", "127.0.0.1",
            "--port", str(self.port), "--served-model-name", DEMO_NAME, "--tool-call-parser", "hermes",
            "--reasoning-parser", "qwen3", *self.flags,
        )  # fmt: skip

    def kill(self) -> None:
        self.process.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.process.__exit__()


@contextlib.contextmanager
def pair(*flags: str) -> Iterator[list[Member]]:
    members = [Member(*flags), Member(*flags)]
    try:
        for member in members:
            member.process.wait_for_url(member.url + "/ready")
        yield members
    finally:
        for member in members:
            member.close()


def chunks_of(rng: random.Random) -> list[list[int]]:
    ids = list(Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids)
    chunks = []
    while ids:
        n = rng.choice((1, 1, 1, 2, 5))
        chunks.append(ids[:n])
        del ids[:n]
    return chunks


@pytest.mark.parametrize(
    "flags",
    [(), ("--state-key", "k", "--derender-state", "compact")],
    ids=["full, no key", "compact"],
)
def test_any_chunk_to_any_process_and_one_dies(flags: tuple[str, ...]) -> None:
    rng = random.Random(7)
    chunks = chunks_of(rng)
    with pair(*flags) as members, httpx.Client() as client:

        def told(pick: Any, kill_at: int = -1) -> list[bytes]:
            alive = list(members)
            state: bytes | None = None
            found = []
            for n, ids in enumerate(chunks):
                if n == kill_at:
                    members[0].kill()
                    alive = members[1:]
                finish = "stop" if n == len(chunks) - 1 else None
                answer = client.post(
                    pick(alive).url + CHAT,
                    content=stream_body(ids, state, finish=finish, **REQUEST),
                    headers={"content-type": "application/json"},
                )
                assert answer.status_code == 200, answer.text
                chunk, state = split(answer.content)
                found.append(chunk)
            return found

        alone = told(lambda alive: alive[0])
        assert told(rng.choice) == alone
        assert told(rng.choice, kill_at=len(chunks) // 2) == alone
    calls = [json.loads(chunk)["choices"][0]["delta"].get("tool_calls") or [] for chunk in alone]
    assert sum(1 for call in sum(calls, []) if call["id"]) == 2
