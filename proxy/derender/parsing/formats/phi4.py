"""Phi-4-mini (Microsoft): a JSON list of calls behind a word or between two tokens.

The model writes ``functools[{"name": ..., "arguments": {...}}, ...]`` where the prompt asks for that (vLLM's
template does), and ``<|tool_call|>[...]<|/tool_call|>`` with the template of its own checkpoint. The word alone
is no call: ``functools.reduce`` in an answer is text. vLLM streams nothing at all with this parser, so its
answers that are not streamed are the measure.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_OPENERS = {"functools": "call", "<|tool_call|>": "call"}

PHI4_MINI = ToolFormat(
    names=("phi4_mini_json",),
    states={
        "content": State(Sink.CONTENT, on=_OPENERS),
        "call": State(Sink.CALL, reader=ListReader, then="closing", trial=True),
        "closing": State(Sink.GAP, on={"<|/tool_call|>": "content", **_OPENERS}, otherwise="content"),
    },
)

FORMATS = (PHI4_MINI,)
