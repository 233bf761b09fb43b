"""The core alone: microseconds per token, one token per chunk, by format, region and length."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.derender.derenderer import Derenderer
from tests import derenders

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "rows": {"type": "array"}},
            },
        },
    }
]
PROSE = (
    "The quick brown fox jumps over the lazy dog, and then it thinks: what about naïve café owners in São Paulo? "
    "They sell 12 kinds of coffee for 3.50 each.\n\nA list follows:\n1. Oslo\n2. Bern\n"
)


@dataclass(frozen=True)
class Case:
    """``frame`` has ``%s`` where the long text goes; ``escape``: the text is inside a JSON string."""

    family: str
    region: str
    tokenizer: str
    reasoning: str | None
    tools: str | None
    frame: str
    escape: bool = False
    prompt_tail: str = ""


def _hermes(argument: str) -> str:
    return (
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "content": "' + argument + '"}}\n</tool_call>'
    )


_THINK = "<think>\n%s\n</think>\n\nDone."
_ANALYSIS = "<|channel|>analysis<|message|>%s<|end|>"
_XML = (
    "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=content>\n%s\n"
    "</parameter>\n</function>\n</tool_call>"
)
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n```json\n"
    '{"path": "a", "content": "%s"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
_HARMONY = '<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>{"path": "a", "content": "%s"}'
_DSML = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="content" string="true">%s'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
_DONE = "<think>\n\n</think>\n\n"

CASES = (
    Case("none", "content", "qwen3", None, None, "%s"),
    Case("hermes + qwen3", "reasoning", "qwen3", "qwen3", "hermes", _THINK),
    Case("hermes + qwen3", "content", "qwen3", "qwen3", "hermes", "<think>\n\n</think>\n\n%s"),
    Case("hermes + qwen3", "arguments", "qwen3", "qwen3", "hermes", "<think>\n\n</think>\n\n" + _hermes("%s"), True),
    Case("qwen3_coder + qwen3", "content", "qwen3", "qwen3", "qwen3_coder", "<think>\n\n</think>\n\n%s"),
    Case("qwen3_coder + qwen3", "arguments", "qwen3", "qwen3", "qwen3_coder", "<think>\n\n</think>\n\n" + _XML),
    Case("llama3_json", "content", "llama3_1_tool", None, "llama3_json", "%s"),
    Case(
        "llama3_json",
        "arguments",
        "llama3_1_tool",
        None,
        "llama3_json",
        '{"name": "write_file", "parameters": {"path": "a", "content": "%s"}}',
        True,
    ),
    Case("deepseek_v3 + r1", "reasoning", "deepseek_r1", "deepseek_r1", "deepseek_v3", _THINK),
    Case("deepseek_v3 + r1", "content", "deepseek_r1", "deepseek_r1", "deepseek_v3", "<think>\n\n</think>\n\n%s"),
    Case(
        "deepseek_v3 + r1",
        "arguments",
        "deepseek_r1",
        "deepseek_r1",
        "deepseek_v3",
        "<think>\n\n</think>\n\n" + _DEEPSEEK,
        True,
    ),
    Case(
        "openai + gptoss", "reasoning", "gptoss", "openai_gptoss", "openai", "<|channel|>analysis<|message|>%s<|end|>"
    ),
    Case("deepseek_v4", "reasoning", "deepseek_r1", "deepseek_v4", "deepseek_v4", _THINK),
    Case("deepseek_v4", "content", "deepseek_r1", "deepseek_v4", "deepseek_v4", _DONE + "%s"),
    Case("deepseek_v4", "arguments", "deepseek_r1", "deepseek_v4", "deepseek_v4", _DONE + _DSML),
    Case("llama4_pythonic", "content", "llama3_1_tool", None, "llama4_pythonic", "%s"),
    Case("llama4_pythonic", "arguments", "llama3_1_tool", None, "llama4_pythonic", '[write_file(content="%s")]', True),
    Case("mistral", "reasoning", "llama3_1", "mistral", "mistral", "<think>%s</think>Done."),
    Case("mistral", "content", "llama3_1", "mistral", "mistral", "%s"),
    Case(
        "mistral", "arguments", "llama3_1", "mistral", "mistral", '[TOOL_CALLS]write_file[ARGS]{"content": "%s"}', True
    ),
    Case("openai + gptoss", "content", "gptoss", "openai_gptoss", "openai", "<|channel|>final<|message|>%s"),
    Case("openai + gptoss", "arguments", "gptoss", "openai_gptoss", "openai", _HARMONY, True),
)


def ids_of(case: Case, tokens: int) -> list[int]:
    """About ``tokens`` ids of the case's output."""
    tokenizer = derenders.tokenizer(case.tokenizer)
    text = json.dumps(PROSE, ensure_ascii=False)[1:-1] if case.escape else PROSE
    per_copy = len(tokenizer.encode(text, add_special_tokens=False).ids)
    return list(tokenizer.encode(case.frame % (text * (tokens // per_copy + 1)), add_special_tokens=False).ids)


def microseconds(derenderer: Derenderer, ids: Sequence[int], rounds: int = 5) -> float:
    """The best of ``rounds`` passes over the ids, one per chunk: us per token."""
    request = derenders.settings(TOOLS)
    chunks = [[token_id] for token_id in ids]
    best = float("inf")
    for _ in range(rounds):
        stream = derenderer.chat(request, request_id="bench", prompt_token_ids=[1])
        feed = stream.feed
        gc.collect()
        begin = time.perf_counter()
        for chunk in chunks:
            feed(chunk)
        feed([], "stop")
        best = min(best, time.perf_counter() - begin)
    return best / len(ids) * 1e6


def measure(case: Case, lengths: Sequence[int] = (2048, 32768)) -> list[float]:
    """us per token at each length; the lengths are measured in turn, and the median of ratios is what counts."""
    derenderer = derenders.derenderer(case.tokenizer, case.reasoning, case.tools)
    return [microseconds(derenderer, ids_of(case, length)) for length in lengths]


def main() -> None:
    gc.freeze()
    print(f"{'format':24} {'region':10} {'2k':>7} {'32k':>7} {'32k/2k':>7}   us per token, one token per chunk")
    from tests.bench.more import CASES as more

    for case in (*CASES, *more):
        short, long = measure(case)
        print(f"{case.family:24} {case.region:10} {short:7.2f} {long:7.2f} {long / short:7.2f}")


if __name__ == "__main__":
    main()
