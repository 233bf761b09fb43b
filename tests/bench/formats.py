"""Every format there is, by its generator: microseconds per token, one token per chunk, from 1k to 64k tokens.

``python -m tests.bench.formats [FAMILY ...]``. Time is the CPU time of the thread, so that other work on the machine
changes little. The vocabulary is the generators' small one, whose tokens are a few
characters long, so that formats without a tokenizer here are measured too.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.derender.derenderer import Derenderer
from proxy.derender.settings import ChatSettings
from tests.generators.base import Generator, Written, generators
from tests.generators.check import derenderer

LENGTHS = (1024, 2048, 32768, 65536)
PROSE = "The quick brown fox, lazy dogs: naïve café owners sell 12 kinds of coffee for 3.50 each. "
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"note": {"type": "string"}}},
    },
}


def outputs(generator: Generator) -> Iterator[tuple[str, Written]]:
    """For each region an output that has the word ``hello`` there and nowhere else."""
    wanted = {"reasoning", "content", "arguments"}
    for seed in range(4000):
        written = generator.write(random.Random(seed), [TOOL])
        if written.text.count("hello") != 1:
            continue
        if "hello" in written.reasoning:
            region = "reasoning"
        elif "hello" in written.content:
            region = "content"
        else:
            region = "arguments"
            if written.text.rfind("search") > written.text.find("hello"):
                continue
        if region in wanted:
            wanted.remove(region)
            yield region, written
        if not wanted:
            return


def microseconds(opener: Derenderer, ids: Sequence[int], prompt: Sequence[int], rounds: int = 3) -> float:
    settings = ChatSettings(tools=(TOOL,))
    chunks = [[token_id] for token_id in ids]
    best = float("inf")
    for _ in range(rounds):
        stream = opener.chat(settings, request_id="bench", prompt_token_ids=prompt)
        gc.collect()
        begin = time.thread_time()
        for chunk in chunks:
            stream.feed(chunk)
        stream.feed([], "stop")
        best = min(best, time.thread_time() - begin)
    return best / len(ids) * 1e6


def measure(generator: Generator, written: Written) -> list[float]:
    made, opener = derenderer(generator)
    prompt = [1, *made.encode(written.prompt, random.Random(0))]
    per_copy = len(made.encode([PROSE], random.Random(0)))
    found = []
    for length in LENGTHS:
        text = PROSE * (length // per_copy + 1)
        pieces = [str.replace(p, "hello", text) if type(p) is str else p for p in written.pieces]
        found.append(microseconds(opener, made.encode(pieces, random.Random(0)), prompt))
    return found


def main(families: Sequence[str]) -> None:
    gc.freeze()
    heads = "".join(f"{f'{length // 1024}k':>7}" for length in LENGTHS)
    print(f"{'format':18} {'region':10}{heads} {'32k/2k':>7}   us per token, one token per chunk")
    for generator in generators():
        if families and generator.family not in families:
            continue
        for region, written in outputs(generator):
            found = measure(generator, written)
            ratio = found[LENGTHS.index(32768)] / found[LENGTHS.index(2048)]
            times = "".join(f"{time:7.2f}" for time in found)
            print(f"{generator.family:18} {region:10}{times} {ratio:7.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
