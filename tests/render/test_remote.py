"""A render server elsewhere, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.errors import RequestError, UpstreamError
from proxy.protocol.openai import parse_chat
from proxy.render.renderer import Renderer
from tests.render.ours import options, renderer
from tests.render.record import DATA

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]
PLAIN = json.loads((DATA / "qwen3.jsonl").read_text(encoding="utf-8").splitlines()[0])["response"]


class Server:
    """Answers each request with ``status`` and ``body``; ``seen``: what it was asked."""

    def __init__(self, status: int = 200, body: bytes | None = None, delay: float = 0.0) -> None:
        self.status, self.delay = status, delay
        self.body = json.dumps(PLAIN).encode() if body is None else body
        self.seen: list[tuple[str, bytes]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length")
        )
        self.seen.append((head.splitlines()[0], await reader.readexactly(length)))
        await asyncio.sleep(self.delay)
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (self.status, len(self.body))
        )
        writer.write(self.body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def rendering(server: Server, **changes: Any) -> AsyncIterator[Renderer]:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    one = Renderer(options("qwen3", render_url=f"http://127.0.0.1:{port}/", **changes), renderer("qwen3").model)
    try:
        yield one
    finally:
        await one.close()
        listening.close()
        await listening.wait_closed()


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": IMAGE, **fields}).encode()


async def test_the_prompt_and_its_features_are_the_remote_ones() -> None:
    answer = {**PLAIN, "features": {"mm_hashes": {"image": ["h"]}}, "reasoning_ended": True}
    server = Server(body=json.dumps(answer).encode())
    async with rendering(server, engine_has_tokenizer=False) as one:
        assert one.takes_media
        sent = body(stop=["x"], max_tokens=16)
        rendered = await one.chat(parse_chat(sent, media=True))
    assert server.seen == [("POST /v1/chat/completions/render HTTP/1.1", sent)]
    assert rendered.prompt_token_ids == PLAIN["token_ids"]
    assert rendered.features == answer["features"]
    assert rendered.reasoning_ended is True
    assert rendered.reasoning_parser_kwargs == PLAIN["reasoning_parser_kwargs"]
    # the rest is by our rules, not by those of the remote server
    assert rendered.sampling_params["max_tokens"] == 16
    assert rendered.sampling_params["stop_token_ids"] == [151645, 151643]
    assert rendered.settings.stop == ("x",)


async def test_raw_media_go_along_to_the_engine() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    async with rendering(Server(body=json.dumps({**PLAIN, "content_parts": parts}).encode())) as one:
        rendered = await one.chat(parse_chat(body(content_parts="mine"), media=True))
    assert (rendered.content_parts, rendered.extra) == (parts, {"content_parts": parts})


async def test_the_remote_constraint_needs_an_engine_with_a_tokenizer() -> None:
    params = {**PLAIN["sampling_params"], "structured_outputs": {"structural_tag": "{}"}}
    answer = json.dumps({**PLAIN, "sampling_params": params}).encode()
    for has, want in ((True, {"structural_tag": "{}"}), (False, None)):
        async with rendering(Server(body=answer), engine_has_tokenizer=has) as one:
            rendered = await one.chat(parse_chat(body(), media=True))
        assert rendered.sampling_params.get("structured_outputs") == want


async def test_its_refusal_is_the_clients() -> None:
    error = {"error": {"message": "Too many images.", "type": "BadRequestError", "param": "messages", "code": 400}}
    async with rendering(Server(400, json.dumps(error).encode())) as one:
        with pytest.raises(RequestError) as caught:
            await one.chat(parse_chat(body(), media=True))
    assert (caught.value.message, caught.value.param, caught.value.status) == ("Too many images.", "messages", 400)


@pytest.mark.parametrize(
    ("status", "answer", "want", "kind"),
    [
        (500, b'{"error": {"message": "secret trace"}}', 502, "status"),
        (503, b"busy", 503, "status"),
        (401, b"who?", 502, "status"),
        (200, b"not json", 502, "protocol"),
        (200, b'{"token_ids": []}', 502, "protocol"),
        (200, b'{"token_ids": [-1]}', 502, "protocol"),
        (200, b'{"token_ids": "x"}', 502, "protocol"),
    ],
)
async def test_its_failures_are_upstream_failures(status: int, answer: bytes, want: int, kind: str) -> None:
    async with rendering(Server(status, answer)) as one:
        with pytest.raises(UpstreamError) as caught:
            await one.chat(parse_chat(body(), media=True))
    assert (caught.value.status, caught.value.kind) == (want, kind)
    assert "secret" not in caught.value.message


async def test_nobody_there() -> None:
    one = Renderer(options("qwen3", render_url="http://127.0.0.1:9"), renderer("qwen3").model)
    with pytest.raises(UpstreamError) as caught:
        await one.chat(parse_chat(body(), media=True))
    assert (caught.value.status, caught.value.kind) == (503, "connect")
    await one.close()


async def test_bad_requests_do_not_get_there() -> None:
    server = Server()
    async with rendering(server) as one:
        with pytest.raises(RequestError):
            await one.chat(parse_chat(body(stop_token_ids=[999999]), media=True))
    assert server.seen == []
