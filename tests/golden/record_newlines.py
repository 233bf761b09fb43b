"""Records what vLLM 0.33 makes of newlines that are written out: ``python -m tests.golden.record_newlines``."""

from __future__ import annotations

import json
import random
from pathlib import Path

OUT = Path(__file__).parents[1] / "data" / "golden" / "minicpmv.jsonl"
PIECES = (
    "\\", "\\", "\\n", "\\r", "\\r\\n", "n", "r", "`", "```", "$", "$$", "\\(", "\\)", "\\[", "\\]", "a", " ", "\n",
    "code", "\\\\",
)  # fmt: skip


def main() -> None:
    from vllm.parser.minicpmv import recover_newlines

    rng = random.Random(33)
    lines = []
    for _ in range(400):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 24)))
        row = {"reasoning_parser": "minicpmv", "written": text, "said": recover_newlines(text)}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    OUT.write_text("".join(lines))


if __name__ == "__main__":
    main()
