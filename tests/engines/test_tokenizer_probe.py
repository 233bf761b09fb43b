"""Whether an engine has a tokenizer, found out by asking it, and what the sidecar then lets through."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.engines.raw_server import engine_for, plain, serving
from tests.servers import Sidecar, Simulator

PLAIN: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
CONSTRAINED = {**PLAIN, "response_format": {"type": "json_object"}}


@pytest.mark.parametrize(("status", "told"), [(200, True), (400, False), (404, None), (500, None)])
async def test_the_render_route_tells(status: int, told: bool | None) -> None:
    async with serving(lambda asked: plain(status, "[]")) as server, engine_for(server.url) as engine:
        assert await engine.has_tokenizer() is told


async def test_an_engine_that_is_not_there_tells_nothing() -> None:
    async with engine_for("http://127.0.0.1:9", connect_timeout=1) as engine:
        assert await engine.has_tokenizer() is None


def test_behind_a_token_only_engine_a_constraint_is_refused_and_names_the_field() -> None:
    with Simulator() as engine, Sidecar(engine_url=engine.url) as sidecar:
        answer = httpx.post(f"{sidecar.url}/v1/chat/completions", json=CONSTRAINED)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
        assert httpx.post(f"{sidecar.url}/v1/chat/completions", json=PLAIN).status_code == 200
    with Simulator() as engine, Sidecar(engine_url=engine.url, engine_has_tokenizer="true") as sidecar:
        rendered = httpx.post(f"{sidecar.url}/v1/chat/completions/render", json=CONSTRAINED).json()
        assert rendered["sampling_params"]["structured_outputs"]["json_object"] is True
