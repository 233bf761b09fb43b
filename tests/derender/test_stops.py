"""Stop strings, character by character and in any cuts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.derender.stops import StopMatcher


def run(matcher: StopMatcher, chunks: list[str]) -> tuple[str, str | None]:
    out = []
    for n, chunk in enumerate(chunks, 1):
        out.append(matcher.push(chunk, n))
        if matcher.matched is not None:
            return "".join(out), matcher.matched
    out.append(matcher.flush())
    return "".join(out), None


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The match that completes earliest; on a tie the one listed first."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@given(
    st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.booleans()
)
def test_earliest_completing_match_in_any_cut(text: str, stops: list[str], include: bool) -> None:
    expected = reference(text, stops, include)
    assert run(StopMatcher(stops, include), list(text)) == expected
    assert run(StopMatcher(stops, include), [text]) == expected
    rng = random.Random(text)
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), 3)))
    assert (
        run(StopMatcher(stops, include), [text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)])
        == expected
    )


def test_nothing_but_a_live_prefix_is_held() -> None:
    matcher = StopMatcher(["QWXYZ"])
    assert matcher.push("lorem Q", 1) == "lorem "
    assert matcher.held == "Q"
    assert matcher.push("WX", 2) == ""
    assert matcher.push("!", 3) == "QWX!"
    assert matcher.held == ""


@pytest.mark.parametrize(("minimum", "expected"), [(0, ("", "ab")), (2, ("ab", "ab")), (3, ("abab", None))])
def test_a_match_within_min_tokens_does_not_count(minimum: int, expected: tuple[str, str | None]) -> None:
    assert run(StopMatcher(["ab"], min_tokens=minimum), ["a", "b", "ab"][:4]) == expected


def test_a_match_may_begin_within_min_tokens_and_end_behind_them() -> None:
    assert run(StopMatcher(["abc"], min_tokens=2), ["a", "b", "c"]) == ("", "abc")
