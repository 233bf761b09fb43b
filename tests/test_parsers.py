"""Parser names of the command line: ``auto`` decided at start, others refused where they cannot be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy import app
from proxy.config import ConfigError, load
from proxy.parsers import checkpoint_of, resolved
from tests import derenders
from tests.tokenizers import tokenizer_dir


def settings(**flags: Any) -> Any:
    return load({"model": str(tokenizer_dir("qwen3")), "engine_url": "none", "max_model_len": "1024", **flags})


def test_auto_is_decided_at_start() -> None:
    parts = app.load(settings(tool_call_parser="auto", reasoning_parser="auto"))
    assert parts.settings.parser_names == ("qwen3", "hermes")
    assert (parts.renderer.reasoning_parser, parts.renderer.tool_call_parser) == ("qwen3", "hermes")
    assert "<tool_call>" in parts.parsers_why


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf", "response_template"),
        ("vllm:hermes", "needs an installed vLLM"),
        ("nope", "there are: "),
    ],
)
def test_a_parser_that_cannot_be_had(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        app.load(settings(tool_call_parser=name))


def test_a_name_that_is_given_stays() -> None:
    tokenizer = SimpleNamespace(get_chat_template=lambda given, tools: "<longcat_tool_call>")
    choice = resolved("holo2", "auto", tokenizer, derenders.vocabulary("qwen3"))
    assert (choice.reasoning, choice.tools) == ("holo2", "longcat")
    assert resolved("a", None, None, derenders.vocabulary("qwen3")).explanation == ""


def test_a_checkpoint_without_any_template() -> None:
    def refuse(given: object, tools: object) -> str:
        raise ValueError

    tokenizer = SimpleNamespace(get_chat_template=refuse, init_kwargs={"response_template": {"fields": {}}})
    assert checkpoint_of(tokenizer).response_template == {"fields": {}}
    vocabulary = derenders.vocabulary("llama3_1")
    assert resolved("auto", "auto", tokenizer, vocabulary).tools == "hf"
