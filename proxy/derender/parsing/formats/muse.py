"""Muse Spark and Muse Glimmer: messages with a recipient, and calls in XML inside those to a tool.

A message is ``<|start|>assistant to=RECIPIENT<|message|>BODY`` up to ``<|eom|>`` (more follows) or ``<|eot|>``; the
first lacks ``<|start|>assistant``, which stands in the prompt. What is said to ``self`` is reasoning, to ``user`` and
``commentary`` content, to ``developer`` nothing; without a recipient Spark reasons and Glimmer answers. To any other
recipient ::

    <atem:function_calls>
    <atem:invoke name="NAME">
    <atem:parameter name="KEY">VALUE</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

Calls count only there: one that is quoted in reasoning or in an answer is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial

from proxy.derender.parsing.arguments.invoke import InvokeReader, InvokeTags
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import JointFormat

_RECIPIENT = re.compile(r"\bto=([A-Za-z0-9_.\-]+)")
_ENDS = dict.fromkeys(("<|eom|>", "<|eot|>", "<|start|>"), "header")
_HEADER = {**_ENDS, "<|message|>": "message"}
_TAGS = InvokeTags(
    "<atem:invoke name=", "</atem:invoke>", "<atem:parameter name=", "</atem:parameter>", over=tuple(_ENDS)
)
_CONTENT = State(Sink.CONTENT, on=_ENDS)


def _router(reasoning: Collection[str], content: Collection[str], dropped: Collection[str]) -> Callable[[str], str]:
    def route(head: str) -> str:
        match = _RECIPIENT.search(head)
        recipient = match[1] if match else ""
        if recipient in reasoning:
            return "reasoning"
        if recipient in content:
            return "content"
        return "other" if recipient in dropped else "calls"

    return route


def _muse(names: tuple[str, ...], route: Callable[[str], str]) -> JointFormat:
    return JointFormat(
        reasoning_names=names,
        tool_names=names,
        entry="opening",
        turn="<|start|>",
        primed="opening",
        states={
            "opening": State(Sink.HEAD, on=_HEADER, literal=True, otherwise="content"),
            "header": State(Sink.HEAD, on=_HEADER, literal=True),
            "message": State(Sink.DROP, route=route),
            "reasoning": State(Sink.REASONING, on=_ENDS),
            "content": _CONTENT,
            "other": State(Sink.DROP, on=_ENDS),
            "calls": State(Sink.DROP, on={**_ENDS, _TAGS.call: "call"}),
            "call": State(Sink.CALL, reader=partial(InvokeReader, _TAGS), then="calls", inner=_TAGS.inner),
        },
        without_tools={"calls": _CONTENT},
        markers=tuple(_ENDS),
    )


MUSE = _muse(("muse", "musespark1x"), _router(("", "self"), ("user", "commentary"), ("developer",)))
MUSE_GLIMMER = _muse(("muse_glimmer",), _router(("self",), ("", "user"), ()))

FORMATS = (MUSE, MUSE_GLIMMER)
