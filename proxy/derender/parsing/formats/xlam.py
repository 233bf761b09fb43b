"""xLAM (Salesforce): a JSON list of calls, bare or in one of three frames.

``[{"name": ..., "arguments": {...}}, ...]`` is the whole answer, or stands in a fence (```` ```json ````), behind
``[TOOL_CALLS]``, or between ``<tool_call>`` and ``</tool_call>``; the second generation writes it behind its
reasoning. A JSON answer looks just the same, so a list counts as calls only if it names declared tools with
arguments. Anything else is content, unchanged.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_FENCE = "```"
_OPENERS = {_FENCE: "calls", "[TOOL_CALLS]": "calls", "<tool_call>": "calls"}
_CLOSERS = {_FENCE: "content", "</tool_call>": "content"}

XLAM = ToolFormat(
    names=("xlam",),
    entry="answer",
    states={
        "answer": State(Sink.GAP, on=_OPENERS, starts={"[": "calls"}, otherwise="content"),
        "content": State(Sink.CONTENT, on=_OPENERS),
        "calls": State(
            Sink.CALL,
            reader=partial(ListReader, needs_arguments=True, label="json"),
            then="closing",
            trial=True,
            declared=True,
        ),
        "closing": State(Sink.GAP, on=_CLOSERS, otherwise="content"),
    },
)

FORMATS = (XLAM,)
