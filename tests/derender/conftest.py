"""What needs a vLLM is collected only where there is one."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["test_with_vllm.py"]
