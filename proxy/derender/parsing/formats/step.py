"""StepFun: Step 3's steptml, and the later models, which write Qwen's XML.

Step 3 thinks up to ``</think>`` and calls with ::

    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">
    <steptml:parameter name="KEY">VALUE</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>

Whitespace around a value is framing. Step 3.5 and 5 call as Qwen3-Coder does; the prompt of both opens ``<think>``.
vLLM sends the arguments of Step 3 at once; here they stream.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from proxy.derender.parsing.arguments.invoke import InvokeReader, InvokeTags
from proxy.derender.parsing.formats.deepseek import DEEPSEEK_R1
from proxy.derender.parsing.formats.qwen import QWEN3, QWEN3_XML
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

STEP3_REASONING = ReasoningFormat(names=("step3",), start="<think>", end="</think>", open_by_default=True)

_CALLS, _CALLS_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_call_end｜>"
_TAGS = InvokeTags(
    "<steptml:invoke name=",
    "</steptml:invoke>",
    "<steptml:parameter name=",
    "</steptml:parameter>",
    over=(_CALL_END, _CALLS_END),
)

STEP3 = ToolFormat(
    names=("step3",),
    states={
        "content": State(Sink.CONTENT, on={_CALLS: "section", _CALLS_END: "content"}),
        "section": State(Sink.DROP, on={_TAGS.call: "call", _CALLS_END: "content"}, trial=True, literal=True),
        "call": State(
            Sink.CALL, reader=partial(InvokeReader, _TAGS, strip=True), then="called", inner=(*_TAGS.inner, *_TAGS.over)
        ),
        "called": State(Sink.DROP, on={_TAGS.call: "call", _CALLS_END: "content"}),
    },
    markers=(_CALL, _CALL_END, "<｜tool_sep｜>"),
)

STEP3P5_REASONING = replace(QWEN3, names=("step3p5",), switch=(), drops_tail=True)
STEP3P5 = replace(QWEN3_XML, names=("step3p5",))

STEP5_REASONING = replace(DEEPSEEK_R1, names=("step5",))
# whitespace in front of a call is content
STEP5 = replace(QWEN3_XML, names=("step5",), entry="content")

FORMATS = (STEP3_REASONING, STEP3, STEP3P5_REASONING, STEP3P5, STEP5_REASONING, STEP5)
