"""Whatever a client sends is rendered or refused; nothing else leaves the renderer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.protocol.openai import ChatCompletionRequest, CompletionRequest
from tests.render.corpus import COMPLETIONS, ERRORS, PROMPTS, SAMPLING, TEMPLATES
from tests.render.ours import answer, renderer

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 160_000)
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**40])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["auto", "required", "none", "json_object", "system", "function", "text", "<|im_end|>"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["type", "function", "name", "text", "role"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
GOOD = [row for row in [*PROMPTS, *TEMPLATES, *SAMPLING, *COMPLETIONS, *ERRORS] if isinstance(row[2], dict)]
FIELDS = sorted({*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__})


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A row of the corpus with one to three fields, at any depth, replaced by something else."""
    _, path, body = draw(st.sampled_from(GOOD))
    value: Any = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        node = value
        while True:
            if isinstance(node, dict):
                key: Any = draw(st.sampled_from([*node, *FIELDS] if node is value else [*node, "name", "type"]))
            elif isinstance(node, list) and node:
                key = draw(st.integers(0, min(len(node), 8) - 1))
            else:
                break
            inner = node.get(key) if isinstance(node, dict) else node[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
                node[key] = draw(VALUES)
                break
            node = inner
    return path, json.dumps(value).encode()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(bodies())
def test_rendered_or_refused(request: tuple[str, bytes]) -> None:
    path, body = request
    status, response = asyncio.run(answer(renderer("qwen3"), path, body))
    if status == 200:
        for one in response if isinstance(response, list) else [response]:
            assert one["token_ids"] and all(0 <= token < 151936 for token in one["token_ids"])
            params = one["sampling_params"]
            assert all(0 <= token < 151936 for token in params["stop_token_ids"])
            assert params["max_tokens"] >= 1
    else:
        assert status == 400 and response["error"]["type"] == "BadRequestError", response


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["/v1/chat/completions/render", "/v1/completions/render", "/tokenize", "/detokenize"]),
    st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()),
)
def test_any_bytes(path: str, body: bytes) -> None:
    status, _ = asyncio.run(answer(renderer("qwen3"), path, body))
    assert status in (200, 400)
