"""Seed-OSS (ByteDance): Qwen's XML calls and reasoning, with ``seed:`` in the names of the wrappers.

::

    <seed:think>...</seed:think><seed:tool_call>
    <function=NAME>
    <parameter=KEY>VALUE</parameter>
    </function>
    </seed:tool_call>
"""

from __future__ import annotations

from dataclasses import replace

from proxy.derender.parsing.formats.qwen import QWEN3, QWEN3_XML

_RENAMED = {"<tool_call>": "<seed:tool_call>", "</tool_call>": "</seed:tool_call>"}

SEED_OSS_REASONING = replace(QWEN3, names=("seed_oss",), start="<seed:think>", end="</seed:think>")

SEED_OSS = replace(
    QWEN3_XML,
    names=("seed_oss",),
    ends_reasoning=("<seed:tool_call>",),
    states={
        name: replace(state, on={_RENAMED.get(marker, marker): target for marker, target in state.on.items()})
        for name, state in QWEN3_XML.states.items()
    },
)

FORMATS = (SEED_OSS_REASONING, SEED_OSS)
