"""Records what vLLM's own parser classes make of a family's outputs, one token per chunk and whole.

Run in an environment that has vLLM 0.33 (no GPU needed), from the repository's root ::

    python -m tests.golden.record_families [FAMILY ...]

The tokenizer is qwen3's with the family's markers as added tokens, since few families' tokenizers are at hand.
Cohere's parser also needs ``cohere_melody``. Writes ``tests/data/golden/families.jsonl``, one answer a line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.family_cases import FAMILIES, TOOLS, Family, texts
from tests.tokenizers import tokenizer_dir

OUT = Path(__file__).parents[1] / "data" / "golden" / "families.jsonl"


def tokenizer_of(family: Family) -> Any:
    """qwen3's tokenizer with the markers that it lacks."""
    from transformers import AutoTokenizer

    base = AutoTokenizer.from_pretrained(tokenizer_dir("qwen3"))
    missing = [marker for marker in family.markers if marker not in base.get_vocab()]
    with tempfile.TemporaryDirectory() as folder:
        base.save_pretrained(folder)
        path = Path(folder) / "tokenizer.json"
        spec = json.loads(path.read_text())
        first = 1 + max(token["id"] for token in spec["added_tokens"])
        spec["added_tokens"] += [added_token(first + n, marker) for n, marker in enumerate(missing)]
        path.write_text(json.dumps(spec))
        return AutoTokenizer.from_pretrained(folder)


def added_token(token_id: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}


def pieces(tokenizer: Any, ids: list[int]) -> Iterator[str]:
    """The text that each id adds."""
    sent = ""
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n], skip_special_tokens=False)
        if n < len(ids) and text.endswith("\ufffd"):
            yield ""
            continue
        yield text[len(sent) :]
        sent = text


def record(family: Family, tokenizer: Any) -> Iterator[dict[str, Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    parser_class = ParserManager.get_parser(
        tool_parser_name=family.tool_parser,
        reasoning_parser_name=family.reasoning_parser,
        enable_auto_tools=family.tool_parser is not None,
    )
    assert parser_class is not None
    for name, prompt, text, finish in texts(family):
        request = ChatCompletionRequest.model_validate(
            {"messages": [], "tools": TOOLS, "tool_choice": "auto", "chat_template_kwargs": family.template_kwargs}
        )
        prompt_ids = tokenizer.encode("Hi\n" + prompt, add_special_tokens=False)
        ids = tokenizer.encode(text, add_special_tokens=False)

        def parser(request: Any = request) -> Any:
            made = parser_class(tokenizer, request.tools, chat_template_kwargs=dict(family.template_kwargs))
            made.adjust_request(request)
            return made

        live, deltas = parser(), []
        for n, piece in enumerate(pieces(tokenizer, ids)):
            last = n == len(ids) - 1
            deltas.append(live.parse_delta(piece, [ids[n]], request, prompt_ids, finished=last))
        whole = parser()
        whole_text = tokenizer.decode(ids, skip_special_tokens=False)
        try:
            reasoning, content, calls = whole.parse(whole_text, request, True, ids)
            said = [{"name": call.name, "arguments": call.arguments} for call in calls or ()]
            not_streamed: Any = {"reasoning": reasoning or None, "content": content or None, "tool_calls": said}
        except Exception as error:
            not_streamed = {"error": type(error).__name__}
        yield {
            "name": f"{family.name}/{name}",
            "tool_parser": family.tool_parser,
            "reasoning_parser": family.reasoning_parser,
            "markers": family.markers,
            "template_kwargs": family.template_kwargs,
            "prompt_token_ids": prompt_ids,
            "text": text,
            "token_ids": ids,
            "finish_reason": finish,
            "streamed": fold(deltas),
            "not_streamed": not_streamed,
        }


def fold(deltas: list[Any]) -> dict[str, Any]:
    reasoning = content = ""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for part in delta.tool_calls or ():
            call = calls.setdefault(part.index, {"name": "", "arguments": ""})
            if part.function is not None:
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    return {
        "reasoning": reasoning or None,
        "content": content or None,
        "tool_calls": [calls[index] for index in sorted(calls)],
    }


def main() -> None:
    wanted = set(sys.argv[1:])
    kept = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    lines = [line for line in kept if wanted and line["name"].split("/")[0] not in wanted]
    for family in FAMILIES:
        if not wanted or family.name in wanted:
            try:
                lines += record(family, tokenizer_of(family))
            except Exception as error:  # one family's missing dependency is not the others' business
                print(f"{family.name}: {type(error).__name__}: {error}", file=sys.stderr)
    OUT.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
