"""Kimi (Moonshot): the call sections of K2, and the XTML of K3.

K2 writes ::

    <|tool_calls_section_begin|>
    <|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>{...}<|tool_call_end|>...
    <|tool_calls_section_end|>

N counts over the conversation; the whole header is the call's id, which the next turn's prompt prints. Inside the
section only calls count. The thinking models (K2-Thinking, K2.5, K2.6) begin inside ``<think>``.

K3 writes elements whose tags are made of three tokens ::

    <|open|>think<|sep|>...<|close|>think<|sep|>
    <|open|>response<|sep|>...<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>...<|close|>call<|sep|><|close|>tools<|sep|>
    <|close|>message<|sep|>

of which the prompt opens the first. Source: the models' chat templates. vLLM drops text behind a section of K2;
here it is content.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.derender.parsing.arguments.headed import HeadedReader
from proxy.derender.parsing.arguments.xtml import CLOSE, OPEN, SEP, XtmlReader
from proxy.derender.parsing.model import Reader, Sink, State
from proxy.derender.parsing.registry import JointFormat, ReasoningFormat, ToolFormat, Trim

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_VERBATIM = Trim(reasoning=False, content=False)

KIMI_K2_REASONING = ReasoningFormat(
    names=("kimi_k2",),
    start="<think>",
    end="</think>",
    open_by_default=True,
    switch=("enable_thinking", "thinking"),
    ends_with_call=True,
    drops_tail=True,
    trim=_VERBATIM,
)


def _k2_head(head: str) -> tuple[str, str] | None:
    """``functions.NAME:N`` is the id as well; a header without a number is only a name."""
    written = head.strip()
    if len(written.split()) != 1:
        return None
    name, colon, number = written.removeprefix("functions.").rpartition(":")
    if colon and number.isdigit():
        return (name, written) if name else None
    return written.removeprefix("functions."), ""


def _k2_reader() -> Reader:
    return HeadedReader(_k2_head)


_HEAD_ENDS = {_ARGUMENTS: "call", _CALL: "head", _CALL_END: "section", _SECTION_END: "lead"}
_CLOSING = {_CALL_END: "section", _CALL: "head", _SECTION_END: "lead"}
_INNER = (_CALL, _CALL_END, _SECTION_END)
_OPENERS = {_SECTION: "section", _CALL: "bare"}
_head = State(Sink.HEAD, on=_HEAD_ENDS, literal=True)

KIMI_K2 = ToolFormat(
    names=("kimi_k2",),
    id_shape="kimi",
    entry="lead",
    trim=_VERBATIM,
    ends_reasoning=(_SECTION,),
    states={
        "lead": State(Sink.GAP, on={**_OPENERS, _SECTION_END: "lead"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={**_OPENERS, _SECTION_END: "content"}),
        "section": State(Sink.DROP, on={_CALL: "head", _SECTION_END: "lead"}),
        "head": _head,
        # a call outside of a section
        "bare": replace(_head, trial=True),
        "call": State(Sink.CALL, reader=_k2_reader, then="closing", headed=True, inner=_INNER),
        # what stands between calls is noise, but not what a call goes on with behind its arguments
        "closing": State(Sink.GAP, on=_CLOSING, otherwise="rest"),
        "rest": State(Sink.CONTENT, on=_CLOSING),
    },
)


def _opened(tag: str) -> str:
    name = tag.split()[0] if tag.split() else ""
    return {"think": "reasoning", "response": "content", "tools": "calls", "call": "call"}.get(name, "between")


def _closed(tag: str) -> str:
    return "calls" if tag.strip() == "call" else "between"


_TAGS = {OPEN: "tag", CLOSE: "end_tag"}

KIMI_K3 = JointFormat(
    reasoning_names=("kimi_k3",),
    tool_names=("kimi_k3",),
    id_shape="kimi",
    turn=OPEN,
    primed="tag",
    entry="reasoning",
    states={
        "reasoning": State(Sink.REASONING, on=_TAGS),
        "content": State(Sink.CONTENT, on=_TAGS),
        "between": State(Sink.GAP, on=_TAGS, otherwise="content"),
        "tag": State(Sink.HEAD, on={**_TAGS, SEP: "opened"}, literal=True),
        "end_tag": State(Sink.HEAD, on={**_TAGS, SEP: "closed"}, literal=True),
        "opened": State(Sink.DROP, route=_opened),
        "closed": State(Sink.DROP, route=_closed),
        "calls": State(Sink.DROP, on=_TAGS),
        "call": State(Sink.CALL, reader=XtmlReader, then="calls", headed=True, inner=(OPEN, CLOSE, SEP)),
    },
    # without tools a call is what the model had to say
    without_tools={"call": State(Sink.CONTENT, on=_TAGS)},
)

FORMATS = (KIMI_K2_REASONING, KIMI_K2, KIMI_K3)
