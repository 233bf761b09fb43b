"""Ling 3, Laguna, K2 Horizon: calls between tags as GLM writes them.

Ling 3 (Ant) and Laguna (Poolside) write calls between GLM's tags, ``<tool_call>NAME<arg_key>K</arg_key>...``; both
reason in ``<think>``, Laguna only where the request turns it on. K2 Horizon (MBZUAI) writes ::

    <ifm|tool_calls><ifm|tool_call>NAME
    <ifm|arg_key>K</ifm|arg_key><ifm|arg_type>string</ifm|arg_type><ifm|arg_value>V</ifm|arg_value>
    </ifm|tool_call></ifm|tool_calls>

where the types are optional; the tool's schema goes before them. Its prompt opens one of three kinds of thinking. The
third way it can be asked to call, JSON inside the same tags, is not read. Sources: the models' chat templates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from proxy.derender.parsing.arguments.tagged import TaggedReader, Tags
from proxy.derender.parsing.formats.glm import GLM, GLM_REASONING
from proxy.derender.parsing.model import Sink, State
from proxy.derender.parsing.registry import ReasoningFormat, ToolFormat, Trim

LING3_REASONING = replace(GLM_REASONING, names=("ling3",))
LING3 = replace(GLM, names=("ling3",))

POOLSIDE_REASONING = ReasoningFormat(
    names=("poolside_v1",),
    start="<think>",
    end="</think>",
    open_by_default=False,
    opens=("thinking", "enable_thinking"),
    trim=Trim(reasoning=False),
)
POOLSIDE = replace(GLM, names=("poolside_v1",), ends_reasoning=())


def _tag(name: str) -> str:
    return f"<ifm|{name}>"


def _end(name: str) -> str:
    return f"</ifm|{name}>"


_CALLS, _CALLS_END, _CALL = _tag("tool_calls"), _end("tool_calls"), _tag("tool_call")
_TAGS = Tags(
    _tag("arg_key"), _end("arg_key"), _tag("arg_value"), _end("arg_value"), _end("tool_call"),
    ignored=(_tag("arg_type"), _end("arg_type")),
)  # fmt: skip
_INNER = (_TAGS.key, _TAGS.key_end, _TAGS.value, _TAGS.value_end, _TAGS.end, *_TAGS.ignored, _CALL, _CALLS_END)

K2_HORIZON_REASONING = ReasoningFormat(
    names=("k2_horizon",),
    start=_tag("think"),
    end=_end("think"),
    starts=(_tag("think_fast"), _tag("think_faster")),
    ends=(_end("think_fast"), _end("think_faster")),
    open_by_default=True,
    ends_with_call=True,
)

K2_HORIZON = ToolFormat(
    names=("k2_horizon",),
    ends_reasoning=(_CALLS,),
    states={
        "content": State(Sink.CONTENT, on={_CALLS: "section", _CALLS_END: "content"}),
        "section": State(Sink.DROP, on={_CALL: "call", _CALLS_END: "content"}, trial=True),
        "call": State(Sink.CALL, reader=partial(TaggedReader, _TAGS), then="called", inner=_INNER),
        "called": State(Sink.DROP, on={_CALL: "call", _CALLS_END: "content"}),
    },
)

FORMATS = (
    LING3_REASONING,
    LING3,
    POOLSIDE_REASONING,
    POOLSIDE,
    K2_HORIZON_REASONING,
    K2_HORIZON,
)
