"""LFM2 (Liquid AI): Python calls in a list between two tokens.

``<|tool_call_start|>[get_weather(city="Paris"), ...]<|tool_call_end|>``, from the checkpoints' templates. vLLM also
drops text up to a second end token; here it is content, the token is not.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.pythonic import PythonicReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_CALLS, _END = "<|tool_call_start|>", "<|tool_call_end|>"

LFM2 = ToolFormat(
    names=("lfm2",),
    states={
        "content": State(Sink.CONTENT, on={_CALLS: "calls", _END: "content"}),
        "calls": State(Sink.CALL, reader=PythonicReader, then="closing", trial=True),
        "closing": State(Sink.GAP, on={_END: "content", _CALLS: "calls"}, otherwise="content"),
    },
)

FORMATS = (LFM2,)
