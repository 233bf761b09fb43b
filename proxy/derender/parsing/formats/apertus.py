"""Apertus (Swiss AI): a JSON list of objects whose only key is the tool's name.

``<|tools_prefix|>[{"get_weather": {"city": "Bern"}}, ...]<|tools_suffix|>``, from the checkpoint's template.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.json_keyed import KeyedReader
from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_CALLS, _END = "<|tools_prefix|>", "<|tools_suffix|>"

APERTUS = ToolFormat(
    names=("apertus",),
    states={
        "content": State(Sink.CONTENT, on={_CALLS: "calls", _END: "content"}),
        "calls": State(Sink.CALL, reader=partial(ListReader, item=KeyedReader), then="closing", trial=True),
        "closing": State(Sink.GAP, on={_END: "content", _CALLS: "calls"}, otherwise="content"),
    },
)

FORMATS = (APERTUS,)
