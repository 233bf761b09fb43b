"""Cohere Command A (3) and its successors (4): blocks between START and END tokens.

``<|START_THINKING|>...<|END_THINKING|>``, then an answer, ``<|START_RESPONSE|>...<|END_RESPONSE|>`` (3) or
``<|START_TEXT|>...<|END_TEXT|>`` (4), or calls ::

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": ..., "parameters": {...}},
    ]<|END_ACTION|>

A grounded answer marks what it cites, ``<co>words</co: 0:[1,2]>``; the marks are dropped, the words stay. Command 4
begins inside its thinking. vLLM hands the text to Cohere's own parser (``cohere_melody``), which also drops
whitespace at the borders of the blocks (here: ``trim``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.json_list import ListReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

COMMAND3_REASONING = ReasoningFormat(
    names=("cohere_command3",), start="<|START_THINKING|>", end="<|END_THINKING|>", open_by_default=False
)
COMMAND4_REASONING = replace(COMMAND3_REASONING, names=("cohere_command4",), open_by_default=True)

_OPENERS = {"<|START_RESPONSE|>": "answer", "<|START_TEXT|>": "answer", "<|START_ACTION|>": "calls"}
_CLOSERS = dict.fromkeys(("<|END_RESPONSE|>", "<|END_TEXT|>", "<|END_ACTION|>"), "between")
_CITES = {"<co>": "answer", "</co: ": "cited"}
_CALL = partial(CallReader, name_keys=("tool_name", "name"), id_keys=("tool_call_id",))

COMMAND = ToolFormat(
    names=("cohere_command3", "cohere_command4"),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on=_OPENERS, otherwise="answer", drop_if_content=True),
        "answer": State(Sink.CONTENT, on={**_OPENERS, **_CLOSERS, **_CITES}),
        "cited": State(Sink.HEAD, on={">": "answer"}, trial=True),
        "calls": State(
            Sink.CALL, reader=partial(ListReader, item=_CALL), then="between", broken="answer", trial=True
        ),
        # behind a block that has ended only another block counts
        "between": State(Sink.DROP, on={**_OPENERS, **_CLOSERS}),
    },
)

FORMATS = (COMMAND3_REASONING, COMMAND4_REASONING, COMMAND)
