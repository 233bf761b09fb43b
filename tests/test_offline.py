"""The offline command over real captures: chunks, the message, and the explanation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests import derenders
from tests.tokenizers import tokenizer_dir

CAPTURES = Path(__file__).parent / "data" / "captures"
TOOL = CAPTURES / "coupled033_tool_generate_tokens_stream.txt"
STREAMED = [TOOL, CAPTURES / "rs033_content_generate_tokens_stream.txt"]


def run(capsys: Any, *arguments: str | Path, code: int = 0) -> tuple[list[str], str]:
    """The lines it writes, and its notes."""
    with pytest.raises(SystemExit) as stopped:
        main(["derender", *map(str, arguments)])
    captured = capsys.readouterr()
    assert stopped.value.code == code, captured.err
    return captured.out.splitlines(), captured.err


@pytest.fixture
def model() -> Path:
    return tokenizer_dir("qwen3")


@pytest.mark.parametrize("capture", STREAMED, ids=lambda path: path.stem)
def test_chunks_fold_to_the_assembled_message(capsys: Any, model: Path, capture: Path) -> None:
    lines, _ = run(capsys, model, capture)
    content = arguments = ""
    finish = None
    for line in lines:
        choice = json.loads(line)["choices"][0]
        content += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            arguments += call["function"].get("arguments") or ""
        finish = choice["finish_reason"] or finish
    (whole,), _ = run(capsys, model, capture, "--assembled")
    answer = json.loads(whole)
    assert (answer["message"]["content"] or "") == content
    assert "".join(call["function"]["arguments"] for call in answer["message"]["tool_calls"]) == arguments
    assert answer["finish_reason"] == finish


def test_explains_each_chunk(capsys: Any, model: Path) -> None:
    lines, notes = run(capsys, model, TOOL, "--explain")
    text = "\n".join(lines)
    assert 'tokens   151657="<tool_call>"\n  state    content -> call' in text
    assert "emitted  call 0 get_weather" in text
    assert 'held     "' in text
    assert "auto: reasoning parser qwen3" in notes


def test_reads_standard_input_and_one_json_answer(tmp_path: Path, model: Path) -> None:
    ids = derenders.tokenizer("qwen3").encode("Hello.<|im_end|>").ids
    body = {"request_id": "r", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}
    command = [sys.executable, "-m", "proxy.cli", "derender", str(model), "--assembled", "--reasoning-parser", "none"]
    done = subprocess.run(command, input=json.dumps(body, indent=1), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["message"]["content"] == "Hello."


def test_the_request_says_tools_and_prompt(capsys: Any, tmp_path: Path, model: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": "none"}))
    (line,), _ = run(capsys, model, TOOL, "--request", request, "--assembled")
    message = json.loads(line)["message"]
    assert message["tool_calls"] == []
    assert "<tool_call>" in message["content"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither events"),
        ("data: {\n\n", "event 1 is no answer"),
        ('data: {"error": {"message": "broken", "code": 500}}\n\n', "event 1 is an error: broken"),
        ('{"choices": []}', "no choices"),
        ('data: {"choices": [{"index": 0, "token_ids": [1]}]}\n\n', "ends before choice 0 has"),
    ],
)
def test_a_capture_that_is_none(capsys: Any, tmp_path: Path, model: Path, text: str, said: str) -> None:
    file = tmp_path / "capture"
    file.write_text(text)
    assert said in run(capsys, model, file, code=1)[1]


def test_bad_usage_is_64(capsys: Any, model: Path, tmp_path: Path) -> None:
    assert "there are: " in run(capsys, model, TOOL, "--tool-call-parser", "nope", code=64)[1]
    assert "response_template" in run(capsys, model, TOOL, "--tool-call-parser", "hf", code=64)[1]
    assert "cannot read" in run(capsys, model, tmp_path / "none", code=64)[1]
    assert "cannot be loaded" in run(capsys, tmp_path, TOOL, code=64)[1]
    assert "list of integers" in run(capsys, model, TOOL, "--prompt-token-ids", "x", code=64)[1]
