"""Writes what is derived from the settings model: config/default.yaml, the table of flags in README.md, and the schema
of the chart's values.

    python config/reference.py          show whether they agree
    python config/reference.py --write  make them agree
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

from proxy.cli import metavar_of
from proxy.config import Settings, choices_of, flag_of, is_list, knob_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
BEGIN, END = "<!-- flags -->\n", "<!-- /flags -->\n"


def default_yaml() -> str:
    """Every setting with its default, commented out, so that the file as it is changes nothing."""
    lines = [
        "# Every setting of `derender-proxy serve --config FILE`, with its default. Uncomment what you change.",
        "# A flag (--max-n) wins over the environment (DERENDER_MAX_N), which wins over this file.",
    ]
    for name, field in Settings.model_fields.items():
        if name == "config":
            continue
        lines.append("")
        lines += textwrap.wrap(field.description or "", 110, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"# {name.replace('_', '-')}: {json.dumps(field.default)}")
    return "\n".join(lines) + "\n"


def flags_table() -> str:
    """The flags as a Markdown table."""
    rows = ["| flag | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        knob = knob_of(field)
        if name == "model":
            rows.append(f"| `MODEL` | | {field.description} |")
            continue
        choices = choices_of(field)
        value = r"\|".join(choices) if choices else knob.metavar or metavar_of(field.annotation)
        if field.annotation is bool:
            value = ""
        value = value.replace("|", r"\|").replace(r"\\|", r"\|") + (" ..." if is_list(field) else "")
        default = "" if field.default in (None, [], {}) else f"`{json.dumps(field.default).strip(chr(34))}`"
        rows.append(f"| `{f'{flag_of(name)} {value}'.strip()}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def with_table(readme: str) -> str:
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + flags_table() + END + tail


def expected() -> dict[Path, str]:
    from scripts import chart

    readme = ROOT / "README.md"
    return {
        ROOT / "config" / "default.yaml": default_yaml(),
        readme: with_table(readme.read_text(encoding="utf-8")),
        **chart.expected(),
    }


def main() -> int:
    stale = [
        path for path, text in expected().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--write" in sys.argv[1:]:
        for path in stale:
            path.write_text(expected()[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} does not agree with the settings")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
