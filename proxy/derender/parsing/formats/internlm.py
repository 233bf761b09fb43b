"""InternLM 2 / 2.5: one JSON object behind two markers.

Its template asks for ``<|action_start|><|plugin|>\\n{"name": ..., "parameters": {...}}<|action_end|>\\n``. The
same frame with ``<|interpreter|>`` holds code for a notebook and is no call: it stays text.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_ACTION, _PLUGIN, _END = "<|action_start|>", "<|plugin|>", "<|action_end|>"

INTERNLM = ToolFormat(
    names=("internlm",),
    states={
        "content": State(Sink.CONTENT, on={_ACTION: "action"}),
        "action": State(Sink.GAP, on={_PLUGIN: "call"}, otherwise="content", trial=True),
        "call": State(Sink.CALL, reader=CallReader, then="closing"),
        "closing": State(Sink.GAP, on={_END: "between", _ACTION: "action"}, otherwise="content"),
        "between": State(Sink.GAP, on={_ACTION: "action"}, otherwise="content"),
    },
)

FORMATS = (INTERNLM,)
