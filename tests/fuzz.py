"""By hand: ``python -m tests.fuzz [COUNT] [FAMILY ...]``: many outputs per family, random cuts, restored at each cut.

COUNT (100,000 by default) outputs of every family (a module of ``parsing/formats``), spread over its generators, half
of them damaged, a quarter truncated. Says the seed of differences and exceptions; ``python -m tests.fuzz --seed SEED
FAMILY`` shows one again. ``--thorough``: one by one and unrestored as well, in both profiles.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from proxy.derender.parsing import formats
from tests.generators.base import Generator, generators
from tests.generators.check import check, check_restored

KINDS = ("damaged", "valid", "damaged", "truncated")
BATCH = 500


def families() -> dict[str, list[int]]:
    """Numbers of the generators of each family."""
    owners: dict[str, str] = {}
    for module in sorted(found.name for found in pkgutil.iter_modules(formats.__path__)):
        for item in importlib.import_module(f"{formats.__name__}.{module}").FORMATS:
            for attribute in ("names", "reasoning_names", "tool_names"):
                owners.update(dict.fromkeys(getattr(item, attribute, ()), module))
    found: dict[str, list[int]] = {}
    for number, generator in enumerate(generators()):
        family = owners.get(generator.tool_parser or generator.reasoning_parser or "", generator.family)
        found.setdefault(family, []).append(number)
    return found


def one(generator: Generator, seed: int, thorough: bool) -> None:
    kind = KINDS[seed % len(KINDS)]
    if thorough:
        check(generator, kind, seed, cuts=1)
    else:
        check_restored(generator, kind, seed)


def batch(task: tuple[int, int, int], thorough: bool) -> str:
    """The complaint about the first output that has a fault, or ""."""
    number, first, size = task
    generator = generators()[number]
    for seed in range(first, first + size):
        try:
            one(generator, seed, thorough)
        except Exception as error:
            return f"{generator.family}, seed {seed}: {type(error).__name__}: {error}"
    return ""


def main(arguments: list[str]) -> int:
    thorough = "--thorough" in arguments
    arguments = [word for word in arguments if word != "--thorough"]
    seed = int(arguments.pop(arguments.index("--seed") + 1)) if "--seed" in arguments else None
    wanted = [word for word in arguments if not word.isdigit() and word != "--seed"]
    count = next((int(word) for word in arguments if word.isdigit()), 100_000)
    chosen = {name: numbers for name, numbers in families().items() if not wanted or name in wanted}
    if seed is not None:
        for number in (number for numbers in chosen.values() for number in numbers):
            one(generators()[number], seed, thorough)
        return 0
    faults = 0
    with ProcessPoolExecutor() as pool:
        for name, numbers in chosen.items():
            begin = time.monotonic()
            each = -(-count // len(numbers))
            tasks = [(n, first, min(BATCH, each - first)) for n in numbers for first in range(0, each, BATCH)]
            complaints = [text for text in pool.map(partial(batch, thorough=thorough), tasks) if text]
            faults += len(complaints)
            seconds = time.monotonic() - begin
            print(
                f"{name:16} {each * len(numbers):7} outputs, {seconds:4.0f} s: {complaints[:3] or 'no fault'}",
                flush=True,
            )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
