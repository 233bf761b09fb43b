"""Llama 3.x: a call is the whole answer, one JSON object without any frame.

``{"name": NAME, "parameters": {...}}`` (``arguments`` is read as well), with an optional ``<|python_tag|>`` in
front, several separated by ``;``. A JSON answer looks just the same, so an object is a call only if it
names a declared tool and has its parameters; everything else is content, unchanged.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat, Trim

_TAG = "<|python_tag|>"

LLAMA3_JSON = ToolFormat(
    names=("llama3_json",),
    entry="answer",
    trim=Trim(reasoning=False, content=False),
    states={
        "answer": State(Sink.GAP, on={_TAG: "tagged"}, starts={"{": "call"}, otherwise="content"),
        "tagged": State(Sink.GAP, on={_TAG: "tagged"}, starts={"{": "call"}, otherwise="content"),
        "call": State(
            Sink.CALL, reader=partial(CallReader, needs_arguments=True), then="next", trial=True, declared=True
        ),
        "next": State(Sink.GAP, on={";": "next", _TAG: "tagged"}, starts={"{": "call"}, otherwise="content"),
        "content": State(Sink.CONTENT, on={_TAG: "tagged"}),
    },
)

FORMATS = (LLAMA3_JSON,)
