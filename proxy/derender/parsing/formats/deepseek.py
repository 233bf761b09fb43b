"""DeepSeek R1 reasoning and the tool calls of V3 and V3.1.

V3-0324 and R1 write ::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>
    <｜tool▁call▁begin｜>...<｜tool▁calls▁end｜>

V3.1 writes ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``. Both share their markers and are
told apart by what stands before the separator.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.headed import FencedReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat, Trim

DEEPSEEK_R1 = ReasoningFormat(
    names=("deepseek_r1",),
    start="<think>",
    end="</think>",
    open_by_default=True,
    trim=Trim(reasoning=False),
)

_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
_OPENERS = {_CALLS: "section", _CALL: "head"}

DEEPSEEK_V3 = ToolFormat(
    names=("deepseek_v3",),
    states={
        "content": State(Sink.CONTENT, on={**_OPENERS, _CALLS_END: "content"}),
        "section": State(Sink.DROP, on={_CALL: "head", _CALLS_END: "content"}, trial=True),
        "head": State(Sink.HEAD, on={_SEP: "call", _CALL_END: "content", _CALLS_END: "content"}, trial=True),
        "call": State(Sink.CALL, reader=FencedReader, then="closing", headed=True),
        "closing": State(Sink.DROP, on={_CALL_END: "section", _CALL: "head", _CALLS_END: "content"}),
    },
)

FORMATS = (DEEPSEEK_R1, DEEPSEEK_V3)
