"""Jamba (AI21): a JSON list of calls between ``<tool_calls>`` and ``</tool_calls>``.

The template asks for one object ``{"name": ..., "arguments": {...}}`` per call, and a newline on each side of the
list.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_CALLS, _END = "<tool_calls>", "</tool_calls>"

JAMBA = ToolFormat(
    names=("jamba",),
    states={
        "content": State(Sink.CONTENT, on={_CALLS: "calls"}),
        "calls": State(Sink.CALL, reader=ListReader, then="closing", trial=True),
        "closing": State(Sink.GAP, on={_END: "content", _CALLS: "calls"}, otherwise="rest"),
        "rest": State(Sink.CONTENT, on={_END: "content", _CALLS: "calls"}),  # of a list that broke
    },
)

FORMATS = (JAMBA,)
