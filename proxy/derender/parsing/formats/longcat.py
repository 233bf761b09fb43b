"""LongCat-Flash (Meituan): Hermes calls under markers of their own.

Its template asks for ::

    <longcat_tool_call>
    {"name": <function-name>, "arguments": <args-dict>}
    </longcat_tool_call>

once per call. Whitespace between two calls is framing.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_CALL, _END = "<longcat_tool_call>", "</longcat_tool_call>"

LONGCAT = ToolFormat(
    names=("longcat",),
    states={
        "content": State(Sink.CONTENT, on={_CALL: "call"}),
        "call": State(Sink.CALL, reader=CallReader, then="closing", trial=True),
        "closing": State(Sink.GAP, on={_END: "between", _CALL: "call"}, otherwise="content"),
        "between": State(Sink.GAP, on={_CALL: "call"}, otherwise="content"),
    },
)

FORMATS = (LONGCAT,)
