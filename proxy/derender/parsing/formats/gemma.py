"""Gemma 4: reasoning in a channel, and calls in a notation of its own.

::

    <|channel>thought
    ...<channel|><|tool_call>call:NAME{key:<|"|>text<|"|>,n:42,list:[1,2]}<tool_call|>

Keys are bare, strings stand raw between ``<|"|>``, other values are literals. The model opens the channel itself, also
further on; where thinking is off the prompt holds an empty one. Source: the model's chat template. vLLM reads every
value outside of quotes by the tool's schema and leaves nested ones strings; here nested numbers are numbers.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.gemma import QUOTE, GemmaReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat, Trim

_CALL, _CALL_END = "<|tool_call>", "<tool_call|>"

GEMMA4_REASONING = ReasoningFormat(
    names=("gemma4",),
    start="<|channel>",
    end="<channel|>",
    label="thought\n",
    open_by_default=False,
    ends_with_call=True,
    reopens=True,
    drops_tail=True,
)

GEMMA4 = ToolFormat(
    names=("gemma4",),
    entry="lead",
    ends_reasoning=(_CALL,),
    trim=Trim(content=False),
    states={
        "lead": State(Sink.GAP, on={_CALL: "call", _CALL_END: "lead"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={_CALL: "call", _CALL_END: "content"}),
        "call": State(Sink.CALL, reader=GemmaReader, then="closing", trial=True, inner=(QUOTE, _CALL_END)),
        "closing": State(Sink.GAP, on={_CALL_END: "lead", _CALL: "call"}, otherwise="content"),
    },
)

FORMATS = (GEMMA4_REASONING, GEMMA4)
