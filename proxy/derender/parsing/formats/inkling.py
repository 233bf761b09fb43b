"""Inkling: typed blocks, each behind tokens that say what it is.

::

    <|message_model|><|content_thinking|>reasoning<|end_message|>
    <|message_model|><|content_text|>answer<|end_message|>
    <|message_model|>NAME<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|>

in any order and number; the first ``<|message_model|>`` stands in the prompt. What stands between it and the next
token is a label. ``<|content_invoke_tool_text|>`` and ``<|content_tool_error|>`` hold what is shown as text.
``<|content_model_end_sampling|>`` ends a block as well.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import JointFormat

_BLOCKS = {
    "<|message_model|>": "header",
    "<|content_text|>": "text",
    "<|content_thinking|>": "reasoning",
    "<|content_invoke_tool_json|>": "call",
    "<|content_invoke_tool_text|>": "text",
    "<|content_tool_error|>": "text",
}
_ENDS = dict.fromkeys(("<|end_message|>", "<|content_model_end_sampling|>"), "text")
_ARGUMENTS = ("args", "arguments", "parameters")

INKLING = JointFormat(
    reasoning_names=("inkling",),
    tool_names=("inkling",),
    entry="header",
    turn="<|message_model|>",
    primed="header",
    states={
        # a label without a block behind it is what the model had to say
        "header": State(Sink.HEAD, on={**_BLOCKS, **dict.fromkeys(_ENDS, "said")}, otherwise="said"),
        "said": State(Sink.CONTENT, on={**_BLOCKS, **_ENDS}),
        "text": State(Sink.CONTENT, on={**_BLOCKS, **_ENDS}),
        "reasoning": State(Sink.REASONING, on={**_ENDS, "<|content_invoke_tool_json|>": "call"}),
        "call": State(Sink.CALL, reader=partial(CallReader, argument_keys=_ARGUMENTS), then="called", trial=True),
        "called": State(Sink.GAP, on={**_BLOCKS, **_ENDS}, otherwise="text"),
    },
    # without tools a call is what the model had to say
    without_tools={"call": State(Sink.CONTENT, on={**_BLOCKS, **_ENDS})},
)

FORMATS = (INKLING,)
