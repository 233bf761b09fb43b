"""OLMo 3 (Ai2): ``<think>`` spelled out of ordinary tokens, and Python calls, one a line.

::

    <think>...</think><function_calls>get_weather(city="Paris")
    search(query="x", days=3)</function_calls>
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.pythonic import PythonicReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

OLMO3_REASONING = ReasoningFormat(names=("olmo3",), start="<think>", end="</think>", open_by_default=True)

_CALLS, _CALLS_END = "<function_calls>", "</function_calls>"

OLMO3 = ToolFormat(
    names=("olmo3",),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on={_CALLS: "calls"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={_CALLS: "calls"}),
        "calls": State(
            Sink.CALL, reader=partial(PythonicReader, listed=False), then="called", trial=True, inner=(_CALLS_END,)
        ),
        "called": State(Sink.GAP, on={_CALLS_END: "lead", _CALLS: "calls"}, otherwise="rest"),
        "rest": State(Sink.CONTENT, on={_CALLS_END: "content", _CALLS: "calls"}),  # of a list that broke
    },
)

FORMATS = (OLMO3_REASONING, OLMO3)
