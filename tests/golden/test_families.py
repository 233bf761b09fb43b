"""Answers of vLLM 0.33's own parsers for families whose tokenizers are not at hand: equal, or a listed difference.

Recorded by ``record_families`` with qwen3's tokenizer and the family's markers as added tokens. Three measures, the
first that holds counts: the streamed answer to the byte; the answer that was not streamed, its arguments compared as
JSON (vLLM writes them anew, here they are as the model wrote them); else a reason in ``DIFFERENCES``.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from proxy.derender.derenderer import Derenderer
from proxy.derender.vocabulary import Vocabulary
from tests import derenders
from tests.golden.family_cases import TOOLS

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "families.jsonl"
ANSWERS: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@cache
def vocabulary(markers: tuple[str, ...]) -> Vocabulary:
    """qwen3's with the markers that it lacks as special tokens."""
    base = derenders.vocabulary("qwen3")
    first = 1 + max(base.added.values())
    added = {marker: first + n for n, marker in enumerate(m for m in markers if m not in base.added)}
    pieces = list(base.pieces)
    for marker, token_id in added.items():
        pieces[token_id] = marker.encode()
    return Vocabulary(pieces, added={**base.added, **added}, special={*base.special, *added.values()})


def ours(group: dict[str, Any], lengths: list[int], **knobs: Any) -> dict[str, Any]:
    derenderer = Derenderer(
        vocabulary(tuple(group["markers"])),
        reasoning_parser=group["reasoning_parser"],
        tool_parser=group["tool_parser"],
    )
    request = derenders.settings(TOOLS, tool_choice="auto", chat_template_kwargs=group["template_kwargs"], **knobs)
    stream = derenderer.chat(request, request_id="golden", prompt_token_ids=group["prompt_token_ids"])
    answer = derenders.answer(derenders.run(stream, group["token_ids"], lengths, group["finish_reason"]))
    del answer["finish_reason"]
    return answer


def parsed(answer: dict[str, Any]) -> Any:
    """With arguments as values, and framing whitespace aside; None where that is not possible."""
    try:
        calls = [(call["name"], json.loads(call["arguments"])) for call in answer["tool_calls"]]
    except (KeyError, ValueError):
        return None
    return (answer["reasoning"] or "").strip(), (answer["content"] or "").strip(), calls


_CUT = "cut by a limit: the arguments stay the prefix that the model wrote, where vLLM closes or drops them"
_EMPTY = "vLLM sends no arguments for a call without any, and drops what is not JSON: here they are {}"
_OPEN = "the prompt left the reasoning open; Cohere's parser does not look at the prompt"
_SPLIT = "the markers' ids depend on what stands beside them, so that vLLM does not find them in the prompt"
_BRACKETS = "vLLM streams nothing, and its pattern for the whole answer ends at the first ]"
_ESCAPED = "what stands in <escape> is a string, as the template writes it; vLLM reads it as JSON where it can"
DIFFERENCES = {
    "functiongemma/two calls": _ESCAPED,
    "functiongemma/nested": _ESCAPED,
    "functiongemma/cut in the arguments": _CUT,
    "poolside_v1/cut in the arguments": _CUT,
    "k2_horizon/cut in the arguments": _CUT,
    "dots/cut in the arguments": _CUT,
    "minicpm5/cut in the arguments": _CUT,
    "minicpm5/content then call": "vLLM streams markup as content, and drops the text when it does not stream",
    "muse/cut in the arguments": _CUT,
    "phi4_mini_json/nested": _BRACKETS,
    "phi4_mini_json/escapes": _BRACKETS,
    "phi4_mini_json/content then call": "vLLM streams nothing, and drops the text in front of a call",
    "phi4_mini_json/cut in the arguments": _CUT,
    "internlm/cut in the arguments": _CUT,
    "jamba/cut in the arguments": _CUT,
    "xlam/cut in the arguments": _CUT,
    "xlam fence/cut in the arguments": _CUT,
    "cohere_command3/empty": _EMPTY,
    "cohere_command4/empty": _EMPTY,
    "cohere_command3/reasoning, open": _OPEN,
    "cohere_command3/reasoning then call": _OPEN,
    "cohere_command3/reasoning, cut": _OPEN,
    "plamo3/content": _SPLIT,
    "plamo3/content then call": _SPLIT,
}


def equal(group: dict[str, Any], answer: dict[str, Any]) -> bool:
    return answer == group["streamed"] or (
        parsed(answer) is not None and parsed(answer) == parsed({"reasoning": None, **group["not_streamed"]})
        if "error" not in group["not_streamed"]
        else False
    )


@pytest.mark.parametrize("group", ANSWERS, ids=[group["name"] for group in ANSWERS])
def test_equals_vllm_or_is_listed(group: dict[str, Any]) -> None:
    count = len(group["token_ids"])
    answer = ours(group, [1] * count)
    assert equal(group, answer) != (group["name"] in DIFFERENCES), (answer, group["streamed"], group["not_streamed"])
    for seed in range(5):
        assert ours(group, derenders.cut(count, random.Random(seed))) == answer


def test_every_listed_difference_was_recorded() -> None:
    assert DIFFERENCES.keys() <= {group["name"] for group in ANSWERS}
