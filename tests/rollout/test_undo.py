"""Taking back what ``return_token_ids`` changed: byte for byte, in vLLM's form and in that of its Rust frontend."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import msgspec
import pytest

from proxy.rollout import undo
from proxy.rollout.counters import Counters
from proxy.rollout.options import RolloutOptions
from proxy.rollout.shadow import ShadowTap, asking_for_ids, open_shadow
from tests.rollout.wire import pieces

DATA = Path(__file__).resolve().parent.parent / "data"
STREAMS = sorted(
    path
    for pattern in ("coupled/*_chat_stream.txt", "captures/rs033_*_chat_stream.txt")
    for path in DATA.glob(pattern)
    if b"HTTP/1.1 200" in path.read_bytes()
)
WHOLE = sorted([*DATA.glob("coupled/*_chat_full.txt"), *DATA.glob("captures/rs033_*_chat_full.txt")])
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
# from the delta of a frame to its ids
_SAYING = re.compile(rb'"delta":\{.*?\},"logprobs":.*?,"finish_reason":.*?,(?:"stop_reason":[^,]*,)?"token_ids"')
JSON = [(b"content-type", b"application/json")]


def body_of(path: Path) -> bytes:
    return path.read_bytes().replace(b"\r\n", b"\n").partition(b"HTTP/1.1 ")[2].partition(b"\n\n")[2]


def with_ids(stream: bytes, rng: random.Random) -> bytes:
    """A recorded stream as the engine would have sent it, had ids been asked for (as observed on vLLM 0.33)."""
    out = []
    for frame in stream.split(b"\n\n")[:-1]:
        ids = b"[%s]" % b",".join(b"%d" % rng.randrange(150_000) for _ in range(rng.randint(0, 4)))
        if b'"token_ids":null' in frame:
            if rng.random() < 0.3:  # a step that says nothing, with its ids
                empty = _SAYING.sub(rb'"delta":{},"logprobs":null,"finish_reason":null,"token_ids"', frame, count=1)
                out.append(empty.replace(b'"token_ids":null', b'"token_ids":' + ids))
            frame = frame.replace(b'"token_ids":null', b'"token_ids":' + ids)
        elif b'"choices":[{' in frame and b'"role"' not in frame:  # no nulls: the field would not have been there
            assert frame.endswith(b"}]}")
            frame = frame[:-3] + b',"token_ids":' + ids + b"}]}"
        frame = frame.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":[1,2,3]')
        out.append(frame)
    return b"\n\n".join(out) + b"\n\n"


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams(path):
    """With ids put in as the engine would have, cut at random: what leaves is the recording."""
    rng = random.Random(path.stem)
    original = body_of(path)
    changed = with_ids(original, rng)
    assert changed != original
    for _ in range(20):
        tap = ShadowTap(limit=1 << 20, undo=True)
        assert not tap.start(200, SSE)
        got = b"".join([tap.feed(piece) for piece in pieces(changed, rng, 30)]) + tap.end()
        assert got == original
        assert tap.recording.why_not() in (None, "no_prompt_ids")  # the Rust frontend's had no place for these
    tap = ShadowTap(limit=1 << 20, undo=False)  # a client that asked for them itself
    tap.start(200, SSE)
    assert tap.feed(changed) + tap.end() == changed


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_recorded_answers_in_one_piece(path):
    original = body_of(path)
    changed = original.replace(b'"token_ids":null', b'"token_ids":[ 1, 2 ]')
    changed = changed.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":[3]')
    tap = ShadowTap(limit=1 << 20, undo=True)
    assert tap.start(200, JSON)
    assert [tap.feed(piece) for piece in pieces(changed, random.Random(1))].count(b"") and tap.end() == original
    assert tap.recording.why_not() is None and tap.recording.choices[0].chunks == [[1, 2]]


def test_text_that_spells_the_field_is_text():
    said = 'see "token_ids":[1,2] and \\"token_ids\\":[3], "delta":{}'
    event = {
        "choices": [
            {"index": 0, "delta": {"content": said}, "logprobs": None, "finish_reason": None, "token_ids": [7]}
        ],
        "kv_transfer_params": {"token_ids": [8, 9], "choices": [{"token_ids": [1]}]},
        "prompt_token_ids": [5],
    }
    raw = json.dumps(event, separators=(",", ":")).encode()
    event["choices"][0]["token_ids"] = event["prompt_token_ids"] = None  # type: ignore[index]
    assert undo.undone(raw, undo.decode(raw)) == json.dumps(event, separators=(",", ":")).encode()


def test_fields_that_would_not_have_been_there_are_cut_out():
    for raw, left in (
        (b'{"choices":[{"delta":{"content":"a"},"token_ids":[1]}]}', b'{"choices":[{"delta":{"content":"a"}}]}'),
        (b'{"choices":[{"token_ids":[1],"index":0}]}', b'{"choices":[{"index":0}]}'),
        (b'{"choices":[{"token_ids":[1]}],"prompt_token_ids":[2]}', b'{"choices":[{}]}'),
    ):
        assert undo.undone(raw, undo.decode(raw)) == left


def test_what_cannot_be_read_goes_on_as_it_came():
    """Comments, other fields, broken JSON, an end in the middle: nothing is lost, changed or added."""
    rng = random.Random(3)
    frames = [
        *(b": ping\n\n", b"event: x\ndata: {\n\n", b"data: {broken\n\n", b'data: {"choices":[{"index":"no"}]}\n\n'),
        *(b"data: [DONE]\r\n\r\n", b"\n\n", b'data: {"choices":7}\n\n', b"id: 1\n\n", b'data: {"choices":['),
        b"data:{}\n\n",
    ]
    for _ in range(200):
        stream = b"".join(rng.choice(frames) for _ in range(rng.randint(1, 9)))
        tap = ShadowTap(limit=1 << 20, undo=True)
        tap.start(200, SSE)
        assert b"".join([tap.feed(piece) for piece in pieces(stream, rng)]) + tap.end() == stream


def test_other_answers_are_left_alone():
    for status, headers in ((400, JSON), (200, [(b"content-type", b"text/html")]),
                            (200, [*SSE, (b"content-encoding", b"gzip")])):  # fmt: skip
        tap = ShadowTap(limit=10, undo=True)
        assert not tap.start(status, headers)
        assert tap.feed(b'data: {"choices":[{"token_ids":[1]}]}\n\n') == b'data: {"choices":[{"token_ids":[1]}]}\n\n'
        assert tap.end() == b"" and tap.recording.why_not() is not None


@pytest.mark.parametrize("body", [b'{"a":1}', b" {} ", b'{ "n": 1.50, "big": 123456789012345678901234567890 }'])
def test_asking_for_ids_changes_nothing_else(body):
    asked = asking_for_ids(body)
    assert json.loads(asked) == {**json.loads(body), "return_token_ids": True}
    assert body.strip()[1:] in asked
    for value in (b"null", b"false"):
        told = b'{"return_token_ids":' + value + b',"seed":123456789012345678901234567890}'
        assert json.loads(asking_for_ids(told)) == {"return_token_ids": True, "seed": 123456789012345678901234567890}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"include_reasoning": False}, "include_reasoning"),
        ({"echo": True}, "echo"),
        ({"use_beam_search": True}, "beam_search"),
        ({"return_token_ids": "yes"}, "bad_request"),
        ([], "bad_request"),
    ],
)
def test_requests_that_cannot_be_shadowed_are_counted_as_such(body, reason):
    counters = Counters()
    assert open_shadow(msgspec.json.encode(body), "/v1/chat/completions", RolloutOptions(), counters) is None
    assert counters.skipped == {reason: 1}


def test_a_recording_has_an_end():
    tap = ShadowTap(limit=1000, undo=True)
    tap.start(200, SSE)
    frame = b'data: {"choices":[{"index":0,"delta":{"content":"xxxxxxxxxx"},"finish_reason":null,"token_ids":[1]}]}\n\n'
    out = b"".join(tap.feed(frame) for _ in range(50))
    assert out == frame.replace(b"[1]", b"null") * 50
    assert tap.recording.why_not() == "too_large" and not tap.recording.choices
