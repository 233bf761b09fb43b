"""PLaMo 3 (Preferred Networks): named parts between markers that the tokenizer has not as single tokens.

Reasoning stands between ``<|plamo:begin_think:plamo|>`` and ``<|plamo:end_think:plamo|>``. Calls (each name below in
the same brackets) ::

    begin_tool_requests
      begin_tool_request begin_tool_name NAME end_tool_name
        begin_tool_arguments<|plamo:constrain|>json<|plamo:msg|> {...} end_tool_arguments
      end_tool_request
    end_tool_requests

The text between the parts is noise.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.headed import HeadedReader, plain_name
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat


def _marker(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


_REQUESTS, _REQUESTS_END = _marker("begin_tool_requests"), _marker("end_tool_requests")
_REQUEST, _REQUEST_END = _marker("begin_tool_request"), _marker("end_tool_request")
_NAME, _NAME_END = _marker("begin_tool_name"), _marker("end_tool_name")
_ARGUMENTS = _marker("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>"

_CALLED = {
    _marker("end_tool_arguments"): "called", _REQUEST_END: "called", _REQUEST: "requests", _NAME: "name",
    _REQUESTS_END: "lead",
}  # fmt: skip


def _name(head: str) -> tuple[str, str] | None:
    return plain_name(head.partition(_NAME_END)[0])


PLAMO3_REASONING = ReasoningFormat(
    names=("plamo3",),
    start=_marker("begin_think"),
    end=_marker("end_think"),
    open_by_default=True,
    switch=("enable_thinking",),
    ends_with_call=True,
)

PLAMO3 = ToolFormat(
    names=("plamo3",),
    ends_reasoning=(_REQUESTS,),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on={_REQUESTS: "requests"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={_REQUESTS: "requests"}),
        "requests": State(Sink.DROP, on={_NAME: "name", _REQUEST: "requests", _REQUESTS_END: "lead"}, trial=True),
        "name": State(
            Sink.HEAD, on={_ARGUMENTS: "arguments", _REQUEST_END: "requests", _REQUESTS_END: "lead"}, literal=True
        ),
        "arguments": State(Sink.CALL, reader=partial(HeadedReader, _name), then="called", headed=True),
        "called": State(Sink.GAP, on=_CALLED, otherwise="rest"),
        "rest": State(Sink.CONTENT, on=_CALLED),
    },
)

FORMATS = (PLAMO3_REASONING, PLAMO3)
