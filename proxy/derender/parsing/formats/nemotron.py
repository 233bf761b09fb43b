"""NVIDIA Nemotron 3: reasons and calls (``qwen3_coder``) as Qwen3 does, without whitespace before ``</think>``."""

from __future__ import annotations

from dataclasses import replace

from proxy.derender.parsing.formats.qwen import QWEN3

NEMOTRON_V3 = replace(QWEN3, names=("nemotron_v3",), drops_tail=True)

FORMATS = (NEMOTRON_V3,)
