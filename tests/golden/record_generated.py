"""Records what vLLM's own parser classes make of generated outputs, one token per chunk and whole.

Run in an environment that has vLLM 0.33 (no GPU needed), from the repository's root ::

    python -m tests.golden.record_generated [FAMILY ...]

The tokenizer is qwen3's with the family's markers as added tokens, as in ``record_families``. Writes
``tests/data/golden/<family>.jsonl``, one answer a line: the pieces of the prompt's end and of the output, the tools,
and what vLLM said.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.generators import tagged_families
from tests.generators.base import Generator, Marker, Written, tools, truncated
from tests.golden.record_families import fold, pieces, tokenizer_of

OUT = Path(__file__).parents[1] / "data" / "golden"
VALID, TRUNCATED = 10, 3


@dataclass(frozen=True)
class Markers:
    """What ``tokenizer_of`` asks of a family."""

    markers: tuple[str, ...]


def encode(tokenizer: Any, parts: tuple[str, ...]) -> list[int]:
    vocab = tokenizer.get_vocab()
    ids: list[int] = []
    for part in parts:
        ids += [vocab[part]] if isinstance(part, Marker) else tokenizer.encode(str(part), add_special_tokens=False)
    return ids


def record(generator: Generator, tokenizer: Any, written: Written, declared: list[Any]) -> dict[str, Any]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    parser_class = ParserManager.get_parser(
        tool_parser_name=generator.tool_parser,
        reasoning_parser_name=generator.reasoning_parser,
        enable_auto_tools=generator.tool_parser is not None,
    )
    assert parser_class is not None
    request = ChatCompletionRequest.model_validate({"messages": [], "tools": declared, "tool_choice": "auto"})
    prompt_ids = encode(tokenizer, ("Hi\n", *written.prompt))
    ids = encode(tokenizer, written.pieces)

    def parser() -> Any:
        made = parser_class(tokenizer, request.tools, chat_template_kwargs={})
        made.adjust_request(request)
        return made

    live, deltas = parser(), []
    shown = list(pieces(tokenizer, ids))
    try:
        for n, piece in enumerate(shown):
            deltas.append(live.parse_delta(piece, [ids[n]], request, prompt_ids, finished=n == len(ids) - 1))
        streamed: Any = fold(deltas)
    except Exception as error:
        streamed = {"error": type(error).__name__}
    try:
        reasoning, content, calls = parser().parse(tokenizer.decode(ids, skip_special_tokens=False), request, True, ids)
        said = [{"name": call.name, "arguments": call.arguments} for call in calls or ()]
        whole: Any = {"reasoning": reasoning or None, "content": content or None, "tool_calls": said}
    except Exception as error:
        whole = {"error": type(error).__name__}
    return {
        "tools": declared,
        "prompt": written.prompt,
        "pieces": shown,
        "markers": sorted({n for n, token_id in enumerate(ids) if tokenizer.decode([token_id]) in generator.markers}),
        "truncated": written.truncated,
        "streamed": streamed,
        "not_streamed": whole,
    }


def answers(generator: Generator) -> Iterator[dict[str, Any]]:
    tokenizer = tokenizer_of(Markers(tuple(map(str, generator.markers))))  # type: ignore[arg-type]
    rng = random.Random(f"{generator.family} {generator.reasoning_parser}")
    for number in range(VALID + TRUNCATED):
        declared = tools(rng)
        written = generator.write(rng, declared)
        if number >= VALID:
            written = truncated(written, rng)
        parsers = {"reasoning_parser": generator.reasoning_parser, "tool_parser": generator.tool_parser}
        name = f"{generator.family} {generator.reasoning_parser} {number}"
        yield {"name": name, **parsers, "added": generator.markers, **record(generator, tokenizer, written, declared)}


def main() -> None:
    wanted = set(sys.argv[1:])
    families: dict[str, list[Generator]] = {}
    for generator in tagged_families.GENERATORS:
        families.setdefault(generator.family, []).append(generator)
    for family, generators in families.items():
        if wanted and family not in wanted:
            continue
        lines: list[str] = []
        for generator in generators:
            try:
                lines += [json.dumps(line, ensure_ascii=False) for line in answers(generator)]
            except Exception as error:  # one's trouble is not the others' business
                print(f"{family}: {type(error).__name__}: {error}", file=sys.stderr)
        (OUT / f"{family}.jsonl").write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
