"""Holo2 (H Company): ``<think>`` reasoning, open unless a request turns it off.

vLLM reads it with its DeepSeek R1 parser, and not at all where ``thinking`` or ``enable_thinking`` is false.
"""

from __future__ import annotations

from proxy.derender.parsing.registry import ReasoningFormat, Trim

HOLO2 = ReasoningFormat(
    names=("holo2",),
    start="<think>",
    end="</think>",
    open_by_default=True,
    switch=("thinking", "enable_thinking"),
    trim=Trim(reasoning=False),
)

FORMATS = (HOLO2,)
