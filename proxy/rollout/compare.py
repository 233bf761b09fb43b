"""Two answers to one request, told apart field by field. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode  # of megabytes in milliseconds
_EXCERPT = 40  # characters shown on either side of a difference, where content may be shown


@dataclass
class Call:
    name: str
    arguments: str


@dataclass
class Answer:
    """One choice as a client would put it together. ``usage``: what is known of it, by name."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class Difference:
    """``offset``: the first character at which the texts differ (of call ``call`` for arguments), the first call for
    names, the first id for prompts; -1 where there is no such thing. Lengths are in the same unit."""

    field: str
    offset: int
    ours: int
    theirs: int
    call: int | None = None
    excerpts: tuple[str, str] = ("", "")


def first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Where two sequences part; their length, if they do not."""
    low, high = 0, min(len(ours), len(theirs))
    if ours[:high] == theirs[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low


def differences(ours: Answer, theirs: Answer) -> list[Difference]:
    """All fields that differ, one entry a field (the first call that does)."""
    found = []
    for name in ("reasoning", "content"):
        if (text := getattr(ours, name)) != (other := getattr(theirs, name)):
            found.append(_text(name, text, other))
    names, others = [call.name for call in ours.calls], [call.name for call in theirs.calls]
    if names != others:
        at = first_difference(names, others)
        found.append(Difference("tool_names", at, len(names), len(others), call=at))
    for form, same in (("arguments_json", _same_json), ("arguments_text", str.__eq__)):
        for number, (call, other_call) in enumerate(zip(ours.calls, theirs.calls, strict=False)):
            if not same(call.arguments, other_call.arguments):
                found.append(_text(form, call.arguments, other_call.arguments, number))
                break
    if ours.finish_reason != theirs.finish_reason:
        excerpts = (str(ours.finish_reason), str(theirs.finish_reason))
        found.append(Difference("finish_reason", -1, 0, 0, excerpts=excerpts))
    return found


def usage_difference(ours: dict[str, int | None], theirs: dict[str, int | None]) -> Difference | None:
    """Counts that both tell and that differ."""
    wrong = [name for name, count in ours.items() if count is not None and theirs.get(name) not in (None, count)]
    if not wrong:
        return None
    first = wrong[0]
    return Difference("usage", -1, ours[first] or 0, theirs[first] or 0, excerpts=(first, first))


def prompt_difference(ours: Sequence[int], theirs: Sequence[int]) -> Difference | None:
    """Whether two renderings of one conversation are the same ids."""
    if list(ours) == list(theirs):
        return None
    return Difference("prompt", first_difference(ours, theirs), len(ours), len(theirs))


def _text(name: str, ours: str, theirs: str, call: int | None = None) -> Difference:
    at = first_difference(ours, theirs)
    shown = slice(max(0, at - _EXCERPT), at + _EXCERPT)
    return Difference(name, at, len(ours), len(theirs), call, (ours[shown], theirs[shown]))


def _same_json(ours: str, theirs: str) -> bool:
    """Equal as JSON values; texts that are no JSON are equal if they are the same."""
    if ours == theirs:
        return True
    try:
        return bool(_decode(ours) == _decode(theirs))
    except (ValueError, RecursionError):  # msgspec's and Unicode's errors are ValueErrors
        return False
