"""MiniMax M2 and M3.

M2 thinks first (the prompt opens ``<think>``) and calls with ::

    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </minimax:tool_call>

M3 thinks between ``<mm:think>`` and ``</mm:think>`` if at all, and puts ``]<]minimax[>[`` in front of every tag ::

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="NAME">]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

with elements inside elements for objects and lists. Strings are raw, the tool's schema says what is none. vLLM drops
text behind the calls of M3, sends the arguments of a call at once, and makes a list of a parameter that comes
twice; here text is content, strings stream, and the first value counts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from proxy.derender.parsing.arguments.elements import ElementReader
from proxy.derender.parsing.arguments.invoke import InvokeReader, InvokeTags
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat, Trim

MINIMAX_M2_REASONING = ReasoningFormat(
    names=("minimax_m2",), start="<think>", end="</think>", open_by_default=True, ends_with_call=True, drops_tail=True
)

# the reasoning is content, with the marker that the prompt holds in front
MINIMAX_M2_APPEND_THINK = replace(
    MINIMAX_M2_REASONING, names=("minimax_m2_append_think",), drops_tail=False, inline=True, trim=Trim(reasoning=False)
)

_CALLS, _CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
_TAGS = InvokeTags("<invoke name=", "</invoke>", "<parameter name=", "</parameter>", over=(_CALLS_END,))
_READ = partial(InvokeReader, _TAGS)
_INNER = (*_TAGS.inner, _CALLS_END)
_OPENERS = {_CALLS: "section", _TAGS.call: "bare"}

MINIMAX_M2 = ToolFormat(
    names=("minimax_m2",),
    entry="lead",
    ends_reasoning=(_CALLS,),
    states={
        "lead": State(Sink.GAP, on={**_OPENERS, _CALLS_END: "lead"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={**_OPENERS, _CALLS_END: "content"}),
        "section": State(Sink.DROP, on={_TAGS.call: "call", _CALLS_END: "lead"}, trial=True),
        "call": State(Sink.CALL, reader=_READ, then="called", inner=_INNER),
        # a call outside of a section
        "bare": State(Sink.CALL, reader=_READ, then="called", inner=_INNER, trial=True, declared=True),
        "called": State(Sink.GAP, on={_TAGS.call: "call", _CALLS: "section", _CALLS_END: "lead"}, otherwise="content"),
    },
)

MINIMAX_M3_REASONING = ReasoningFormat(
    names=("minimax_m3",), start="<mm:think>", end="</mm:think>", open_by_default=False, opens=("thinking",)
)

_MARK = "]<]minimax[>["


def _outer(tag: str) -> str:
    """Where a tag outside of a call leads."""
    body = tag.strip()
    if body.startswith("<invoke "):
        return "call"
    return "lead" if body.startswith("</tool_call") else "section"


MINIMAX_M3 = ToolFormat(
    names=("minimax_m3",),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on={_MARK: "tag"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={_MARK: "tag"}),
        "tag": State(Sink.HEAD, on={">": "tagged"}, trial=True),
        "tagged": State(Sink.DROP, route=_outer),
        "section": State(Sink.DROP, on={_MARK: "inner_tag"}),
        "inner_tag": State(Sink.HEAD, on={">": "tagged", _MARK: "inner_tag"}),
        "call": State(Sink.CALL, reader=partial(ElementReader, _MARK), then="section", headed=True, inner=(_MARK,)),
    },
)

FORMATS = (MINIMAX_M2_REASONING, MINIMAX_M2_APPEND_THINK, MINIMAX_M2, MINIMAX_M3_REASONING, MINIMAX_M3)
