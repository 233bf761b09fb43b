"""``auto``: which parsers a checkpoint wants, by its response template, its chat template and its vocabulary.

The chat template is the witness: it writes past calls and reasoning the way the model was taught to. A ``Sign`` says
what a family's template has in it that no other family's has; tokens of the vocabulary count where they are a
family's alone, because few models come with markers that they never write. Two signs that fit are never settled by
guessing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.derender.parsing.registry import Registry, UnknownFormat


class Undecided(UnknownFormat):
    """More than one parser fits; the message names them."""


@dataclass(frozen=True)
class Sign:
    """What points to parser ``name``: all of ``text`` in the chat template, all of ``tokens`` there or in the
    vocabulary, none of ``without`` in the template."""

    name: str
    text: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def fits(self, template: str, vocabulary: Collection[str]) -> bool:
        return (
            all(part in template for part in self.text)
            and all(part in template or part in vocabulary for part in self.tokens)
            and not any(part in template for part in self.without)
        )

    @property
    def evidence(self) -> str:
        return ", ".join((*self.text, *self.tokens))


_CHATML, _THINK, _CALL = "<|im_start|>", "<think>", "<tool_call>"
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")
_NAME = '"name"'
# Templates with <tool_call> that are not Hermes'.
_NOT_HERMES = ("<function=", "<arg_key>", "<|start_of_role|>", "<response>", "<ifm|", "<longcat", "<param name=")
# ChatML templates with <think> of families that have a parser of their own.
_NOT_QWEN = ("<functions>", "truncate_history_thinking", "MiMo", "<seed:", "<response>", "steptml", "<ifm|", "minicpm")

TOOL_SIGNS = (
    Sign("hermes", text=(_CALL, _NAME, "arguments"), without=_NOT_HERMES),
    Sign("qwen3_coder", text=("<function=", "<parameter="), without=("MiMo", "<seed:", "steptml", "Step-", "step3")),
    Sign("mimo", text=("<function=", "<parameter=", "MiMo")),
    Sign("longcat", tokens=("<longcat_tool_call>",)),
    Sign("glm47", text=("<arg_key>", "<arg_value>", "[gMASK]")),
    Sign("ling3", text=("<arg_key>", "<arg_value>", "<role>")),
    Sign("poolside_v1", text=("<arg_key>", "<arg_value>"), without=("[gMASK]", "<role>", "<ifm|", "<|hy_", "hunyuan")),
    Sign("k2_horizon", tokens=("<ifm|tool_calls>",)),
    Sign("deepseek_v3", text=(*_DEEPSEEK, "```json"), without=("｜DSML｜",)),
    Sign("deepseek_v31", text=_DEEPSEEK, without=("```json", "｜DSML｜")),
    Sign("deepseek_v32", text=("｜DSML｜", "function_calls")),
    Sign("deepseek_v4", text=("｜DSML｜tool_calls",)),
    Sign("deepseek_v41", text=("｜DSML｜ calls",)),
    Sign("llama3_json", tokens=("<|python_tag|>", "<|start_header_id|>")),
    Sign("llama4_pythonic", text=("<|header_start|>", "[func_name1(")),
    Sign("llama4_json", text=("<|header_start|>", "function name"), without=("[func_name1(",)),
    Sign("mistral", tokens=("[TOOL_CALLS]",), without=("<tool_call>",)),
    Sign("openai", tokens=("<|channel|>", "<|constrain|>", "<|call|>")),
    Sign("kimi_k2", tokens=("<|tool_calls_section_begin|>",)),
    Sign("kimi_k3", tokens=("<|open|>", "<|sep|>", "<|close|>")),
    Sign("gemma4", tokens=("<|tool_call>", "<tool_call|>")),
    Sign("functiongemma", tokens=("<start_function_call>",)),
    Sign("granite", text=("<|tool_call|>", "<|start_of_role|>")),
    Sign("granite4", text=(_CALL, "<|start_of_role|>")),
    Sign("phi4_mini_json", tokens=("<|tool_call|>", "<|tool|>"), without=("<|start_of_role|>",)),
    Sign("cohere_command3", tokens=("<|START_ACTION|>", "<|START_RESPONSE|>"), without=("<|START_TEXT|>",)),
    Sign("cohere_command4", text=("<|START_TEXT|>",), tokens=("<|START_ACTION|>",)),
    Sign("internlm", tokens=("<|action_start|>", "<|plugin|>")),
    Sign("jamba", text=("<tool_calls>", "<|bom|>")),
    Sign("hunyuan_a13b", text=("<tool_calls>", "hy_")),
    Sign("lfm2", tokens=("<|tool_call_start|>",)),
    Sign("gigachat3", tokens=("<|message_sep|>", "<|role_sep|>")),
    Sign("apertus", tokens=("<|tools_prefix|>",)),
    Sign("minimax_m2", tokens=("<minimax:tool_call>",), without=("]<]minimax[>[",)),
    Sign("minimax_m3", text=("]<]minimax[>[",)),
    Sign("seed_oss", tokens=("<seed:tool_call>",)),
    Sign("step3", text=("steptml",)),
    Sign("ernie45", text=(_CALL, "<response>")),
    Sign("olmo3", text=("<function_calls>", "<functions>")),
    Sign("dots", tokens=("<dots_function_call>",)),
    Sign("minicpm5", text=("<function name=", "<param name=")),
    Sign("plamo3", text=("begin_tool_requests",)),
    Sign("inkling", tokens=("<|content_invoke_tool_json|>",)),
    Sign("muse", text=("<atem:",)),
)

REASONING_SIGNS = (
    Sign("qwen3", text=(_THINK, _CHATML), without=_NOT_QWEN),
    Sign("mimo", text=(_THINK, _CHATML, "MiMo")),
    Sign("nemotron_v3", text=(_THINK, _CHATML, "truncate_history_thinking")),
    Sign("olmo3", text=(_THINK, _CHATML, "<functions>")),
    Sign("ernie45", text=(_THINK, "<response>")),
    Sign("deepseek_r1", text=("<｜Assistant｜>",), tokens=(_THINK, "</think>"), without=("thinking", "｜DSML｜")),
    Sign("deepseek_v3", text=("<｜Assistant｜>", "</think>", "thinking"), without=("｜DSML｜",)),
    Sign("deepseek_v4", text=("｜DSML｜tool_calls", "</think>")),
    Sign("deepseek_v41", text=("｜DSML｜ calls", "</think>")),
    Sign("glm45", text=(_THINK, "[gMASK]")),
    Sign("ling3", text=(_THINK, "<arg_key>", "<role>")),
    Sign("kimi_k2", text=(_THINK, "<|im_middle|>")),
    Sign("kimi_k3", tokens=("<|open|>", "<|sep|>", "<|close|>")),
    Sign("mistral", tokens=("[THINK]", "[/THINK]")),
    Sign("openai_gptoss", tokens=("<|channel|>", "<|constrain|>", "<|call|>")),
    Sign("gemma4", tokens=("<|channel>", "<channel|>")),
    Sign("granite", text=("Here is my thought process",)),
    Sign("cohere_command3", tokens=("<|START_THINKING|>", "<|START_RESPONSE|>"), without=("<|START_TEXT|>",)),
    Sign("cohere_command4", text=("<|START_TEXT|>",), tokens=("<|START_THINKING|>",)),
    Sign("minimax_m2", text=(_THINK, "]~b]ai"), without=("]<]minimax[>[",)),
    Sign("seed_oss", tokens=("<seed:think>",)),
    Sign("step3", text=(_THINK, "steptml")),
    Sign("hunyuan_a13b", text=(_THINK, "<answer>")),
    Sign("plamo3", text=("begin_think:plamo",)),
    Sign("inkling", tokens=("<|content_thinking|>",)),
    Sign("muse", text=("<atem:", "to=self")),
)


@dataclass(frozen=True)
class Choice:
    """The parsers' names (None: none fits) and why, for the log and for ``check``."""

    reasoning: str | None
    tools: str | None
    explanation: str


def choose(
    *,
    chat_template: str | None,
    tokens: Collection[str],
    response_template: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    reasoning: bool = True,
    tools: bool = True,
) -> Choice:
    """Choose a reasoning parser and a tool-call parser (only those that are wanted).

    ``tokens``: the vocabulary's added tokens. A format of this package's own goes before ``hf``, since it streams
    what the response template can only read whole; ``hf`` decides where none fits, or more than one. Raises
    Undecided where two fit and there is no response template, UnknownFormat where the one that fits has no format here.
    """
    template = chat_template or ""
    fitting = {
        "reasoning": _fitting(REASONING_SIGNS, template, tokens) if reasoning else [],
        "tool call": _fitting(TOOL_SIGNS, template, tokens) if tools else [],
    }
    several = {kind: signs for kind, signs in fitting.items() if len(signs) > 1}
    if response_template and (several or not any(fitting.values())):
        why = "several formats fit" if several else "no format fits"
        return Choice(
            "hf" if reasoning else None, "hf" if tools else None, f"hf: {why}, and there is a response_template"
        )
    for kind, signs in several.items():
        raise Undecided(
            f"auto: more than one {kind} parser fits this checkpoint: "
            + "; ".join(f"{sign.name} ({sign.evidence})" for sign in signs)
            + ". Name the one that is meant"
        )
    picked = {kind: signs[0] if signs else None for kind, signs in fitting.items()}
    if registry is not None:
        if picked["reasoning"] is not None:
            registry.find_reasoning(picked["reasoning"].name)
        if picked["tool call"] is not None:
            registry.find_tools(picked["tool call"].name)
    wanted = [kind for kind, want in (("reasoning", reasoning), ("tool call", tools)) if want]
    why = "; ".join(_why(kind, picked[kind]) for kind in wanted)
    return Choice(_name(picked["reasoning"]), _name(picked["tool call"]), why)


def _fitting(signs: Iterable[Sign], template: str, tokens: Collection[str]) -> list[Sign]:
    return [sign for sign in signs if sign.fits(template, tokens)]


def _name(sign: Sign | None) -> str | None:
    return None if sign is None else sign.name


def _why(kind: str, sign: Sign | None) -> str:
    if sign is None:
        return f"{kind} parser none: neither the chat template nor the vocabulary shows the markers of one"
    return f"{kind} parser {sign.name}: the chat template or the vocabulary has {sign.evidence}"
