"""Llama 3.x and 4: calls without a frame, as JSON objects or as a Python list.

Llama 3.x (and 4 with ``llama4_json``): ``{"name": NAME, "parameters": {...}}`` (``arguments`` is read as well), with
an optional ``<|python_tag|>`` in front, several separated by ``;``. A JSON answer looks just the same, so an
object is a call only if it names a declared tool and has its parameters.

Llama 4, and Llama 3.2 and ToolACE with ``pythonic``: ``[NAME(KEY=VALUE, ...), ...]``, between ``<|python_start|>`` and
``<|python_end|>`` now and then; the values are Python literals. The first call has to name a declared tool.

Everything else is content, unchanged. Sources: the checkpoints' chat templates and model cards.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.pythonic import PythonicReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat, Trim

_TAG = "<|python_tag|>"

LLAMA3_JSON = ToolFormat(
    names=("llama3_json", "llama4_json"),
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

_BEGIN, _END = "<|python_start|>", "<|python_end|>"


def _pythonic(names: tuple[str, ...], begins: dict[str, str], ends: dict[str, str]) -> ToolFormat:
    return ToolFormat(
        names=names,
        entry="answer",
        trim=Trim(reasoning=False, content=False),
        states={
            "answer": State(Sink.GAP, on=begins, starts={"[": "calls"}, otherwise="content"),
            "calls": State(Sink.CALL, reader=PythonicReader, then="called", trial=True, declared=True),
            "called": State(Sink.GAP, on=ends, otherwise="content"),
            "content": State(Sink.CONTENT, on=ends),
        },
    )


PYTHONIC = _pythonic(("pythonic",), {}, {})
LLAMA4_PYTHONIC = _pythonic(("llama4_pythonic",), {_BEGIN: "answer"}, {_BEGIN: "answer", _END: "called"})

FORMATS = (LLAMA3_JSON, PYTHONIC, LLAMA4_PYTHONIC)
