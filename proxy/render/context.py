"""What vLLM's render tells the engine and the derenderer of a chat: ``parse_context``, ``reasoning_ended``."""

from __future__ import annotations

from typing import Any

from proxy.protocol.openai import ChatCompletionRequest
from proxy.render.conversation import history_tool_calls

_CHATML_TURNS = ("<|im_start|>", "<|im_end|>")
# reasoning parsers that look no further back than the current turn
_BOUNDED = frozenset({"qwen3", "nemotron_v3", "mimo", "step3p5"})
# harmony's grammar covers reasoning too, so the engine never waits for its end
_ALWAYS_ENDED = frozenset({"openai_gptoss"})
# parsers for which vLLM keeps special tokens in its text: of reasoning, and of calls where tools may be called
READ_MARKS = frozenset({
    "deepseek_v4", "deepseek_v41", "gemma4", "glm45", "glm47", "granite_thinking_parser", "inkling", "kimi_k2",
    "kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2", "mistral", "muse", "muse_glimmer", "musespark1x",
    "nemotron_v3", "plamo3", "qwen3", "seed_oss", "step3p5",
})  # fmt: skip
CALLS_IN_MARKS = frozenset({
    "apertus", "deepseek_v32", "deepseek_v4", "deepseek_v41", "functiongemma", "gemma4", "gigachat3", "glm45",
    "glm47", "granite", "granite4", "hermes", "inkling", "internlm", "jamba", "kimi_k2", "kimi_k3", "lfm2", "ling3",
    "longcat", "mimo", "minicpm5", "minimax_m2", "minimax_m3", "mistral", "muse", "muse_glimmer", "musespark1x",
    "plamo3", "poolside_v1", "qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss", "step3", "step3p5", "step5",
})  # fmt: skip


def template_kwargs(request: ChatCompletionRequest, defaults: dict[str, Any]) -> dict[str, Any]:
    """Variables of the chat template: the server's, over them the request's, over them the request's own fields."""
    given = request.chat_template_kwargs or {}
    fields: dict[str, Any] = {
        "add_generation_prompt": request.add_generation_prompt,
        "continue_final_message": request.continue_final_message,
        "documents": request.documents,
        "reasoning_effort": request.reasoning_effort,
    }
    if request.reasoning_effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = request.reasoning_effort != "none"
    return merged(defaults, merged(given, fields))


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``; None and "auto" leave what is there."""
    return base | {key: value for key, value in over.items() if value is not None and value != "auto"}


class ReasoningEnd:
    """Whether reasoning is over where a prompt ends, as vLLM's parser of that name decides it."""

    def __init__(self, parser: str, vocabulary: dict[str, int]) -> None:
        self.parser = parser
        self._start = vocabulary.get("<think>")
        self._end = vocabulary.get("</think>")
        turns = _CHATML_TURNS if parser in _BOUNDED else ()
        self._turns = frozenset(vocabulary[token] for token in turns if token in vocabulary)

    def __call__(self, prompt_token_ids: list[int], kwargs: dict[str, Any]) -> bool | None:
        """None: this parser's markers are not known here, so that the engine looks for itself."""
        if self.parser in _ALWAYS_ENDED:
            return True
        if self._end is None:
            return None
        for token in reversed(prompt_token_ids):
            if token == self._end:
                return True
            if token == self._start:
                return False
            if token in self._turns:
                break
        # without thinking a model of the qwen3 kind starts in content
        return self.parser in _BOUNDED and not kwargs.get("enable_thinking", True)


def parse_context(request: ChatCompletionRequest, kwargs: dict[str, Any], *, harmony: bool) -> dict[str, Any]:
    """The request context with which another server can parse the answer."""
    choice = request.tool_choice
    if isinstance(choice, dict):
        choice = {"function": {"name": choice["function"]["name"]}, "type": "function"}
    return {
        "tools": request.tools,
        "tool_choice": choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "include_reasoning": request.include_reasoning,
        "chat_template_kwargs": {} if harmony else kwargs,
        "history_tool_call_cnt": history_tool_calls(request.messages),
    }
