"""``auto`` over real tokenizers and over what families' templates have in them."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.derender.parsing.auto import REASONING_SIGNS, TOOL_SIGNS, Choice, Undecided, choose
from proxy.derender.parsing.registry import Registry, UnknownFormat, builtin
from proxy.derender.parsing.vllm_names import REASONING_PARSERS, TOOL_PARSERS
from tests import derenders
from tests.tokenizers import tokenizer_dir


def of(name: str, **more: Any) -> Choice:
    path = tokenizer_dir(name) / "chat_template.jinja"
    template = path.read_text() if path.exists() else None
    return choose(chat_template=template, tokens=derenders.vocabulary(name).added, **more)


@pytest.mark.parametrize(
    ("name", "reasoning", "tools"),
    [
        ("qwen3", "qwen3", "hermes"),
        ("gptoss", "openai_gptoss", "openai"),
        ("llama3_1", None, None),
        ("llama3_1_tool", None, "llama3_json"),
        ("deepseek_v3", None, "deepseek_v3"),
        ("deepseek_r1", "deepseek_r1", "deepseek_v3"),
    ],
)
def test_real_checkpoints(name: str, reasoning: str | None, tools: str | None) -> None:
    choice = of(name, registry=builtin())
    assert (choice.reasoning, choice.tools) == (reasoning, tools)


CHATML = "<|im_start|>assistant\n<think>{{ enable_thinking }}"

# What a family's template writes, shortened to what tells it from the others.
SNIPPETS: dict[str, tuple[str, str | None, str | None]] = {
    "qwen3": (CHATML + '<tool_call>\n{"name": <function-name>, "arguments": <args>}', "qwen3", "hermes"),
    "qwen2.5": ('<|im_start|><tool_call>\n{"name": <function-name>, "arguments": <args>}', None, "hermes"),
    "qwen3 coder": ("<|im_start|><tool_call>\n<function=f>\n<parameter=p>", None, "qwen3_coder"),
    "qwen3.5": (CHATML + "<tool_call>\n<function=f>\n<parameter=p>", "qwen3", "qwen3_coder"),
    "mimo": (CHATML + "You are MiMo<tool_call><function=f><parameter=p>", "mimo", "mimo"),
    "nemotron": (CHATML + "truncate_history_thinking <function=f>\n<parameter=p>", "nemotron_v3", "qwen3_coder"),
    "glm": ("[gMASK]<sop><think><tool_call>f\n<arg_key>k</arg_key><arg_value>", "glm45", "glm47"),
    "deepseek v3": ("<｜Assistant｜><｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json\n", None, "deepseek_v3"),
    "deepseek v3.1": (
        "{% if thinking %}<｜Assistant｜></think><｜tool▁calls▁begin｜>f<｜tool▁sep｜>{", "deepseek_v3", "deepseek_v31",
    ),
    "mistral": ("[INST][TOOL_CALLS]f[ARGS]{[THINK]x[/THINK]", "mistral", "mistral"),
    "kimi k2": ("<|im_middle|><|tool_calls_section_begin|>", None, "kimi_k2"),
    "kimi k2 thinking": ("<|im_middle|><think><|tool_calls_section_begin|>", "kimi_k2", "kimi_k2"),
    "gemma 4": ("<|turn>model\n<|channel>thought\n<channel|><|tool_call>call:f{}<tool_call|>", "gemma4", "gemma4"),
    "functiongemma": ("<start_function_call>call:f{}<end_function_call>", None, "functiongemma"),
    "granite 3": ("<|start_of_role|><|tool_call|>[{", None, "granite"),
    "granite 4": ('<|start_of_role|><tool_call>\n{"name": f, "arguments": x}', None, "granite4"),
    "phi 4 mini": ("<|tool|>tools<|/tool|><|tool_call|>", None, "phi4_mini_json"),
    "command a": (
        "<|START_THINKING|><|END_THINKING|><|START_ACTION|><|START_RESPONSE|>", "cohere_command3", "cohere_command3",
    ),
    "llama 3.1": ("<|start_header_id|>ipython<|python_tag|>", None, "llama3_json"),
    "longcat": ('<longcat_tool_call>\n{"name": f, "arguments": x}', None, "longcat"),
    "lfm2": ("<|im_start|><|tool_call_start|>[", None, "lfm2"),
    "minimax": ("]~b]ai\n<think>\n<minimax:tool_call>", "minimax_m2", "minimax_m2"),
    "seed": ("<seed:think><seed:tool_call>\n<function=f>\n<parameter=p>", "seed_oss", "seed_oss"),
    "nothing": ("{% for message in messages %}{{ message.content }}{% endfor %}", None, None),
}  # fmt: skip


@pytest.mark.parametrize("family", SNIPPETS)
def test_templates(family: str) -> None:
    template, reasoning, tools = SNIPPETS[family]
    choice = choose(chat_template=template, tokens=())
    assert (choice.reasoning, choice.tools) == (reasoning, tools), choice.explanation


def test_refuses_to_guess_between_two() -> None:
    template = "<|tool_call>call:f{}<tool_call|> or <longcat_tool_call>"
    with pytest.raises(Undecided, match=r"gemma4 .*longcat|longcat .*gemma4"):
        choose(chat_template=template, tokens=())
    assert choose(chat_template=template, tokens=(), response_template={"fields": {}}).tools == "hf"
    assert choose(chat_template=template, tokens=(), tools=False).tools is None


def test_a_response_template_decides_where_no_format_fits() -> None:
    choice = choose(chat_template="", tokens=(), response_template={"fields": {}})
    assert (choice.reasoning, choice.tools) == ("hf", "hf")
    assert "response_template" in choice.explanation
    qwen = of("qwen3", response_template={"fields": {}})
    assert (qwen.reasoning, qwen.tools) == ("qwen3", "hermes")


def test_says_why() -> None:
    assert "<｜tool▁calls▁begin｜>" in of("deepseek_v3").explanation
    assert "none" in of("llama3_1").explanation


def test_a_family_without_a_format_is_refused_with_the_ways_out() -> None:
    with pytest.raises(UnknownFormat, match="vllm:hermes"):
        of("qwen3", registry=Registry(), reasoning=False)


def test_every_name_is_one_of_vllms() -> None:
    assert {sign.name for sign in TOOL_SIGNS} <= TOOL_PARSERS
    assert {sign.name for sign in REASONING_SIGNS} <= REASONING_PARSERS
