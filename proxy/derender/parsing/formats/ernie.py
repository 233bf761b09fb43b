"""ERNIE 4.5 (Baidu): thinks up to ``</think>``, frames its answer, calls as Hermes does.

::

    reasoning
    </think>

    <response>
    answer
    </response>

or, in place of the response, ``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``, repeated. The newlines
behind ``</think>``, ``<response>`` and ``</response>`` and around calls are framing.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

ERNIE45_REASONING = ReasoningFormat(
    names=("ernie45",),
    start="<think>",
    end="</think>",
    open_by_default=True,
    behind=("\n",),
    swallows=("<response>", "</response>"),
)

ERNIE45 = ToolFormat(
    names=("ernie45",),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on={"<tool_call>": "call"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={"<tool_call>": "call"}),
        "call": State(Sink.CALL, reader=CallReader, then="closing", trial=True),
        "closing": State(Sink.GAP, on={"</tool_call>": "between", "<tool_call>": "call"}, otherwise="content"),
        "between": State(Sink.GAP, on={"<tool_call>": "call"}, otherwise="content"),
    },
)

FORMATS = (ERNIE45_REASONING, ERNIE45)
