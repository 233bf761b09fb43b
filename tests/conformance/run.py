"""By hand: ``python -m tests.conformance.run [complete|default] [family] [-v]``: counts, and what fails."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from canitoolcall.adapters.base import Adapter
from canitoolcall.adapters.worker import replay
from canitoolcall.chunking import DEFAULT_STRATEGIES
from canitoolcall.fixtures import load_families, load_fixtures
from canitoolcall.results import CaseResult, Status
from canitoolcall.runner import evaluate

from tests.conformance.adapter import CompleteProfile, DefaultProfile

PROFILES = {"complete": CompleteProfile, "default": DefaultProfile}


def cases(adapter: Adapter, family: str = "") -> Iterator[CaseResult]:
    """Every fixture (of one family) through the adapter, parsed whole and in all eight chunkings."""
    families = load_families()
    for fixture in load_fixtures():
        if not family or fixture.family == family:
            reply = replay(adapter, fixture, families[fixture.family], DEFAULT_STRATEGIES)
            yield evaluate(fixture, families[fixture.family], reply)


def main(arguments: list[str]) -> None:
    verbose = "-v" in arguments
    words = [word for word in arguments if word != "-v"]
    profile = words.pop(0) if words and words[0] in PROFILES else "complete"
    for family in words or sorted(load_families()):
        found = list(cases(PROFILES[profile](), family))
        counts = Counter(case.status.value for case in found)
        print(f"{family:14} {len(found):3}  {dict(counts)}")
        for case in found:
            if verbose and case.status not in (Status.PASS, Status.UNSUPPORTED):
                print(f"  {case.status.value:9} {case.fixture_id}")
                for row in case.checks[:]:
                    if row.status is not Status.PASS:
                        print(f"     {row.check} {row.strategy}: {row.detail}")
                        break


if __name__ == "__main__":
    main(sys.argv[1:])
