"""dots, MiniCPM 5, MiMo: calls in the XML style of named elements.

dots (Rednote) ::

    <dots_function_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </dots_function_call>

MiniCPM 5 (OpenBMB) calls with ``<function name="NAME"><param name="KEY">VALUE</param></function>`` and nothing around
it; MiMo (Xiaomi) with ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``, and thinks
as Qwen3 does. Values are raw, whitespace included; the tool's schema says what is no string.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from proxy.derender.parsing.arguments.invoke import InvokeReader, InvokeTags
from proxy.derender.parsing.formats.qwen import QWEN3
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ToolFormat


def _in_sections(name: str, section: str, section_end: str, tags: InvokeTags) -> ToolFormat:
    """Calls inside of a section; a call without one counts where it names a declared tool."""
    read = partial(InvokeReader, tags)
    inner = (*tags.inner, section_end)
    openers = {section: "section", tags.call: "bare"}
    return ToolFormat(
        names=(name,),
        entry="lead",
        ends_reasoning=(section,),
        states={
            "lead": State(Sink.GAP, on={**openers, section_end: "lead"}, otherwise="content", drop_if_content=True),
            "content": State(Sink.CONTENT, on={**openers, section_end: "content"}),
            "section": State(Sink.DROP, on={tags.call: "call", section_end: "lead"}, trial=True),
            "call": State(Sink.CALL, reader=read, then="called", inner=inner),
            "bare": State(Sink.CALL, reader=read, then="called", inner=inner, trial=True, declared=True),
            "called": State(
                Sink.GAP, on={tags.call: "call", section: "section", section_end: "lead"}, otherwise="content"
            ),
        },
    )


_DOTS_END, _MIMO_END = "</dots_function_call>", "</tool_call>"

DOTS = _in_sections(
    "dots",
    "<dots_function_call>",
    _DOTS_END,
    InvokeTags("<invoke name=", "</invoke>", "<parameter name=", "</parameter>", over=(_DOTS_END,)),
)

MIMO_REASONING = replace(QWEN3, names=("mimo",))
MIMO = _in_sections(
    "mimo",
    "<tool_call>",
    _MIMO_END,
    InvokeTags("<function=", "</function>", "<parameter=", "</parameter>", over=(_MIMO_END,)),
)

_PARAMS = InvokeTags("<function name=", "</function>", "<param name=", "</param>")

MINICPM5 = ToolFormat(
    names=("minicpm5",),
    states={
        "content": State(Sink.CONTENT, on={_PARAMS.call: "call"}),
        "call": State(Sink.CALL, reader=partial(InvokeReader, _PARAMS), then="called", inner=_PARAMS.inner, trial=True),
        "called": State(Sink.GAP, on={_PARAMS.call: "call"}, otherwise="content"),
    },
)

FORMATS = (DOTS, MIMO_REASONING, MIMO, MINICPM5)
