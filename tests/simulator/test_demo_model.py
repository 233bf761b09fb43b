"""The demo model's files: what transformers makes of them, the template, and that training is repeatable."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

DIRECTORY = Path(__file__).parents[2] / "config" / "demo-model"
TOKENIZER = AutoTokenizer.from_pretrained(str(DIRECTORY))
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]


def render(messages: list[dict[str, Any]], **kwargs: Any) -> str:
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **kwargs})
    assert isinstance(text, str)
    return text


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_small_and_without_paths() -> None:
    assert sum(file.stat().st_size for file in DIRECTORY.iterdir() if file.is_file()) < 1_000_000
    assert "/" not in json.loads((DIRECTORY / "config.json").read_text()).get("_name_or_path", "")


def test_special_tokens_and_markers() -> None:
    ids = {token: TOKENIZER.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>", "<think>")}
    assert TOKENIZER.eos_token_id == ids["<|im_end|>"]
    generation = json.loads((DIRECTORY / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [ids["<|im_end|>"], ids["<|endoftext|>"]]
    text = "<|im_start|><think>a</think><tool_call>b</tool_call><tool_response>c</tool_response><|im_end|>"
    encoded = TOKENIZER.encode(text)
    assert len(encoded) == 11
    kept = TOKENIZER.decode(encoded, skip_special_tokens=True)
    assert kept == "<think>a</think><tool_call>b</tool_call><tool_response>c</tool_response>"
    config = json.loads((DIRECTORY / "config.json").read_text())
    assert len(TOKENIZER) < config["vocab_size"]  # padded, as real models are


def test_every_byte_has_a_token() -> None:
    backend = TOKENIZER.backend_tokenizer
    alphabet = [token for token in backend.get_vocab() if len(token) == 1]
    assert len(alphabet) == 256
    for text in [bytes(range(256)).decode("latin-1"), "\x00\x7f", "👩‍👩‍👧", "\U0010ffff"]:
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(max_size=80))
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_tools_results_and_reasoning() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "I call.",
            "tool_calls": [call("get_weather", {"city": "Köln"}), call("get_weather", '{"city": "Rome"}')],
        },
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "rain"},
    ]
    text = render(messages, tools=TOOLS)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert "\n" + json.dumps(TOOLS[0]) + "\n</tools>" in text
    assert text.endswith(
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nI call.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_reasoning_of_earlier_turns_is_left_out() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    assert render(messages) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_thinking_switched_off() -> None:
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert render([{"role": "user", "content": "a"}], enable_thinking=False).endswith(closed)
    for kwargs in ({}, {"enable_thinking": True}):
        assert render([{"role": "user", "content": "a"}], **kwargs).endswith("<|im_start|>assistant\n")


def test_unknown_role() -> None:
    with pytest.raises(Exception, match="the role 'poet'"):
        render([{"role": "poet", "content": "a"}])


def test_training_is_repeatable() -> None:
    spec = importlib.util.spec_from_file_location("train", DIRECTORY / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    texts = [*module.SAMPLES, "the cat and the hat and the bat"] * 4
    first, second = (module.train(texts, size=320).to_str() for _ in range(2))
    assert first == second
    assert (
        module.train(texts, size=320).decode(module.train(texts, size=320).encode("the 👋 <think>").ids)
        == "the 👋 <think>"
    )
