"""Answers of vLLM 0.33's own parsers to generated outputs of the tagged families: equal, or a listed difference.

Recorded by ``record_generated``. Three measures, the first that holds counts: the streamed answer to the byte; then
the streamed answer, or the one that was not streamed, with arguments compared as values and framing whitespace aside;
else a reason in ``DIFFERENCES``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proxy.derender.derenderer import Derenderer
from proxy.derender.vocabulary import Vocabulary
from tests import derenders
from tests.golden.test_families import parsed

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FAMILIES = (
    "ernie45", "gemma4", "glm45", "glm47", "granite", "granite-20b-fc", "granite4", "hunyuan_a13b", "hy_v3", "hy_v4",
    "kimi_k2", "kimi_k3", "minimax_m2", "minimax_m3", "nemotron_v3", "olmo3", "seed_oss", "step3", "step3p5", "step5",
)  # fmt: skip
ANSWERS: list[dict[str, Any]] = [
    group
    for family in FAMILIES
    for group in map(json.loads, (GOLDEN / f"{family}.jsonl").read_text().splitlines())
    if group["pieces"]
]


def encoded(group: dict[str, Any]) -> tuple[Vocabulary, list[int], list[int]]:
    """A vocabulary of the bytes, the pieces and the family's markers; ids of the prompt and of the output."""
    table = [bytes([byte]) for byte in range(256)]
    added = {marker: len(table) + n for n, marker in enumerate(group["added"])}
    table += [marker.encode() for marker in added]
    ids: list[int] = []
    for number, piece in enumerate(group["pieces"]):
        if number in group["markers"]:
            ids.append(added[piece])
        else:
            ids.append(len(table))
            table.append(piece.encode())
    prompt = [10]
    for piece in group["prompt"]:
        prompt += [added[piece]] if piece in added else list(piece.encode())
    return Vocabulary(table, added=added, special=added.values()), prompt, ids


def ours(group: dict[str, Any], lengths: list[int]) -> dict[str, Any]:
    vocabulary, prompt, ids = encoded(group)
    names = {name: group[name] for name in ("reasoning_parser", "tool_parser")}
    stream = Derenderer(vocabulary, **names).chat(
        derenders.settings(group["tools"], tool_choice="auto"), request_id="golden", prompt_token_ids=prompt
    )
    finish = "length" if group["truncated"] else "stop"
    answer = derenders.answer(derenders.run(stream, ids, lengths, finish))
    del answer["finish_reason"]
    return answer


def measure(group: dict[str, Any], answer: dict[str, Any]) -> str:
    if answer == group["streamed"]:
        return "byte"
    mine = parsed(answer)
    if mine is not None and mine in (parsed(group["streamed"]), parsed(group["not_streamed"])):
        return "value"
    return "differs"


_CUT = "cut by a limit: the arguments stay the prefix that the model wrote, where vLLM closes, drops or shows them"
_PROMPT = "the prompt left the reasoning open; vLLM's parser of this name does not look at the prompt"
_EFFORT = "without a reasoning_effort vLLM reads no reasoning; here the prompt and the markers say what there is"
_NONE = "Python's None for a parameter that may be null: vLLM leaves it a string"
_NESTED = "numbers and literals inside of lists and objects: vLLM leaves them strings"
_STEP3 = "vLLM leaves lists, objects and unions strings, sends nothing for no arguments, keeps <think> in the reasoning"
_HUNYUAN = (
    "vLLM looks for ids of Hunyuan's own tokenizer, for calls at the very beginning only, and reads them by patterns"
)
_OLMO = "vLLM streams calls at the very beginning only, and takes no call without arguments"
DIFFERENCES = {
    "gemma4 gemma4 9": _NESTED,
    "gemma4 gemma4 11": _NESTED,
    "glm45 glm45 10": _CUT,
    "glm45 glm45 11": _CUT,
    "glm45 glm45 12": _CUT,
    "glm47 glm47 10": _CUT,
    "glm47 glm47 12": _CUT,
    "granite granite 10": _CUT,
    "granite granite 12": _CUT,
    "granite-20b-fc None 11": _CUT,
    "hy_v3 hy_v3 12": _CUT,
    "hy_v4 hy_v4 10": _CUT,
    "minimax_m3 minimax_m3 12": _CUT,
    "seed_oss seed_oss 12": _CUT,
    "step3p5 step3p5 10": _CUT,
    "step3p5 step3p5 12": _CUT,
    "step5 step5 10": _CUT,
    "granite granite 0": _PROMPT,
    "granite granite 1": _PROMPT,
    "granite granite 4": _PROMPT,
    "granite granite 7": _PROMPT,
    "minimax_m3 minimax_m3 2": _PROMPT,
    "minimax_m3 minimax_m3 6": _PROMPT,
    "hunyuan_a13b hunyuan_a13b 0": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 3": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 4": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 5": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 6": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 7": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 8": _HUNYUAN,
    "hunyuan_a13b hunyuan_a13b 11": _HUNYUAN,
    "hunyuan_a13b None 4": _HUNYUAN,
    "hunyuan_a13b None 5": _HUNYUAN,
    "hunyuan_a13b None 8": _HUNYUAN,
    "hunyuan_a13b None 12": _HUNYUAN,
    "hy_v3 hy_v3 0": _EFFORT,
    "hy_v3 hy_v3 1": _EFFORT,
    "hy_v3 hy_v3 6": _EFFORT,
    "hy_v3 hy_v3 9": _EFFORT,
    "hy_v3 hy_v3 11": _EFFORT,
    "nemotron_v3 nemotron_v3 4": _NONE,
    "nemotron_v3 nemotron_v3 5": _NONE,
    "step3p5 step3p5 1": _NONE,
    "step3p5 step3p5 8": _NONE,
    "step5 step5 5": _NONE,
    "olmo3 olmo3 2": _OLMO,
    "olmo3 olmo3 3": _OLMO,
    "olmo3 olmo3 4": _OLMO,
    "olmo3 olmo3 8": _OLMO,
    "olmo3 olmo3 10": _OLMO,
    "olmo3 olmo3 11": _OLMO,
    "step3 step3 0": _STEP3,
    "step3 step3 3": _STEP3,
    "step3 step3 4": _STEP3,
    "step3 step3 6": _STEP3,
    "step3 step3 8": _STEP3,
    "step3 step3 9": _STEP3,
}


@pytest.mark.parametrize("group", ANSWERS, ids=[group["name"] for group in ANSWERS])
def test_equals_vllm_or_is_listed(group: dict[str, Any]) -> None:
    count = len(group["pieces"])
    answer = ours(group, [1] * count)
    assert (measure(group, answer) == "differs") == (group["name"] in DIFFERENCES), (answer, group["streamed"])
    for seed in range(5):
        assert ours(group, derenders.cut(count, random.Random(seed))) == answer


def test_every_listed_difference_was_recorded() -> None:
    assert DIFFERENCES.keys() <= {group["name"] for group in ANSWERS}


def test_most_answers_are_equal_to_the_byte() -> None:
    counts = Counter(measure(group, ours(group, [len(group["pieces"])])) for group in ANSWERS)
    assert counts["byte"] > 0.6 * len(ANSWERS), counts
