"""Every format on outputs that generators write: valid, truncated, damaged; in any cuts, restored at each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.derender.parsing.registry import builtin
from tests.generators.base import Generator, Variant, generators
from tests.generators.check import KINDS, by_tokens, check, check_plain, check_streams

EACH = pytest.mark.parametrize("generator", generators(), ids=lambda g: f"{g.family} {g.reasoning_parser}")


@EACH
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_any_output_in_any_cuts(generator: Generator, kind: str, seed: int) -> None:
    check(generator, kind, seed, cuts=1)


@EACH
@pytest.mark.parametrize("special", ["all", "none"])
def test_which_markers_a_vocabulary_calls_special_does_not_matter(generator: Generator, special: str) -> None:
    other = Variant(generator, generator.markers if special == "all" else ())
    for seed in range(8):
        check(other, "valid", seed, cuts=1)


@pytest.mark.parametrize("generator", [g for g in generators() if by_tokens(g)], ids=lambda g: g.family)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_text_that_spells_markers_is_content(generator: Generator, seed: int) -> None:
    check_plain(generator, seed)


def test_every_format_has_a_generator() -> None:
    registry = builtin()
    tools = [registry.tools[item.tool_parser] for item in generators() if item.tool_parser]
    reasoning = [registry.reasoning[item.reasoning_parser] for item in generators() if item.reasoning_parser]
    assert not [name for name, item in registry.tools.items() if not any(item is other for other in tools)]
    assert not [name for name, item in registry.reasoning.items() if not any(item is other for other in reasoning)]


@pytest.mark.parametrize("generator", [g for g in generators() if g.tool_parser], ids=lambda g: f"{g.family}")
def test_a_long_argument_is_streamed(generator: Generator) -> None:
    check_streams(generator)
