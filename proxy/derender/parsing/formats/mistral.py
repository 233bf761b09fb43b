"""Mistral, Magistral, Ministral, Devstral: ``[TOOL_CALLS]``, and ``[THINK]`` reasoning.

By generation of the tokenizer a call is ::

    [TOOL_CALLS] [{"name": "NAME", "arguments": {...}}, ...]          v3
    [TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]NAME[ARGS]{...}            v11, v13
    [TOOL_CALLS]NAME[CALL_ID]123456789[ARGS]{...}                     v11, some checkpoints

and nothing closes it. All markers are control tokens. Reasoning is ``[THINK]...[/THINK]``, which the model
writes itself at the beginning; inside it even control tokens of calls are text. The first Magistral spells
``<think>...</think>`` out of ordinary tokens. Ids of calls are nine letters and digits. Sources:
mistral-common's tokenizers and the checkpoints' chat templates.

vLLM drops whitespace at the end of the reasoning, and in front of a first call as long as nothing else was content.
"""

from __future__ import annotations

from proxy.derender.parsing.arguments.name_json import ARGS, CALL_ID, NameJsonReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

MISTRAL_THINKING = ReasoningFormat(
    names=("mistral",),
    start="[THINK]",
    end="[/THINK]",
    open_by_default=False,
    literal=True,
    drops_tail=True,
    spelled=("<think>", "</think>"),
)

_CALL = {"[TOOL_CALLS]": "call"}

MISTRAL = ToolFormat(
    names=("mistral",),
    entry="lead",
    states={
        "lead": State(Sink.GAP, on=_CALL, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on=_CALL),
        "call": State(Sink.CALL, reader=NameJsonReader, then="called", trial=True),
        "called": State(Sink.GAP, on=_CALL, otherwise="content"),
    },
    markers=(ARGS, CALL_ID),
    id_shape="mistral",
)

FORMATS = (MISTRAL_THINKING, MISTRAL)
