"""GLM (Z.ai): ``<think>`` reasoning, and calls whose keys and values stand between tags.

GLM-4.5 and 4.6 write ::

    <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>

GLM-4.7 and 5 write the same on one line, without any whitespace between the tags. Strings stand as they are, whitespace
included, other values are JSON; nothing says which is which but the tool's schema. GLM-4.5 opens ``<think>``
itself, for later models the prompt does; any of them may think again further on. Source: the models' chat templates.
"""

from __future__ import annotations

from functools import partial

from proxy.derender.parsing.arguments.tagged import TaggedReader, Tags
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat

GLM_REASONING = ReasoningFormat(
    names=("glm45", "glm47"),
    start="<think>",
    end="</think>",
    open_by_default=True,
    switch=("enable_thinking", "thinking"),
    ends_with_call=True,
    reopens=True,
    drops_tail=True,
)

_TAGS = Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
_INNER = (_TAGS.key, _TAGS.key_end, _TAGS.value, _TAGS.value_end, _TAGS.end, "<tool_call>")

GLM = ToolFormat(
    names=("glm45", "glm47"),
    entry="lead",
    ends_reasoning=("<tool_call>",),
    states={
        "lead": State(Sink.GAP, on={"<tool_call>": "call"}, otherwise="content", drop_if_content=True),
        "content": State(Sink.CONTENT, on={"<tool_call>": "call"}),
        "call": State(Sink.CALL, reader=partial(TaggedReader, _TAGS), then="lead", trial=True, inner=_INNER),
    },
)

FORMATS = (GLM_REASONING, GLM)
