"""Expositions of several engines (Prometheus' text format 0.0.4) as one: families together, a label on each sample."""

from __future__ import annotations

from collections.abc import Iterable

LABEL = "upstream"


def merged(texts: Iterable[tuple[str, bytes]]) -> bytes:
    """All samples of ``texts`` (name of the engine, its exposition), labelled; help and type of the first to tell."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for name, text in texts:
        label = b'%s="%s"' % (LABEL.encode(), name.replace("\\", "").replace('"', "").encode())
        family = b""
        told: set[bytes] = set()  # families whose head this text has given
        for line in text.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                family = line.split(b" ", 3)[2]
                first = family not in heads or family in told
                heads.setdefault(family, [])
                if first:
                    told.add(family)
                    heads[family].append(line)
            elif line and not line.startswith(b"#"):
                samples.setdefault(family, []).append(_labelled(line, label))
                heads.setdefault(family, [])
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return b"\n".join(lines) + b"\n"


def _labelled(line: bytes, label: bytes) -> bytes:
    brace = line.find(b"{")
    if brace == -1:
        name, _, value = line.partition(b" ")
        return b"%s{%s} %s" % (name, label, value)
    rest = line[brace + 1 :]
    return line[: brace + 1] + label + (rest if rest.startswith(b"}") else b"," + rest)
