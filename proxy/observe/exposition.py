"""Expositions put together: those of several workers into one, and ours with the engine's (text format 0.0.4).

Workers add up: counters and histograms by sample, gauges too unless all tell of the same thing. A worker that died
leaves what it had counted, without its gauges. The engine's families keep their names and samples as they are; each
is in one piece, and none that we have is given twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

# Gauges that say the same in every worker, or for which one worker is enough.
_NOT_ADDED = frozenset({"derender_build_info", "derender_fallback_breaker_open", "derender_engine_up"})
_SUFFIX = re.compile(rb"_(?:bucket|count|sum|total|created|info)$")
_NAME = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*")


def added(live: Iterable[bytes], past: Iterable[bytes] = ()) -> bytes:
    """The sum of expositions of ours; of ``past`` ones only what counts up."""
    families: dict[str, Metric] = {}
    samples: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text, alive in [*((text, True) for text in live), *((text, False) for text in past)]:
        for family in text_string_to_metric_families(text.decode()):
            if not alive and family.type not in ("counter", "histogram"):
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            seen = samples.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sample.labels.items()))
                if family.name in _NOT_ADDED:
                    seen[key] = max(seen.get(key, sample.value), sample.value)
                else:
                    seen[key] = seen.get(key, 0.0) + sample.value
    for name, family in families.items():
        for (sample_name, labels), value in samples[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def joined(own: bytes, engine: bytes) -> bytes:
    """``own``, then ``engine`` with its families in one piece each and without those that ``own`` has."""
    taken = set(_families(own))
    families = {name: lines for name, lines in _families(engine).items() if name not in taken}
    lines = [line for found in families.values() for line in found]
    return own + b"\n".join(lines) + (b"\n" if lines else b"")


def _families(text: bytes) -> dict[bytes, list[bytes]]:
    """The lines of each family, in the order of their first; help and type once."""
    found: dict[bytes, list[bytes]] = {}
    heads: set[tuple[bytes, bytes]] = set()
    family = b""
    for line in text.splitlines():
        if line.startswith((b"# HELP ", b"# TYPE ")):
            _, kind, family = line.split(b" ", 3)[:3]
            if (kind, family) in heads:
                continue
            heads.add((kind, family))
        elif line.startswith(b"#") or not line.strip():
            continue
        else:
            name = _NAME.match(line)
            if name is None:
                continue
            family = _family_of(name[0], family, found)
        found.setdefault(family, []).append(line)
    return found


def _family_of(name: bytes, current: bytes, known: dict[bytes, list[bytes]]) -> bytes:
    """Whose sample ``name`` is: that of the last head, of a family seen before, or of one without a head."""
    base = _SUFFIX.sub(b"", name)
    if current in (name, base):
        return current
    return base if base in known else name
