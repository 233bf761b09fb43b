"""The simulator's flags, and the command itself as a process."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path

import pytest

from proxy.simulator import Options, add_arguments, create_app, options_from
from tests.simulator.serving import MODEL


def parse(*argv: str) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return options_from(parser.parse_args(argv))


def test_defaults_are_the_dataclass() -> None:
    assert parse() == Options()


def test_every_field_has_a_flag_of_its_type() -> None:
    got = parse(
        *("models/x --host h --port 1 --served-model-name a b --script s --max-model-len 2 --max-num-seqs 3").split(),
        *("--max-logprobs 4 --vocab-size 5 --ttft 0.5 --itl 0.25 --tokens-per-event 6 --burst 7").split(),
        *("--cached-tokens 8 --lean --api-key k l --version 9 --keep-requests 10 --log-level info").split(),
        *("--coupled --dialect sglang --incremental").split(),
    )
    assert got == Options(
        *("models/x", "h", 1, ("a", "b"), "s", ("k", "l"), 2, 3, 4, 5, 0.5, 0.25, 6, 7, 8, True),
        coupled=True,
        dialect="sglang",
        incremental=True,
        version="9",
        keep_requests=10,
        log_level="info",
    )
    defaults = Options()
    assert [field.name for field in fields(Options) if getattr(got, field.name) == getattr(defaults, field.name)] == []


def test_the_model_comes_from_its_files() -> None:
    model = create_app(Options(model=MODEL)).model
    assert (model.names, model.vocab_size, model.max_model_len) == (("demo-model",), 6080, 32768)
    assert model.eos_token_ids == (6002, 6000)
    other = create_app(Options(model=MODEL, vocab_size=7_000, max_model_len=64, served_model_name=("a", "b"))).model
    assert (other.names, other.vocab_size, other.max_model_len) == (("a", "b"), 7_000, 64)


def test_without_model_files() -> None:
    model = create_app(Options()).model
    assert (model.names, model.vocab_size, model.tokenizer) == (("simulated",), 151_936, None)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        model.encode("x")


def test_as_a_process() -> None:
    code = f"from proxy.simulator import Options, run; run(Options(model={MODEL!r}, port=0))"
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("simulated engine listening on http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[-1] + "/health", timeout=5) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
