"""Our render answers, in the shape of the recorded ones."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from proxy.errors import RequestError
from proxy.protocol.openai import parse_chat, parse_completion, parse_detokenize, parse_tokenize
from proxy.render.bodies import chat_body, completion_bodies
from proxy.render.renderer import Renderer, RenderOptions
from tests.tokenizers import tokenizer_dir

# name: tool parser, reasoning parser, context length (that of the tiny models' config.json)
SERVERS: dict[str, tuple[str, str | None, int]] = {
    "qwen3": ("hermes", "qwen3", 40960),
    "gptoss": ("openai", "openai_gptoss", 131072),
    "llama3_1_tool": ("llama3_json", None, 131072),
    "deepseek_r1": ("deepseek_v3", "deepseek_r1", 163840),
}


def options(name: str, **changes: Any) -> RenderOptions:
    """Those of the recorded server of ``name``, with ``changes``."""
    tools, reasoning, length = SERVERS[name]
    values: dict[str, Any] = {
        "max_model_len": length,
        "engine_has_tokenizer": True,
        "tool_call_parser": tools,
        "reasoning_parser": reasoning,
        "trust_request_chat_template": True,
        "system_start_date": "2026-01-01",
    }
    return RenderOptions(str(tokenizer_dir(name)), **{**values, **changes})


@cache
def renderer(name: str) -> Renderer:
    return Renderer(options(name))


async def answer(one: Renderer, path: str, body: bytes) -> tuple[int, Any]:
    """Status and JSON of one request; a fault as its error object."""
    try:
        value: Any
        if path == "/v1/chat/completions/render":
            chat = parse_chat(body, media=one.takes_media)
            value = chat_body(await one.chat(chat), chat, "ID")
        elif path == "/v1/completions/render":
            completion = parse_completion(body)
            value = completion_bodies(await one.completion(completion), completion, "ID")
        elif path == "/tokenize":
            value = await one.tokenize(parse_tokenize(body))
        else:
            value = await one.detokenize(parse_detokenize(body))
    except RequestError as error:
        shown = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        return error.status, {"error": shown}
    return 200, json.loads(msgspec.json.encode(value))
