"""Names and the formats behind them: aliases, refusals, plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from proxy.derender.derenderer import Derenderer, UnknownFormat
from proxy.derender.parsing import plugins
from proxy.derender.parsing.plugins import GROUP, BadPlugin, extended
from proxy.derender.parsing.registry import Registry, builtin
from proxy.derender.parsing.vllm_names import REASONING_PARSERS, TOOL_PARSERS
from tests import derenders

PLUGIN = Path(__file__).parents[1] / "data" / "plugin"
FOREIGN = {"hf", "beam"}


def test_every_name_of_vllms_is_here() -> None:
    registry = builtin()
    assert registry.tools.keys() | FOREIGN >= TOOL_PARSERS
    assert registry.reasoning.keys() | FOREIGN >= REASONING_PARSERS
    assert registry.tools.keys() <= TOOL_PARSERS
    assert registry.reasoning.keys() <= REASONING_PARSERS


def test_aliases_are_one_format() -> None:
    tools = builtin().tools
    for one, other in (
        ("hermes", "qwen3_json"),
        ("glm45", "glm47"),
        ("muse", "musespark1x"),
        ("qwen3_coder", "qwen3_xml"),
    ):
        assert tools[one] is tools[other]


@pytest.mark.parametrize(("kind", "flag"), [("tool call", "tool_parser"), ("reasoning", "reasoning_parser")])
def test_refusals_say_what_there_is(kind: str, flag: str) -> None:
    registry = Registry()
    names: dict[str, Any] = {flag: "qwen3" if kind == "reasoning" else "hermes"}
    with pytest.raises(UnknownFormat) as refused:
        Derenderer(derenders.vocabulary("qwen3"), registry=registry, **names)
    assert f"vllm:{names[flag]}" in str(refused.value)
    assert "hf" in str(refused.value)
    with pytest.raises(UnknownFormat, match=f"unknown {kind} parser 'nope'; there are: .*(hermes|qwen3)"):
        Derenderer(derenders.vocabulary("qwen3"), **{flag: "nope"})


def test_formats_that_describe_everything_are_not_mixed() -> None:
    vocabulary = derenders.vocabulary("qwen3")
    with pytest.raises(UnknownFormat, match="hf needs a checkpoint"):
        Derenderer(vocabulary, tool_parser="hf")
    with pytest.raises(UnknownFormat, match="vllm:NAME for both"):
        Derenderer(vocabulary, reasoning_parser="qwen3", tool_parser="vllm:hermes")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example package as if it were installed."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    plugins.installed.cache_clear()
    yield
    plugins.installed.cache_clear()
    sys.modules.pop("acme_formats", None)


def answer(tools: str, text: str, reasoning: str | None = None) -> dict[str, Any]:
    derenderer = Derenderer(derenders.vocabulary("qwen3"), reasoning_parser=reasoning, tool_parser=tools)
    ids = derenders.tokenizer("qwen3").encode(text).ids
    request = derenders.settings([{"type": "function", "function": {"name": "f"}}])

    def opened() -> Any:
        return derenderer.chat(request, request_id="r", prompt_token_ids=[1])

    whole = derenders.answer(derenders.run(opened(), ids, [len(ids)]))
    assert derenders.answer(derenders.run(opened(), ids, [1] * len(ids))) == whole
    return whole


@pytest.mark.usefixtures("plugin")
def test_the_example_plugin() -> None:
    got = answer("acme", '<<think>>hm<<said>>Hi <<call>>f<<args>>{"a": "<<end>>"}<<end>>!', "acme")
    assert (got["reasoning"], got["content"]) == ("hm", "Hi !")
    assert got["tool_calls"] == [{"name": "f", "arguments": '{"a": "<<end>>"}'}]
    assert answer("acme_upper", "Hi ünï")["content"] == "HI ÜNÏ"
    with pytest.raises(UnknownFormat, match="one is a parser of its own"):
        Derenderer(derenders.vocabulary("qwen3"), reasoning_parser="qwen3", tool_parser="acme_upper")


@pytest.mark.usefixtures("plugin")
def test_a_plugin_has_names_of_its_own() -> None:
    point = EntryPoint("acme", "acme_formats", GROUP)
    with pytest.raises(BadPlugin, match="acme .*there is a format 'acme' already"):
        extended(plugins.installed(), [point])


@pytest.mark.parametrize(
    ("value", "said"),
    [("no_such_module", "No module named"), ("json", "is no format|not iterable"), ("json:nope", "nope")],
)
def test_a_plugin_that_cannot_be_used_is_named(value: str, said: str) -> None:
    with pytest.raises(BadPlugin, match=f"plugin bad .{value}.*({said})"):
        extended(Registry(), [EntryPoint("bad", value, GROUP)])
