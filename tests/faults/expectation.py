"""Compares an answer with a case's ``expected``."""

from __future__ import annotations

import codecs
import json
from typing import Any

from tests.faults.cases import Case, Plan, token_bytes
from tests.faults.exchange import DONE, Choice, Exchange

KNOWN = {
    *("message", "compare", "finish_reason", "stop_reason", "usage", "logprobs", "ids", "invariants"),
    *("tool_calls_prefix", "must_include_call", "chunks_like", "last_chunks", "http", "choices", "request_id"),
}
MESSAGE_KEYS = {"role", "reasoning", "content", "tool_calls", "content_must_end_with"}


def check(case: Case, answer: Exchange, plan: Plan | None = None) -> None:
    """``answer`` is what ``expected`` says of a single choice."""
    expected = case.expected
    assert set(expected) <= KNOWN, expected
    assert answer.status == 200, (answer.status, answer.body)
    choice = answer.only
    check_choice(expected, choice)
    if "usage" in expected and answer.usage is not None:
        for name, value in expected["usage"].items():
            assert answer.usage[name] == value, answer.usage
    if "logprobs" in expected:
        check_logprobs(expected["logprobs"], choice)
    if "ids" in expected:
        assert [call.id for call in choice.calls] == expected["ids"]
    if "chunks_like" in expected and answer.streamed and plan is not None and plan.alone:
        check_chunks(expected["chunks_like"], answer)


def check_choice(expected: dict[str, Any], choice: Choice) -> None:
    """Message, finish reason and stop reason."""
    if "message" in expected:
        check_message(expected["message"], expected.get("compare", {}), choice)
    if "finish_reason" in expected:
        assert choice.finish_reason == expected["finish_reason"]
    if "stop_reason" in expected:
        assert choice.stop_reason == expected["stop_reason"]
    for prefix in expected.get("tool_calls_prefix", ()):
        call = choice.calls[prefix["index"]]
        assert call.name == prefix["name"]
        assert call.arguments and prefix["arguments_is_prefix_of"].startswith(call.arguments)
    if "must_include_call" in expected:
        wanted = expected["must_include_call"]
        assert (wanted["name"], wanted["arguments_json"]) in [
            (call.name, json.loads(call.arguments or "null")) for call in choice.calls
        ]


def check_message(message: dict[str, Any], compare: dict[str, str], choice: Choice) -> None:
    assert set(message) <= MESSAGE_KEYS, message
    if "content" in message:
        rule = compare.get("content", "strip" if message.get("tool_calls") else "exact")
        assert same(choice.content, message["content"], rule), (choice.content, message["content"], rule)
    if "content_must_end_with" in message:
        assert choice.content.endswith(message["content_must_end_with"]), choice.content
    if "reasoning" in message:
        # always by strip, as the cases' README allows
        assert same(choice.reasoning, message["reasoning"], "strip"), (choice.reasoning, message["reasoning"])
    found = [(call.index, call.name, _arguments(call.arguments, compare)) for call in choice.calls]
    wanted = [
        (call["index"], call["name"], _rstripped(call["arguments_json"], compare)) for call in message["tool_calls"]
    ]
    assert found == wanted


def same(found: str, wanted: str | None, rule: str) -> bool:
    """Null and no text are the same."""
    text = wanted or ""
    match rule:
        case "any":
            return True
        case "null-or-empty":
            return found == ""
        case "strip":
            return found.strip() == text.strip()
        case "rstrip":
            return found.rstrip() == text.rstrip()
        case "whitespace-insensitive":
            return "".join(found.split()) == "".join(text.split())
        case "exact":
            return found == text
    raise AssertionError(f"unknown rule {rule}")


def _arguments(text: str, compare: dict[str, str]) -> Any:
    def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), f"a key comes twice: {text}"
        return dict(pairs)

    return _rstripped(json.loads(text, object_pairs_hook=no_repeats), compare)


def _rstripped(arguments: Any, compare: dict[str, str]) -> Any:
    for path, rule in compare.items():
        field, _, key = path.partition(".")
        if field == "arguments_json":
            assert rule == "rstrip-newlines"
            arguments = {**arguments, key: arguments[key].rstrip("\n")}
    return arguments


def check_logprobs(expected: dict[str, Any], choice: Choice) -> None:
    assert choice.logprobs is not None
    entries = choice.logprobs
    if "entries" in expected:
        assert len(entries) == expected["entries"]
    if "max_entries" in expected:
        assert len(entries) <= expected["max_entries"]
    if "tokens" in expected:
        assert [entry["token"] for entry in entries] == expected["tokens"]
    if "bytes" in expected:
        assert [entry["bytes"] for entry in entries] == expected["bytes"]


def check_chunks(like: list[Any], answer: Exchange) -> None:
    """Each event has what the one at its place in ``like`` shows; consecutive text may be cut elsewhere."""
    events = [event for event in answer.events if event == DONE or event.get("choices") != []]  # usage is always asked
    found = _joined(events if DONE in like else events[:-1])
    assert len(found) == len(like), (found, like)
    for event, wanted in zip(found, like, strict=True):
        if wanted == DONE:
            assert event == DONE
        elif "error" in wanted:
            assert set(event) == {"error"} and set(event["error"]) == set(wanted["error"])
            assert isinstance(event["error"]["message"], str) and event["error"]["message"]
            assert isinstance(event["error"]["type"], str) and isinstance(event["error"]["code"], int | str)
        else:
            (choice,) = event["choices"]
            assert choice["delta"] == wanted["delta"], (choice, wanted)
            assert choice["finish_reason"] == wanted.get("finish_reason")


def _joined(events: list[Any]) -> list[Any]:
    joined: list[Any] = []
    for event in events:
        text = _content_only(event)
        if text is not None and joined and _content_only(joined[-1]) is not None:
            joined[-1]["choices"][0]["delta"]["content"] += text
        else:
            joined.append(json.loads(json.dumps(event)))
    return joined


def _content_only(event: Any) -> str | None:
    if isinstance(event, dict) and event.get("choices"):
        choice = event["choices"][0]
        if set(choice["delta"]) == {"content"} and choice["finish_reason"] is None:
            return str(choice["delta"]["content"])
    return None


def decided_text(tokenizer: str, ids: list[int], stops: list[str]) -> str:
    """What can be said after ``ids``: whole characters, up to a tail that could become a stop string."""
    raw = b"".join(token_bytes(tokenizer)[token] for token in ids)
    # replaces bad bytes as soon as nothing can make them good
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
    cuts = [text.find(stop) for stop in stops if stop in text]
    if cuts:
        return text[: min(cuts)]
    held = max(
        (length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])),
        default=0,
    )
    return text[: len(text) - held] if held else text
