"""The SSE decoder against the WHATWG text, cut anywhere, and in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.engines.sse import EventTooLarge, SSEDecoder


def reference(stream: bytes) -> list[bytes]:
    """The algorithm of the WHATWG text over the whole stream at once, a byte at a time."""
    if stream.startswith(b"\xef\xbb\xbf"):
        stream = stream[3:]
    lines, line, position = [], bytearray(), 0
    while position < len(stream):
        byte = stream[position]
        position += 1
        if byte == 0x0D and stream[position : position + 1] == b"\n":
            position += 1
        if byte in (0x0A, 0x0D):
            lines.append(bytes(line))
            line.clear()
        else:
            line.append(byte)
    events, data = [], b""
    for text in lines:  # the line without an end is not processed
        if not text:
            if data:
                events.append(data[:-1])
            data = b""
            continue
        name, colon, value = text.partition(b":")
        if not name and colon:
            continue
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            data += value + b"\n"
    return events


def decode(stream: bytes, cuts: list[int], **limits: int) -> list[bytes]:
    decoder = SSEDecoder(**limits)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    events: list[bytes] = []
    for start, end in zip(edges, edges[1:], strict=False):
        events += decoder.feed(stream[start:end])
    return events


WHOLE = [b"data: {}\n\n", b'data: {"a":1}\n\n', b"data: [DONE]\n\n", b": ping\n\n"]
FIELDS = [b"data: ", b"data:", b"data", b":", b"event: x\n", b"id: 7\n", b"retry: 1\r\n", b"datax: 1\n"]
ENDS = [b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n"]
ODD = [
    b"\xef\xbb\xbf",
    b"\xef",
    "\u2028\u2029\u0085\x0b\x0c\x1c".encode(),
    "ü🫠".encode(),
    b"[DONE]",
    b" ",
    b"\0",
    b"x",
]
PIECES = st.sampled_from(WHOLE + FIELDS + ENDS + ODD)


@given(pieces=st.lists(PIECES, max_size=30), cuts=st.lists(st.integers(0, 400), max_size=20))
@example(pieces=[b"\xef\xbb\xbf", b"data: {}\n\n"], cuts=[1, 2])
@example(pieces=[b"data: x", b"\r\n\r\n", b"data: y", b"\r\n\r\n"], cuts=[8, 9, 10])
@example(pieces=[b"\xef", b"data: {}\n\n"], cuts=[1])
def test_equals_the_reference_however_cut(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    assert decode(stream, cuts) == reference(stream)
    assert decode(stream, list(range(len(stream)))) == reference(stream)


@given(stream=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_equals_the_reference_on_any_bytes(stream: bytes, cuts: list[int]) -> None:
    assert decode(stream, cuts) == reference(stream)


@given(
    pieces=st.lists(PIECES, max_size=12),
    cuts=st.lists(st.integers(0, 100), max_size=8),
    limit=st.integers(1, 24),
)
def test_the_bound_does_not_depend_on_the_cuts(pieces: list[bytes], cuts: list[int], limit: int) -> None:
    stream = b"".join(pieces)

    def outcome(where: list[int]) -> tuple[list[bytes], bool]:
        decoder, events = SSEDecoder(limit), []
        edges = [0, *sorted(cut % (len(stream) + 1) for cut in where), len(stream)]
        for start, end in zip(edges, edges[1:], strict=False):
            try:
                events += decoder.feed(stream[start:end])
            except EventTooLarge as error:
                return events + error.events, True
        return events, False

    assert outcome(cuts) == outcome([]) == outcome(list(range(len(stream))))


def test_unicode_line_separators_are_data() -> None:
    body = '{"request_id": "r\u2028\u2029\u0085\x0b1"}'.encode()
    assert SSEDecoder().feed(b"data: " + body + b"\n\n") == [body]


def test_pending_tells_of_an_event_cut_off() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\n\n: comm") == [b"a"]
    assert not decoder.pending
    assert decoder.feed(b"ent\ndata: [DON") == []
    assert decoder.pending
    assert decoder.feed(b"E]\n") == []
    assert decoder.pending
    assert decoder.feed(b"\n") == [b"[DONE]"]
    assert not decoder.pending


def test_events_before_one_too_large_are_kept() -> None:
    decoder = SSEDecoder(max_event_bytes=20)
    with pytest.raises(EventTooLarge) as caught:
        decoder.feed(b"data: a\n\ndata: b\n\ndata: " + b"x" * 30)
    assert caught.value.events == [b"a", b"b"]
    assert caught.value.limit == 20


def test_memory_of_an_endless_line_is_bounded() -> None:
    decoder = SSEDecoder(max_event_bytes=100_000)
    with pytest.raises(EventTooLarge):
        for _ in range(1_000):
            decoder.feed(b"x" * 1_000)


def seconds_for(size: int, read: int) -> float:
    """Best of three for one frame of ``size`` bytes in reads of ``read`` bytes."""
    frame = b"data: " + b"1," * (size // 2) + b"\n\n"
    best = float("inf")
    for _ in range(3):
        decoder, start = SSEDecoder(), time.process_time()
        events = [event for at in range(0, len(frame), read) for event in decoder.feed(frame[at : at + read])]
        best = min(best, time.process_time() - start)
        assert len(events) == 1
        assert len(events[0]) == size
    return best


def test_a_frame_of_megabytes_takes_linear_time() -> None:
    # Rescanning from the start would make the larger one 64 times as slow; 8 times the bytes is 8 times the work.
    assert seconds_for(8_000_000, 1_000) < 24 * max(seconds_for(1_000_000, 1_000), 1e-4)
