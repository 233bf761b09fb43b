"""MiniCPM-V (OpenBMB): Qwen3's reasoning, by a tokenizer that writes newlines out and leaves reserved markers in text.

Its calls are Qwen3-Coder's. Sources: the checkpoints' tokenizers and templates.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.derender.parsing.formats.qwen import QWEN3

MINICPMV_REASONING = replace(
    QWEN3,
    names=("minicpmv",),
    swallows=tuple(f"<{bar}reserved_{n}{bar}>" for n in range(12, 16) for bar in ("", "|")),
    written_newlines=True,
)

FORMATS = (MINICPMV_REASONING,)
