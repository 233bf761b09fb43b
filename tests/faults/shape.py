"""What every streamed answer must be, whatever the case is about."""

from __future__ import annotations

from typing import Any

from tests.faults.exchange import DONE, Exchange


def tool_delta_faults(deltas: list[dict[str, Any]], started: dict[int, str] | None = None) -> list[str]:
    """What is wrong with a choice's ``tool_calls`` entries, in the order in which they were sent."""
    faults: list[str] = []
    started = {} if started is None else started
    for entry in deltas:
        index = entry.get("index")
        function = entry.get("function")
        if type(index) is not int:
            faults.append(f"index is {index!r}")
            continue
        if not isinstance(function, dict):
            faults.append(f"function is {function!r}")
            continue
        if "arguments" in function and not isinstance(function["arguments"], str):
            faults.append(f"arguments are {function['arguments']!r}")
        if index not in started:
            if index != len(started):
                faults.append(f"index {index} follows {len(started)} calls")
            call_id = entry.get("id")
            if not isinstance(call_id, str) or not call_id.strip():
                faults.append(f"the first entry of index {index} has the id {call_id!r}")
            if entry.get("type") != "function":
                faults.append(f"the first entry of index {index} has the type {entry.get('type')!r}")
            if not isinstance(function.get("name"), str) or not function["name"].strip():
                faults.append(f"the first entry of index {index} has the name {function.get('name')!r}")
            started[index] = str(call_id)
            continue
        for key in ("id", "type"):
            if key in entry:
                faults.append(f"a later entry of index {index} has the {key} {entry[key]!r}")
        if set(function) - {"arguments"}:
            faults.append(f"a later entry of index {index} has {sorted(function)}")
    return faults


def check_stream(answer: Exchange, *, chat: bool = True, failed: bool = False, usage: bool = False) -> None:
    """The rules of any streamed answer. ``failed``: it ends with an error. ``usage``: usage was asked for."""
    assert answer.status == 200, (answer.status, answer.body)
    answer.body.decode()  # UTF-8
    check_headers(answer)
    assert answer.events[-1] == DONE, answer.events[-1]
    assert answer.events.count(DONE) == 1
    chunks = answer.chunks
    if chunks:
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
    assert sum("error" in event for event in answer.events if isinstance(event, dict)) == int(failed)
    for event in answer.events:
        if isinstance(event, dict) and "error" in event:
            assert event is answer.events[-2] and "choices" not in event, event
    for chunk in chunks:
        check_chunk(chunk, usage=usage)
    for choice in answer.choices.values():
        if chat:
            roles = [number for number, delta in enumerate(choice.deltas) if "role" in delta]
            assert roles == [0] and choice.deltas[0]["role"] == "assistant", choice.deltas
        finishes = [number for number, delta in enumerate(choice.deltas) if delta["finish_reason"] is not None]
        assert finishes == [len(choice.deltas) - 1] or (failed and not finishes), choice.deltas
        entries = [entry for delta in choice.deltas for entry in delta.get("tool_calls") or ()]
        assert tool_delta_faults(entries) == [], entries
        assert len({call.id for call in choice.calls}) == len(choice.calls)


def check_headers(answer: Exchange) -> None:
    headers = answer.headers
    assert headers["content-type"].replace(" ", "") in ("text/event-stream", "text/event-stream;charset=utf-8")
    assert "no-cache" in headers["cache-control"]
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers and "content-encoding" not in headers


def check_chunk(chunk: dict[str, Any], *, usage: bool) -> None:
    """One chunk by itself: one entry per index, and nothing sent that says nothing."""
    if not chunk["choices"]:
        assert usage and chunk["usage"], chunk
        return
    (choice,) = chunk["choices"]
    if "delta" not in choice:
        return
    delta = choice["delta"]
    indices = [entry["index"] for entry in delta.get("tool_calls") or ()]
    assert len(indices) == len(set(indices)), chunk
    assert not (delta.get("content") and (delta.get("reasoning") or delta.get("reasoning_content"))), chunk
    if "role" in delta:
        return
    says = any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))
    told = choice["finish_reason"] or choice.get("logprobs") or choice.get("token_ids") or chunk.get("usage")
    assert says or told, chunk
    for key in ("content", "reasoning", "reasoning_content", "tool_calls"):
        assert key not in delta or delta[key], chunk  # a key that says nothing is left out
