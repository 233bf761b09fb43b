"""GigaChat 3 (Sber): one call per answer, a JSON object behind a marker or in a message of its own.

``<|function_call|>{"name": ..., "arguments": {...}}`` (GigaChat 3.1), or
``<|message_sep|>\\n\\nfunction call<|role_sep|>\\n{"name": ...}`` (3.0), where what stands in front of the separator
is content. A message of any other role is none of the client's business.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat

_CALL, _MESSAGE, _ROLE = "<|function_call|>", "<|message_sep|>", "<|role_sep|>"


def _route(head: str) -> str:
    return "call" if head.strip() == "function call" else "other"


GIGACHAT3 = ToolFormat(
    names=("gigachat3",),
    states={
        "content": State(Sink.CONTENT, on={_CALL: "tagged", _MESSAGE: "message"}),
        "tagged": State(Sink.CALL, reader=CallReader, then="called", trial=True),
        "message": State(Sink.HEAD, on={_ROLE: "body", _CALL: "tagged", _MESSAGE: "message"}),
        "body": State(Sink.DROP, route=_route),
        "call": State(Sink.CALL, reader=CallReader, then="called"),
        "called": State(Sink.GAP, on={_CALL: "tagged", _MESSAGE: "message"}, otherwise="content"),
        "other": State(Sink.DROP, on={_CALL: "tagged", _MESSAGE: "message"}),
    },
)

FORMATS = (GIGACHAT3,)
