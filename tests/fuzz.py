"""By hand: ``python -m tests.fuzz [COUNT] [FAMILY ...]``: many outputs per family, random cuts, restored at each cut.

COUNT (100,000 by default) outputs of every family's generators, half of them damaged, a quarter truncated. Stops
with the seed of the first difference or exception; ``python -m tests.fuzz --seed SEED FAMILY`` shows it again.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.generators.base import Generator, generators
from tests.generators.check import check

KINDS = ("damaged", "valid", "damaged", "truncated")
BATCH = 500


def one(generator: Generator, seed: int) -> None:
    check(generator, KINDS[seed % len(KINDS)], seed, cuts=1)


def batch(number: int, first: int, size: int) -> str:
    """The complaint about the first output that has a fault, or ""."""
    generator = generators()[number]
    for seed in range(first, first + size):
        try:
            one(generator, seed)
        except Exception as error:
            return f"{generator.family}, seed {seed}: {type(error).__name__}: {error}"
    return ""


def main(arguments: list[str]) -> int:
    seed = int(arguments.pop(arguments.index("--seed") + 1)) if "--seed" in arguments else None
    families = [word for word in arguments if not word.isdigit() and word != "--seed"]
    count = next((int(word) for word in arguments if word.isdigit()), 100_000)
    chosen = [n for n, item in enumerate(generators()) if not families or item.family in families]
    if seed is not None:
        for number in chosen:
            one(generators()[number], seed)
        return 0
    faults = 0
    with ProcessPoolExecutor() as pool:
        for number in chosen:
            begin = time.monotonic()
            starts = range(0, count, BATCH)
            sizes = [min(BATCH, count - start) for start in starts]
            complaints = [text for text in pool.map(batch, repeat(number), starts, sizes) if text]
            faults += len(complaints)
            seconds = time.monotonic() - begin
            print(f"{generators()[number].family:20} {count} outputs, {seconds:.0f} s: {complaints[:3] or 'no fault'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
