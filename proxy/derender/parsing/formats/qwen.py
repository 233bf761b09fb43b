"""Qwen3 and relatives: ``<think>`` reasoning, Hermes JSON calls, and the XML calls of Qwen3-Coder.

Hermes (Qwen2.5, Qwen3, NousResearch): the templates ask for ::

    <tool_call>
    {"name": <function-name>, "arguments": <args-json-object>}
    </tool_call>

Qwen3-Coder, Qwen3.5 and later ask for ::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

The coder models sometimes forget ``<tool_call>``, so ``<function=`` with the name of a declared tool
opens a call as well. vLLM's streamed answer keeps the newlines around reasoning and in front of a Hermes
call; between Hermes calls they are dropped, and in the XML form whitespace is dropped in front of a first
call as long as nothing else was content.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.xml import XmlReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

QWEN3 = ReasoningFormat(
    names=("qwen3",),
    start="<think>",
    end="</think>",
    open_by_default=True,
    switch=("enable_thinking",),
    ends_with_call=True,
)

HERMES = ToolFormat(
    names=("hermes", "qwen3_json"),
    ends_reasoning=("<tool_call>",),
    states={
        "content": State(Sink.CONTENT, on={"<tool_call>": "call"}),
        "call": State(Sink.CALL, reader=CallReader, then="closing", trial=True),
        # a brace too many is noise, a second object in the same tags is a second call
        "closing": State(
            Sink.GAP,
            on={"</tool_call>": "between", "<tool_call>": "call", "}": "closing"},
            starts={"{": "call"},
            otherwise="content",
        ),
        "between": State(Sink.GAP, on={"<tool_call>": "call"}, otherwise="content"),
    },
)

_OPENERS = {"<tool_call>": "call", "<function=": "bare"}

QWEN3_XML = ToolFormat(
    names=("qwen3_coder", "qwen3_xml"),
    entry="lead",
    ends_reasoning=("<tool_call>",),
    states={
        "lead": State(Sink.GAP, on=_OPENERS, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on=_OPENERS),
        "call": State(Sink.CALL, reader=XmlReader, then="closing", trial=True),
        "bare": State(Sink.CALL, reader=partial(XmlReader, opened=True), then="closing", trial=True, declared=True),
        "closing": State(Sink.GAP, on={**_OPENERS, "</tool_call>": "lead"}, otherwise="content"),
    },
)

FORMATS = (QWEN3, HERMES, QWEN3_XML)
