"""What the simulated engine knows of its model, read from the files of a checkpoint directory.

As a real ``--tokens-only`` engine it takes EOS ids from ``generation_config.json`` alone. The tokenizer is for scripts
that are given as text, and for nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from proxy.simulator.options import Options

# Without model files: the sizes of Qwen3.
VOCAB_SIZE = 151_936
EOS_TOKEN_IDS = (151_645, 151_643)
MAX_MODEL_LEN = 32_768


@dataclass(frozen=True)
class Model:
    """``names[0]`` is the served name; ``eos_token_ids[0]`` ends scripts given as text."""

    names: tuple[str, ...]
    root: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, markers as single ids. Raises ValueError without a tokenizer."""
        if self.tokenizer is None:
            raise ValueError("a text needs a model directory with a tokenizer.json")
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of a prompt, markers included; empty without a tokenizer."""
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return text


def load(options: Options) -> Model:
    """The model that ``options`` name. Raises OSError or ValueError for files that cannot be read."""
    config: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    tokenizer = None
    if options.model is not None:
        directory = Path(options.model)
        config = _read(directory / "config.json")
        generation = _read(directory / "generation_config.json")
        if (directory / "tokenizer.json").exists():
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text_config = config.get("text_config") or config
    eos = generation.get("eos_token_id", EOS_TOKEN_IDS if options.model is None else ())
    names = options.served_model_name or (Path(options.model).resolve().name if options.model else "simulated",)
    size = options.vocab_size or text_config.get("vocab_size") or (tokenizer and tokenizer.get_vocab_size())
    return Model(
        names=names,
        root=names[0],
        vocab_size=size or VOCAB_SIZE,
        max_model_len=options.max_model_len or text_config.get("max_position_embeddings") or MAX_MODEL_LEN,
        eos_token_ids=(eos,) if isinstance(eos, int) else tuple(eos),
        tokenizer=tokenizer,
    )


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
