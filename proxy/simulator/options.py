"""Settings of the simulated engine, as a dataclass and as command-line flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Options:
    """``ttft`` and ``itl`` in seconds: to the first event, and between two sends of ``burst`` events each.

    ``model`` is a directory with tokenizer files; without one the engine knows no text and has Qwen3's vocabulary
    size and EOS ids. Flags are named after the fields.
    """

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8200
    served_model_name: tuple[str, ...] = ()
    script: str | None = None
    api_key: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_logprobs: int = 20
    vocab_size: int | None = None
    ttft: float = 0.0
    itl: float = 0.0
    tokens_per_event: int = 1
    burst: int = 1
    cached_tokens: int | None = None
    lean: bool = False
    coupled: bool = False
    dialect: str = "vllm"
    incremental: bool = False
    version: str = "0.33.0"
    keep_requests: int = 1_000
    log_level: str = "warning"


_HELP = {
    "host": "address to listen on",
    "port": "port to listen on (0: a free one, printed)",
    "served_model_name": "names of the model (default: that of its directory)",
    "script": "what to answer: a file of JSON lines or YAML",
    "api_key": "keys that are accepted (default: no key is asked for)",
    "max_model_len": "prompt and answer together, in tokens (default: the model's)",
    "max_num_seqs": "largest n",
    "max_logprobs": "largest logprobs",
    "vocab_size": "ids below this exist (default: the model's)",
    "ttft": "seconds to the first event",
    "itl": "seconds between two sends",
    "tokens_per_event": "token ids in one event",
    "burst": "events in one send",
    "cached_tokens": "report this many prompt tokens as cached (at most all)",
    "lean": "events as vLLM's Rust frontend writes them: no nulls, ids without prefix",
    "coupled": "answer chat and completions too, as an engine with its own frontend",
    "dialect": "vllm, sglang, vllm-completions, sglang-completions or tensorrt-llm: whom it plays",
    "incremental": "as SGLang with --incremental-streaming-output: new ids only",
    "version": "what /version says",
    "keep_requests": "how many requests /simulator/requests remembers",
    "log_level": "uvicorn's",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``derender-proxy simulate``."""
    parser.add_argument("model", nargs="?", help="directory with tokenizer.json and config.json")
    for field in fields(Options):
        if field.name == "model":
            continue
        flag, default = "--" + field.name.replace("_", "-"), field.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=_HELP[field.name])
        elif isinstance(default, tuple):
            parser.add_argument(flag, nargs="+", default=default, help=_HELP[field.name])
        else:
            kind = int if "int" in str(field.type) else float if field.type == "float" else str
            parser.add_argument(flag, type=kind, default=default, help=_HELP[field.name])


def options_from(args: argparse.Namespace) -> Options:
    """Options out of parsed flags; those of other commands are passed over."""
    values: dict[str, Any] = {
        field.name: getattr(args, field.name) for field in fields(Options) if hasattr(args, field.name)
    }
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Options(**values)
