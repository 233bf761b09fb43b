"""Newlines that a tokenizer writes out come out as vLLM has them, in any cuts; code, LaTeX and arguments keep them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from proxy.derender.derenderer import Derenderer
from proxy.derender.newlines import NewlineFilter
from proxy.derender.parsing.events import ARGUMENTS, CALL, CONTENT, REASONING, Event
from proxy.derender.settings import ChatSettings
from tests.derender.test_encodings import M, answer, feed, reasoning
from tests.generators.base import toy

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "minicpmv.jsonl"
RECORDED = [
    (row["written"], row["said"])
    for row in map(json.loads, GOLDEN.read_text().splitlines())
]


def through(events: list[Event], restored: bool = False) -> list[Event]:
    item, out = NewlineFilter(), []
    for event in events:
        if restored:
            saved, item = json.loads(json.dumps(item.save())), NewlineFilter()
            item.load(saved)
        out += item.apply([event])
    return out + item.finish()


def text(events: list[Event], kind: int = CONTENT) -> str:
    return "".join(said for channel, said, _ in events if channel == kind)


def test_equals_vllm_in_any_cuts() -> None:
    rng = random.Random(1)
    assert sum(written != said for written, said in RECORDED) > 100
    for written, said in RECORDED:
        for cuts in (0, len(written), 3):
            places = sorted(rng.randrange(len(written) + 1) for _ in range(cuts)) if cuts != len(written) else None
            starts = list(range(len(written) + 1)) if places is None else [0, *places, len(written)]
            pieces = [written[a:b] for a, b in zip(starts, starts[1:], strict=False) if b > a]
            events: list[Event] = [(CONTENT, piece, "") for piece in pieces]
            assert text(through(events)) == text(through(events, restored=True)) == said, (written, pieces)


def test_channels_are_apart_and_arguments_are_json() -> None:
    events: list[Event] = [
        (REASONING, "a\\", ""), (CONTENT, "nb\\", ""), (CALL, "f", ""), (ARGUMENTS, '{"x": "\\n"}', ""),
        (CONTENT, "n", ""), (REASONING, "`", ""), (CONTENT, "\\n", ""), (REASONING, "\\n`", ""),
    ]  # fmt: skip
    out = through(events)
    assert out[:4] == [(REASONING, "a", ""), (REASONING, "\\", ""), (CONTENT, "nb", ""), (CONTENT, "\\", "")]
    assert text(out, ARGUMENTS) == '{"x": "\\n"}' and text(out).endswith("n\n") and text(out, REASONING) == "a\\`\\n`"


def test_minicpmv_through_the_parser() -> None:
    think, end, call, call_end = map(M, ("<think>", "</think>", "<tool_call>", "</tool_call>"))
    markers = (think, end, call, call_end)
    pieces = [think, "one\\", "ntwo", end, "a\\nb <reserved_13>`\\n`", call,
              '{"name": "f", "arguments": {"city": "x\\ny"}}', call_end]  # fmt: skip
    got = feed("hermes", pieces, markers, reasoning_parser="minicpmv")
    assert reasoning(got) == "one\ntwo"
    assert answer(got) == ("a\nb `\\n`", [("f", '{"city": "x\\ny"}')])


@pytest.mark.parametrize("piece", ["\\", "`", "$", "\\n", "a`"])
def test_it_is_linear_and_holds_little(piece: str) -> None:
    made = toy(())
    opener = Derenderer(made.vocabulary, reasoning_parser="minicpmv")

    def seconds(count: int) -> float:
        stream = opener.chat(ChatSettings(), request_id="r", prompt_token_ids=[1])
        ids = list(piece.encode()) * count
        before = time.process_time()
        for token_id in ids:
            stream.feed([token_id])
        assert len(json.dumps(stream.save(), default=repr)) < 700
        return time.process_time() - before

    seconds(500)
    assert min(seconds(16_000) for _ in range(3)) < 12 * min(seconds(4_000) for _ in range(3))
