"""``vllm:NAME`` against what vLLM's own server has answered. Collected where vLLM is installed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer

from proxy.derender.derenderer import Checkpoint, Derenderer, UnknownFormat
from proxy.derender.parsing.foreign import NotSaved
from tests import derenders
from tests.golden.test_vllm import PARITY
from tests.tokenizers import tokenizer_dir

# its parser of gpt-oss would download a vocabulary
USABLE = [group for group in PARITY if group["tool_parser"] not in (None, "openai")]
SAMPLE = random.Random(7).sample(USABLE, 20)


@cache
def tokenizer(name: str) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_dir(name))


def derenderer(group: dict[str, Any]) -> Derenderer:
    names = {key: f"vllm:{group[key]}" if group[key] else None for key in ("reasoning_parser", "tool_parser")}
    return Derenderer(
        derenders.vocabulary(group["tokenizer"]),
        eos_token_ids=derenders.eos_ids(group["tokenizer"]),
        checkpoint=Checkpoint(tokenizer(group["tokenizer"])),
        **names,
    )


@pytest.mark.parametrize("group", SAMPLE, ids=[group["name"] for group in SAMPLE])
def test_says_what_vllm_says(group: dict[str, Any]) -> None:
    made = derenderer(group)
    assert made.depends_on_chunks
    request = derenders.settings(group["tools"], tool_choice="auto" if group["tools"] else None)
    stream = made.chat(request, request_id="r", prompt_token_ids=group["prompt_token_ids"])
    ids = group["token_ids"]
    answer = derenders.answer(derenders.run(stream, ids, [1] * len(ids), group["finish_reason"]))
    assert answer == group["streamed"]
    with pytest.raises(NotSaved):
        made.chat(request, request_id="r", prompt_token_ids=[1]).save()


def test_a_name_that_vllm_has_not() -> None:
    with pytest.raises(UnknownFormat, match="nope"):
        Derenderer(derenders.vocabulary("qwen3"), tool_parser="vllm:nope", checkpoint=Checkpoint(tokenizer("qwen3")))
