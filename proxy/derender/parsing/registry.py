"""Formats by name, and how a reasoning format and a tool format become one state machine."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeAlias

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.json_list import ListReader, NamedReader
from proxy.derender.parsing.foreign import ForeignFormat
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.vllm_names import REASONING_PARSERS, TOOL_PARSERS, VERSION


class UnknownFormat(ValueError):
    """A parser name that no format has; the message lists those there are."""


@dataclass(frozen=True)
class Trim:
    """What ``--framing-whitespace trim`` drops of a family: whitespace that frames and is not content.

    ``reasoning``: at both ends of the reasoning. ``content``: between reasoning, content and calls.
    """

    reasoning: bool = True
    content: bool = True


@dataclass(frozen=True)
class ReasoningFormat:
    """A region of reasoning between two markers, in front of everything else.

    ``open_by_default``: where the prompt does not say, the output begins inside. ``switch``: names of
    ``chat_template_kwargs`` that turn reasoning off with a false value; ``opens``: those that make the
    output begin inside with a true value. ``ends_with_call``: a call that begins inside ends the reasoning,
    as long as it names a declared tool. ``spelled``: the markers of older checkpoints, whose vocabulary has no
    token for ``start``. ``label``: text right behind ``start`` that belongs to it. ``reopens``: ``start`` counts
    anywhere in the answer. ``drops_tail``: where framing whitespace is kept, that at the end of the reasoning is
    dropped all the same. ``starts`` and ``ends``: other spellings of the markers. ``behind``: text that frames
    the answer behind the reasoning; ``swallows``: markers that frame it anywhere. ``fit``: the format as a
    checkpoint with these added tokens has it, where its markers differ from checkpoint to checkpoint. ``inline``: it
    is sent as content, markers and all. ``written_newlines``: text has newlines as a backslash and a letter.
    """

    names: tuple[str, ...]
    start: str
    end: str
    open_by_default: bool
    switch: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    ends_with_call: bool = False
    literal: bool = False
    spelled: tuple[str, str] | None = None
    label: str = ""
    reopens: bool = False
    drops_tail: bool = False
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    swallows: tuple[str, ...] = ()
    fit: Callable[[Collection[str]], ReasoningFormat] | None = None
    inline: bool = False
    written_newlines: bool = False
    trim: Trim = field(default_factory=Trim)


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes tool calls: ``states`` from ``entry`` on, with ``content`` among them.

    ``ends_reasoning``: markers that can end open reasoning. ``markers``: those that only the readers know.
    ``id_shape``: what the family's template wants tool-call ids to look like (``tool_ids``). ``fit``: as for
    ``ReasoningFormat``.
    """

    names: tuple[str, ...]
    states: Mapping[str, State]
    entry: str = "content"
    ends_reasoning: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    id_shape: str = "vllm"
    trim: Trim = field(default_factory=Trim)
    fit: Callable[[Collection[str]], ToolFormat] | None = None


@dataclass(frozen=True)
class JointFormat:
    """A family whose reasoning and calls are one format; ``reasoning_names`` / ``tool_names`` both select it.

    ``turn``: the marker that begins the model's turn in the prompt; what follows it there is read by the
    machine from state ``primed``, to find the state that the output begins in (``entry`` without one).
    ``without_tools``: states that replace others where the request allows no calls.
    """

    reasoning_names: tuple[str, ...]
    tool_names: tuple[str, ...]
    states: Mapping[str, State]
    entry: str
    turn: str
    primed: str
    without_tools: Mapping[str, State] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    id_shape: str = "vllm"
    trim: Trim = field(default_factory=lambda: Trim(reasoning=False, content=False))


@dataclass(frozen=True)
class Grammar:
    """What a stream is parsed by: states, where it begins, and where it begins inside reasoning."""

    states: Mapping[str, State]
    entry: str
    open_entry: str = ""
    markers: tuple[str, ...] = ()


PLAIN = ToolFormat(names=(), states={"content": State(Sink.CONTENT)}, trim=Trim(reasoning=False, content=False))


def compose(reasoning: ReasoningFormat | None, tools: ToolFormat, forced: str = "") -> Grammar:
    """One grammar of both. ``forced``: "required" or "named", where plain JSON is a call as well."""
    states = dict(tools.states)
    entry = tools.entry
    if forced:
        states.update(_forced(tools, forced))
        entry = "forced"
    if reasoning is None:
        return Grammar(states, entry, markers=tools.markers)
    after = "behind" if reasoning.behind or reasoning.swallows else entry
    ends = dict.fromkeys((reasoning.end, *reasoning.ends), after)
    guarded: frozenset[str] = frozenset()
    # a second end marker is swallowed wherever text is content
    for name, state in tools.states.items():
        if state.sink in (Sink.CONTENT, Sink.GAP) and reasoning.end not in state.on:
            swallowed = dict.fromkeys(reasoning.swallows, "behind")
            states[name] = replace(state, on={**state.on, **swallowed, reasoning.end: name})
    if forced:
        for name in ("forced", "forced_object"):
            if name in states:
                states[name] = replace(states[name], on={**states[name].on, reasoning.end: name})
    if reasoning.ends_with_call:
        first = tools.states[tools.entry]
        guarded = frozenset(tools.ends_reasoning)
        ends.update({marker: first.on[marker] for marker in guarded})
    begin = states[entry]
    if after == "behind":
        framing = dict.fromkeys((*reasoning.behind, *reasoning.swallows), "behind")
        otherwise = begin.otherwise or entry
        states["behind"] = State(Sink.GAP, on={**begin.on, **framing}, starts=begin.starts, otherwise=otherwise)
    inner = "reasoning_begins" if reasoning.label else "reasoning"
    opens = dict.fromkeys((reasoning.start, *reasoning.starts), inner)
    states["begin"] = replace(begin, on={**begin.on, **opens}, otherwise=begin.otherwise or entry)
    if reasoning.reopens:
        for name in [name for name, state in states.items() if reasoning.end in state.on]:
            states[name] = replace(states[name], on={**opens, **states[name].on})
    inside = State(Sink.REASONING, on=ends, literal=reasoning.literal, guarded=guarded)
    states["reasoning"] = inside
    opening = {**ends, **opens, **({reasoning.label: "reasoning"} if reasoning.label else {})}
    states["reasoning_begins"] = replace(inside, on=opening, otherwise="reasoning")
    return Grammar(states, "begin", "reasoning_begins", tools.markers)


def _forced(tools: ToolFormat, forced: str) -> dict[str, State]:
    """Plain JSON at the very beginning of the answer: an array of calls, one call, or its arguments."""
    entry = tools.entry
    markers = tools.states[entry].on
    if forced == "named":
        return {
            "forced": State(Sink.GAP, on=markers, starts={"{": "forced_named", "[": "forced_list"}, otherwise=entry),
            "forced_named": State(Sink.CALL, reader=NamedReader, then=entry, trial=True),
            "forced_list": _list(entry),
        }
    return {
        "forced": State(Sink.GAP, on=markers, starts={"[": "forced_list", "{": "forced_object"}, otherwise=entry),
        "forced_list": _list(entry),
        "forced_object": State(
            Sink.CALL, reader=partial(CallReader, needs_arguments=True), then=entry, trial=True, declared=True
        ),
    }


def _list(entry: str) -> State:
    return State(Sink.CALL, reader=partial(ListReader, needs_arguments=True), then=entry, trial=True, declared=True)


Format: TypeAlias = ReasoningFormat | ToolFormat | JointFormat | ForeignFormat


def names_of(item: Format) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that select a format as reasoning parser, and as tool-call parser."""
    if isinstance(item, ReasoningFormat):
        return item.names, ()
    if isinstance(item, ToolFormat):
        return (), item.names
    return item.reasoning_names, item.tool_names


class Registry:
    """The formats that there are, by vLLM's parser names."""

    def __init__(self) -> None:
        self.reasoning: dict[str, ReasoningFormat | JointFormat | ForeignFormat] = {}
        self.tools: dict[str, ToolFormat | JointFormat | ForeignFormat] = {}

    def add(self, *formats: Format) -> None:
        for item in formats:
            reasoning, tools = names_of(item)
            if not isinstance(item, ToolFormat):
                self.reasoning.update(dict.fromkeys(reasoning, item))
            if not isinstance(item, ReasoningFormat):
                self.tools.update(dict.fromkeys(tools, item))

    def formats(self) -> list[Format]:
        """Every format once."""
        unique: dict[int, Format] = {id(item): item for item in (*self.reasoning.values(), *self.tools.values())}
        return list(unique.values())

    def find_reasoning(self, name: str) -> ReasoningFormat | JointFormat | ForeignFormat:
        """Raises UnknownFormat."""
        if name not in self.reasoning:
            raise UnknownFormat(_unknown("reasoning", name, name in REASONING_PARSERS, self.reasoning))
        return self.reasoning[name]

    def find_tools(self, name: str) -> ToolFormat | JointFormat | ForeignFormat:
        """Raises UnknownFormat."""
        if name not in self.tools:
            raise UnknownFormat(_unknown("tool call", name, name in TOOL_PARSERS, self.tools))
        return self.tools[name]


def _unknown(kind: str, name: str, in_vllm: bool, there: Collection[str]) -> str:
    """Why a name is refused, the names there are, and the ways out."""
    names = f"there are: {', '.join(sorted(there))}"
    if not in_vllm:
        return f"unknown {kind} parser {name!r}; {names}; others: hf (the checkpoint's response_template), vllm:NAME"
    return (
        f"{kind} parser {name!r} is one of vLLM {VERSION}'s that has no format here; {names}; two ways out: hf (where "
        f"the checkpoint has a response_template), or vllm:{name} (the parser of an installed vLLM)"
    )


@cache
def builtin() -> Registry:
    """A registry with every format of this package: each module in ``formats`` lists its own as ``FORMATS``."""
    from proxy.derender.parsing import formats

    registry = Registry()
    for module in sorted(found.name for found in pkgutil.iter_modules(formats.__path__)):
        registry.add(*importlib.import_module(f"{formats.__name__}.{module}").FORMATS)
    return registry
