"""FunctionGemma (Google): Gemma 4's notation with older markers.

``<start_function_call>call:NAME{key:<escape>text<escape>,n:42}<end_function_call>``, repeated. Strings stand raw
between two ``<escape>``, other values bare. vLLM knows values in ``<escape>`` only, and reads as JSON what can be
read so.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.gemma import GemmaReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_CALL, _END, _ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"

FUNCTIONGEMMA = ToolFormat(
    names=("functiongemma",),
    states={
        "content": State(Sink.CONTENT, on={_CALL: "call", _END: "content"}),
        "call": State(
            Sink.CALL, reader=partial(GemmaReader, _ESCAPE), then="closing", trial=True, inner=(_ESCAPE, _END)
        ),
        "closing": State(Sink.GAP, on={_END: "content", _CALL: "call"}, otherwise="content"),
    },
)

FORMATS = (FUNCTIONGEMMA,)
