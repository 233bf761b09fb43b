"""The table of formats in README.md is the registry's."""

from __future__ import annotations

from config import formats
from proxy.derender.parsing.registry import builtin


def test_the_readme_has_the_registrys_table() -> None:
    text = (formats.ROOT / "README.md").read_text(encoding="utf-8")
    assert formats.readme(text) == text, "python config/formats.py --write"


def test_every_encoding_has_a_name() -> None:
    readers = {formats.reader_of(s) for item in builtin().formats() for s in getattr(item, "states", {}).values()}
    assert readers - {None} <= formats.ENCODINGS.keys()
