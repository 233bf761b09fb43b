"""gpt-oss: the Harmony format, messages with a header that says who speaks to whom on which channel.

A message is ``<|start|>ROLE<|channel|>CHANNEL ...<|message|>BODY`` up to ``<|end|>``, ``<|call|>``,
``<|return|>`` or the end; the first header lacks ``<|start|>assistant``, which stands in the prompt. A recipient
(``to=functions.NAME``) stands in the role part or behind the channel and makes the message a call on any
channel; its body is the arguments, with or without ``<|constrain|>json`` in front. ``analysis`` is reasoning,
``final`` and ``commentary`` without recipient are content, other recipients are neither. Source: OpenAI's
Harmony guide. Every marker is one token, so marker text inside a body is ordinary text.
"""

from __future__ import annotations

import re
from functools import partial

from proxy.derender.parsing.arguments.headed import HeadedReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import JointFormat

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]+)")
_BARE_CHANNEL = re.compile(r"\s*(analysis|commentary|final)\b")
_FUNCTIONS = "functions."


def _name(head: str) -> tuple[str, str] | None:
    match = _RECIPIENT.search(head)
    name = match[1].removeprefix(_FUNCTIONS) if match else ""
    return (name, "") if name else None


def _route(head: str) -> str:
    recipient = _RECIPIENT.search(head)
    if recipient is not None:
        return "call" if recipient[1].startswith(_FUNCTIONS) and _name(head) else "other"
    channel = _CHANNEL.search(head) or _BARE_CHANNEL.match(head)
    return "reasoning" if channel is not None and channel[1] == "analysis" else "content"


_ENDS = dict.fromkeys(("<|end|>", "<|call|>", "<|return|>", "<|start|>"), "header")
_HEADER = {**_ENDS, "<|message|>": "message"}

HARMONY = JointFormat(
    reasoning_names=("openai_gptoss",),
    tool_names=("openai",),
    entry="opening",
    turn="<|start|>",
    primed="opening",
    states={
        "opening": State(Sink.HEAD, on=_HEADER, literal=True, otherwise="content"),
        "header": State(Sink.HEAD, on=_HEADER, literal=True),
        "message": State(Sink.DROP, route=_route),
        "reasoning": State(Sink.REASONING, on=_ENDS),
        "content": State(Sink.CONTENT, on=_ENDS),
        "other": State(Sink.DROP, on=_ENDS),
        "call": State(Sink.CALL, reader=partial(HeadedReader, _name, marker_data=False), then="called", headed=True),
        "called": State(Sink.GAP, on=_ENDS, otherwise="content"),
    },
    # without tools a call is what the model had to say
    without_tools={"call": State(Sink.CONTENT, on=_ENDS)},
    markers=("<|constrain|>", "<|channel|>"),
)

FORMATS = (HARMONY,)
