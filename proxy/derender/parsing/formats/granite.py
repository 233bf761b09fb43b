"""IBM Granite: four ways to call, two to think.

* 3.0 and 3.1: ``<|tool_call|>`` or ``<tool_call>``, then a list, ``[{"name": ..., "arguments": {...}}]``.
* 4: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, repeated.
* 20b-functioncalling: ``<function_call> {"name": ..., "arguments": {...}}``, repeated, without an end.
* 3.2 and later think between two sentences, ``Here is my thought process:`` and ``Here is my response:``; 4.2
  between ``<think>`` and ``</think>``, with a newline on each side of the latter.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.formats.qwen import QWEN3
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

GRANITE_REASONING = ReasoningFormat(
    names=("granite",),
    start="Here is my thought process:",
    end="Here is my response:",
    starts=("Here's my thought process:",),
    ends=("Here's my response:",),
    open_by_default=False,
)

GRANITE_THINKING = replace(QWEN3, names=("granite_thinking_parser",), drops_tail=True, behind=("\n",))

_OPENERS = {"<|tool_call|>": "calls", "<tool_call>": "calls"}

GRANITE = ToolFormat(
    names=("granite",),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on=_OPENERS, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on=_OPENERS),
        "calls": State(Sink.CALL, reader=ListReader, then="lead", trial=True),
    },
)

GRANITE4 = ToolFormat(
    names=("granite4",),
    states={
        "content": State(Sink.CONTENT, on={"<tool_call>": "call"}),
        "call": State(Sink.CALL, reader=CallReader, then="closing", trial=True),
        "closing": State(Sink.GAP, on={"</tool_call>": "content", "<tool_call>": "call"}, otherwise="content"),
    },
)

GRANITE_20B_FC = ToolFormat(
    names=("granite-20b-fc",),
    states={
        "content": State(Sink.CONTENT, on={"<function_call>": "call"}),
        "call": State(Sink.CALL, reader=CallReader, then="called", trial=True),
        "called": State(Sink.GAP, on={"<function_call>": "call"}, otherwise="content"),
    },
)

FORMATS = (GRANITE_REASONING, GRANITE_THINKING, GRANITE, GRANITE4, GRANITE_20B_FC)
