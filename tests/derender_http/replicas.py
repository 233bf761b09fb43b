"""Replicas of the derender tier in this process, for any format: the whole ASGI application, and a clock to turn."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from proxy import app, config
from proxy.config import Settings
from proxy.derender.derenderer import Derenderer
from proxy.observe.metrics import Metrics
from proxy.routes.context import Parts
from proxy.routes.derender_tier import Tier
from tests.servers import DEMO_MODEL, DEMO_NAME

CHAT, COMPLETIONS = "/v1/chat/completions/derender", "/v1/completions/derender"


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@cache
def demo_parts() -> Parts:
    return app.load(settings())


def settings(**flags: Any) -> Settings:
    base = {"model": str(DEMO_MODEL), "engine_url": "none", "max_model_len": 8192, "served_model_name": [DEMO_NAME]}
    return config.load({**base, **flags})


class Replica:
    """One process of the tier. ``flags``: settings; the parsers are ``derenderer``'s, whatever they say."""

    def __init__(self, derenderer: Derenderer, **flags: Any) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        base = demo_parts()
        chosen = settings(**flags)
        tier = Tier(chosen, base.limits, base.renderer, derenderer, self.metrics, self.clock)
        self.parts = replace(base, settings=chosen, derenderer=derenderer, metrics=self.metrics, tier=tier)
        self.app = app.build(self.parts)

    async def post(self, path: str, body: bytes, media: str = "application/json") -> tuple[int, bytes]:
        """Status and body of the answer."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", media.encode())],
        }
        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    @property
    def lookups(self) -> dict[str, int]:
        return dict(self.metrics.cache_lookups)


def split(answer: bytes) -> tuple[bytes, bytes]:
    """The chunk and the state of a streamed answer, as they were written."""
    chunk, _, state = answer.partition(b',"stream_state":')
    assert chunk.startswith(b'{"chunk":') and state.endswith(b"}")
    return chunk[len(b'{"chunk":') :], state[:-1]


def stream_body(
    ids: list[int] | None,
    state: bytes | None,
    *,
    finish: str | None = None,
    request_id: str = "generate-tokens-1",
    index: int = 0,
    logprobs: Any = None,
    **more: Any,
) -> bytes:
    """A streaming call; ``state`` goes in as it is."""
    chunk = {
        "request_id": request_id,
        "choices": [
            {"index": index, "token_ids": ids, "finish_reason": finish, "stop_reason": None, "logprobs": logprobs}
        ],
    }
    body = json.dumps({"stream": True, "generate_chunk": chunk, **more}, separators=(",", ":")).encode()
    return body[:-1] + b',"stream_state":' + (b"null" if state is None else state) + b"}"
