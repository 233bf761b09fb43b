"""gpt-oss prompts beyond what was compared with vLLM."""

from __future__ import annotations

import datetime
import hashlib
import json
import sys

import pytest

from proxy.errors import RequestError
from proxy.protocol.openai import parse_chat, parse_tokenize
from proxy.render.harmony import tiktoken_file
from proxy.render.renderer import Renderer
from tests.render.ours import options, renderer
from tests.tokenizers import TIKTOKEN_SHA256

USER = [{"role": "user", "content": "Hi"}]


def request(**fields: object) -> bytes:
    return json.dumps({"messages": USER, **fields}).encode()


def test_the_vocabulary_is_rebuilt_bit_for_bit() -> None:
    data = tiktoken_file(renderer("gptoss").tokenizer.get_vocab())
    assert hashlib.sha256(data).hexdigest() == TIKTOKEN_SHA256


async def test_efforts_that_harmony_does_not_know() -> None:
    for effort in ("none", "minimal", "xhigh"):
        with pytest.raises(RequestError) as caught:
            await renderer("gptoss").chat(parse_chat(request(reasoning_effort=effort)))
        assert caught.value.param == "reasoning_effort"


async def test_tokenize_uses_harmony_too() -> None:
    one = renderer("gptoss")
    ids = (await one.tokenize(parse_tokenize(request())))["tokens"]
    assert ids == (await one.chat(parse_chat(request()))).prompt_token_ids


async def test_the_date_is_todays_unless_set() -> None:
    shared = renderer("gptoss")
    one = Renderer(options("gptoss", system_start_date=None), shared.model)
    before = datetime.date.today()
    text = shared.tokenizer.decode((await one.chat(parse_chat(request()))).prompt_token_ids)
    assert any(f"Current date: {day}" in text for day in (before, datetime.date.today()))


async def test_a_server_template_is_used_in_its_place() -> None:
    one = Renderer(options("gptoss", chat_template="{{ messages[0].content }}"), renderer("gptoss").model)
    assert (await one.chat(parse_chat(request()))).prompt_text == "Hi"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    model = renderer("gptoss").model
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(ValueError, match=r"derender-proxy\[harmony\]"):
        Renderer(options("gptoss"), model)
