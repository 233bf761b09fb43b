"""DeepSeek: ``<think>`` reasoning, the tool calls of V3 and V3.1, and the DSML of V3.2, V4 and V4.1.

V3-0324 and R1 write ::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>
    <｜tool▁call▁begin｜>...<｜tool▁calls▁end｜>

V3.1 writes ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``. Both share their markers and are
told apart by what stands before the separator. V3.2 and V4 write, behind a blank line ::

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 calls the outer element ``tool_calls``; V4.1 calls it ``calls`` and writes a space behind every ``｜DSML｜``, which
is one token, the rest being ordinary text. An ``invoke`` without the outer element is a call if its tool is
declared. vLLM drops whitespace in front of a first DSML call as long as nothing else was content, and that at
the end of V4's reasoning. Sources: the checkpoints' chat templates, and ``encoding_dsv32.py`` and its successors.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.dsml import DsmlReader
from proxy.derender.parsing.arguments.headed import FencedReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat, Trim


def _reasoning(
    *names: str,
    open_by_default: bool,
    switch: tuple[str, ...] = (),
    opens: tuple[str, ...] = (),
    ends_with_call: bool = False,
    drops_tail: bool = False,
) -> ReasoningFormat:
    return ReasoningFormat(
        names=names,
        start="<think>",
        end="</think>",
        open_by_default=open_by_default,
        switch=switch,
        opens=opens,
        ends_with_call=ends_with_call,
        drops_tail=drops_tail,
        trim=Trim(reasoning=False),
    )


_SWITCH = ("thinking", "enable_thinking")
DEEPSEEK_R1 = _reasoning("deepseek_r1", open_by_default=True)
DEEPSEEK_V3_THINKING = _reasoning("deepseek_v3", open_by_default=False, opens=_SWITCH)
DEEPSEEK_V4_THINKING = _reasoning(
    "deepseek_v4", "deepseek_v41", open_by_default=True, switch=_SWITCH, ends_with_call=True, drops_tail=True
)

_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
_OPENERS = {_CALLS: "section", _CALL: "head"}
_BETWEEN = {_CALL_END: "between", _CALL: "head", _CALLS_END: "content"}
_CLOSING = {**_BETWEEN, "```": "closing"}

DEEPSEEK_V3 = ToolFormat(
    names=("deepseek_v3", "deepseek_v31"),
    states={
        "content": State(Sink.CONTENT, on={**_OPENERS, _CALLS_END: "content"}),
        "section": State(Sink.GAP, on={_CALL: "head", _CALLS_END: "content"}, otherwise="noise", trial=True),
        "head": State(Sink.HEAD, on={_SEP: "call", _CALL_END: "content", _CALLS_END: "content"}, trial=True),
        "call": State(Sink.CALL, reader=FencedReader, then="closing", headed=True),
        "closing": State(Sink.GAP, on=_CLOSING, otherwise="rest"),
        "rest": State(Sink.CONTENT, on=_CLOSING),  # of a call, behind its arguments
        "between": State(Sink.GAP, on=_BETWEEN, otherwise="noise"),
        # what is neither a call nor between two is text
        "noise": State(Sink.CONTENT, on={**_BETWEEN, _CALLS: "section"}),
    },
)


def _dsml(names: tuple[str, ...], outer: str, space: str = "", more: tuple[str, ...] = ()) -> ToolFormat:
    """``more``: other openers that the model is known to write."""
    begin, end = f"<｜DSML｜{space}{outer}>", f"</｜DSML｜{space}{outer}>"
    invoke = f'<｜DSML｜{space}invoke name="'
    openers = dict.fromkeys((begin, *more), "section")
    reader = partial(DsmlReader, space)
    return ToolFormat(
        names=names,
        entry="lead",
        ends_reasoning=(begin,),
        states={
            "lead": State(
                Sink.GAP,
                on={**openers, invoke: "bare", end: "content"},
                otherwise="content",
                drop_if_content=True,
            ),
            "content": State(Sink.CONTENT, on={**openers, invoke: "bare", end: "content"}),
            "section": State(Sink.DROP, on={invoke: "call", end: "content"}, trial=True),
            "bare": State(Sink.CALL, reader=reader, then="called", trial=True, declared=True),
            "call": State(Sink.CALL, reader=reader, then="called"),
            "called": State(Sink.GAP, on={**openers, invoke: "call", end: "called"}, otherwise="content"),
        },
    )


DEEPSEEK_V32 = _dsml(("deepseek_v32",), "function_calls")
DEEPSEEK_V4 = _dsml(("deepseek_v4",), "tool_calls", more=("<｜DSML｜toolcalls>", "<｜DSML｜tool>"))
DEEPSEEK_V41 = _dsml(("deepseek_v41",), "calls", space=" ")

FORMATS = (
    DEEPSEEK_R1,
    DEEPSEEK_V3_THINKING,
    DEEPSEEK_V4_THINKING,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_V41,
)
