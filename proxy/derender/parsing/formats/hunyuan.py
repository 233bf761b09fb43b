"""Tencent Hunyuan: A13B, and HY 3 and 4.

A13B spells its markers out of ordinary tokens ::

    <think>
    reasoning
    </think>
    <answer>
    answer
    </answer>

and calls with ``<tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>``, or with the list alone.

HY 3 and 4 think between ``<think>`` and ``</think>`` (the prompt opens it) and call with ::

    <tool_calls>
    <tool_call>NAME<tool_sep>
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>
    </tool_calls>

HY 4 without ``<tool_sep>`` and newlines. Checkpoints put a suffix into all of these names, such as
``<think:6124c78e>``: it is read from the vocabulary. Strings are raw, the tool's schema says what is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.arguments.tagged import TaggedReader, Tags
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

A13B_REASONING = ReasoningFormat(
    names=("hunyuan_a13b",),
    start="<think>\n",
    end="</think>",
    open_by_default=False,
    drops_tail=True,
    behind=("\n",),
    swallows=("<answer>", "\n</answer>", "</answer>"),
)

_SPEAKER = "助手："  # the template's word for the assistant, which the model repeats now and then

A13B = ToolFormat(
    names=("hunyuan_a13b",),
    entry="lead",
    states={
        "lead": State(
            Sink.GAP, on={"<tool_calls>": "calls", _SPEAKER: "lead"}, starts={"[": "bare"}, otherwise="content"
        ),
        "content": State(Sink.CONTENT, on={"<tool_calls>": "calls"}),
        "calls": State(Sink.CALL, reader=ListReader, then="called", trial=True),
        "bare": State(
            Sink.CALL, reader=partial(ListReader, needs_arguments=True), then="called", trial=True, declared=True
        ),
        "called": State(Sink.GAP, on={"</tool_calls>": "called", "<tool_calls>": "calls"}, otherwise="rest"),
        "rest": State(Sink.CONTENT, on={"</tool_calls>": "content", "<tool_calls>": "calls"}),  # of a list that broke
    },
)

_suffixed = re.compile(r"<(?:think|tool_calls|tool_call|arg_key|arg_value)(:[^\s>]+)>").fullmatch


def _suffix(tokens: Collection[str]) -> str:
    return next((match[1] for match in map(_suffixed, tokens) if match), "")


def _reasoning(name: str, opens: bool, tokens: Collection[str] = ()) -> ReasoningFormat:
    suffix = _suffix(tokens)
    return ReasoningFormat(
        names=(name,), start=f"<think{suffix}>", end=f"</think{suffix}>", open_by_default=opens, ends_with_call=True
    )


def _calls(name: str, tokens: Collection[str] = ()) -> ToolFormat:
    suffix = _suffix(tokens)

    def tag(word: str) -> str:
        return f"<{word}{suffix}>"

    section, section_end, call = tag("tool_calls"), tag("/tool_calls"), tag("tool_call")
    tags = Tags(
        tag("arg_key"), tag("/arg_key"), tag("arg_value"), tag("/arg_value"), tag("/tool_call"), tag("tool_sep")
    )
    inner = (tags.key, tags.key_end, tags.value, tags.value_end, tags.end, tags.separator, call, section_end)
    return ToolFormat(
        names=(name,),
        entry="lead",
        ends_reasoning=(section,),
        states={
            "lead": State(Sink.GAP, on={section: "section"}, otherwise="content", drop_if_content=True),
            "content": State(Sink.CONTENT, on={section: "section"}),
            "section": State(Sink.DROP, on={call: "call", section_end: "lead"}, trial=True),
            "call": State(Sink.CALL, reader=partial(TaggedReader, tags), then="called", inner=inner),
            "called": State(Sink.DROP, on={call: "call", section_end: "lead"}),
        },
    )


HY_V3_REASONING = replace(_reasoning("hy_v3", False), fit=partial(_reasoning, "hy_v3", False))
HY_V4_REASONING = replace(_reasoning("hy_v4", True), fit=partial(_reasoning, "hy_v4", True))
HY_V3 = replace(_calls("hy_v3"), fit=partial(_calls, "hy_v3"))
HY_V4 = replace(_calls("hy_v4"), fit=partial(_calls, "hy_v4"))

FORMATS = (A13B_REASONING, A13B, HY_V3_REASONING, HY_V4_REASONING, HY_V3, HY_V4)
