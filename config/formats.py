"""Writes the table of formats in README.md from the registry, and from what their names are tested against.

python config/formats.py          show whether they agree
python config/formats.py --write  make them agree
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from proxy.derender.parsing import formats
from proxy.derender.parsing.model import State
from proxy.derender.parsing.registry import Format, JointFormat, ReasoningFormat, builtin, names_of
from proxy.derender.parsing.vllm_names import REASONING_PARSERS, TOOL_PARSERS, VERSION

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "data" / "golden"
BEGIN, END = "<!-- formats -->\n", "<!-- /formats -->\n"

ENCODINGS = {
    "CallReader": "JSON object",
    "ListReader": "JSON list",
    "KeyedReader": "JSON, name as key",
    "HeadedReader": "name, then JSON",
    "FencedReader": "name, then JSON",
    "NameJsonReader": "name, then JSON",
    "_k2_reader": "name, then JSON",
    "ValueReader": "name, then JSON",
    "XmlReader": "XML",
    "InvokeReader": "XML",
    "DsmlReader": "XML",
    "ElementReader": "XML",
    "XtmlReader": "XML",
    "TaggedReader": "tagged keys and values",
    "PythonicReader": "Python calls",
    "GemmaReader": "Gemma's notation",
}
FOREIGN = (
    ("`hf`, `beam`", "`hf`, `beam`", "the checkpoint's `response_template`", "any", "transformers' own parser"),
    ("`vllm:NAME`", "`vllm:NAME`", "an installed vLLM's parser", "any", "it is vLLM's"),
)


def reader_of(state: State) -> str | None:
    """The name of the class that reads a state's calls."""
    made: Any = state.reader
    while isinstance(made, partial):
        made = made.func
    return None if made is None else str(made.__name__)


def encoding(item: Format) -> str:
    """How the arguments are written, as the readers of its states say."""
    states = {} if isinstance(item, ReasoningFormat) else getattr(item, "states", {})
    found = [ENCODINGS.get(name, name) for name in map(reader_of, states.values()) if name is not None]
    return ", ".join(dict.fromkeys(found)) or "-"


def families() -> dict[int, str]:
    """What a format's module says of it, by the format's identity: the first sentence, up to its colon."""
    said: dict[int, str] = {}
    for module in sorted(found.name for found in pkgutil.iter_modules(formats.__path__)):
        loaded = importlib.import_module(f"{formats.__name__}.{module}")
        summary = (loaded.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ").rstrip(":.")
        for item in loaded.FORMATS:
            said[id(item)] = summary.partition(": ")[0].replace("``", "`")
    return said


def verified() -> set[str]:
    """The names that are compared with answers of vLLM's own parsers."""
    found: set[str] = set()
    for path in sorted(GOLDEN.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            group = json.loads(line)
            found |= {group.get("tool_parser"), group.get("reasoning_parser")} - {None}
    return found


def rows() -> list[tuple[str, str, str, str, str]]:
    """Tool-call names, reasoning names, family, encoding, how verified: a row for each format, by family."""
    said, compared = families(), verified()
    found = []
    for item in builtin().formats():
        reasoning, tools = names_of(item)
        how = "vLLM's answers, generated outputs" if compared & {*reasoning, *tools} else "generated outputs"
        kind = encoding(item) if tools or isinstance(item, JointFormat) else "reasoning"
        found.append((_names(tools), _names(reasoning), said.get(id(item), ""), kind, how))
    return sorted(found, key=lambda row: (row[2].lower(), row[0] == "", row[0], row[1]))


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table() -> str:
    lines = [
        "| `--tool-call-parser` | `--reasoning-parser` | family | arguments | compared with |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (*rows(), *FOREIGN)]
    registry = builtin()
    missing = sorted(
        (TOOL_PARSERS - registry.tools.keys() | REASONING_PARSERS - registry.reasoning.keys()) - {"hf", "beam"}
    )
    told = f"Every parser name of vLLM {VERSION}'s has a format."
    if missing:
        refused = ", ".join(f"`{name}`" for name in missing)
        told = f"Of vLLM {VERSION}'s names without a format, and refused at start: {refused}."
    return "\n".join(lines) + f"\n\n{told}\n"


def readme(text: str) -> str:
    head, rest = text.split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    made = readme(text)
    if "--write" in sys.argv:
        path.write_text(made, encoding="utf-8")
        return 0
    if made != text:
        print("README.md differs: python config/formats.py --write", file=sys.stderr)
    return int(made != text)


if __name__ == "__main__":
    sys.exit(main())
