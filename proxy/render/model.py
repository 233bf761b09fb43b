"""What the checkpoint's files say: tokenizer, vocabulary, EOS ids, defaults of the sampling parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLING_DEFAULTS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "max_new_tokens",
    "skip_special_tokens",
)


@dataclass(frozen=True)
class Model:
    """A checkpoint, as far as prompts need it.

    ``vocab_size`` is the model's (config.json), which may exceed the tokenizer's: the engine indexes its logits by it.
    ``eos_token_ids``: the tokenizer's first, then generation_config's. ``sampling_defaults``: those of
    generation_config.json, with ``max_tokens`` for ``max_new_tokens``.
    """

    tokenizer: Any
    model_type: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    sampling_defaults: dict[str, Any]
    max_chars_per_token: int
    caps_max_tokens: bool = False

    @classmethod
    def load(
        cls, model: str, *, tokenizer: str | None, generation_config: str = "auto", trust_remote_code: bool = False
    ) -> Model:
        """From a directory or hub id. OSError or ValueError where there is no usable tokenizer.

        ``generation_config``: ``auto`` is the model's, ``vllm`` takes no sampling defaults from it, anything else
        names the directory of another one, whose ``max_new_tokens`` then also caps what requests ask for.
        """
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(tokenizer or model, trust_remote_code=trust_remote_code)
        if loaded.is_fast:  # a request's limits are ours to apply: the tokenizer's settings are shared by all
            loaded.backend_tokenizer.no_truncation()
            loaded.backend_tokenizer.no_padding()
        config = _json_file(model, "config.json")
        own = _json_file(model, "generation_config.json")
        foreign = generation_config not in ("auto", "vllm")
        chosen = _json_file(generation_config, "generation_config.json") if foreign else own
        defaults = {} if generation_config == "vllm" else chosen
        vocab = loaded.get_vocab()
        size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
        return cls(
            tokenizer=loaded,
            model_type=str(config.get("model_type", "")),
            vocab_size=size if isinstance(size, int) else max(vocab.values()) + 1,
            eos_token_ids=_eos(loaded.eos_token_id, (chosen if foreign else own).get("eos_token_id")),
            sampling_defaults=_sampling_defaults(defaults),
            max_chars_per_token=max(map(len, vocab)),
            caps_max_tokens=foreign,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of ``text``. Native code that releases the GIL, where the tokenizer is a fast one."""
        if self.tokenizer.is_fast:
            batch = self.tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = batch[0].ids
            return ids
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def offsets(self, text: str, *, add_special_tokens: bool) -> list[tuple[int, int]] | None:
        """Character span of each token of ``text``; None for a tokenizer that does not know them."""
        if not self.tokenizer.is_fast:
            return None
        encoding = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return list(encoding.offsets)


def _json_file(model: str, name: str) -> dict[str, Any]:
    path: str | Path | None = Path(model) / name
    if not Path(model).is_dir():
        from transformers.utils.hub import cached_file

        path = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    if path is None or not Path(path).is_file():
        return {}
    value = json.loads(Path(path).read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def _eos(*given: object) -> tuple[int, ...]:
    ids: list[int] = []
    for value in given:
        ids += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]
    return tuple(dict.fromkeys(ids))


def _sampling_defaults(config: dict[str, Any]) -> dict[str, Any]:
    defaults = {name: config[name] for name in SAMPLING_DEFAULTS if config.get(name) is not None}
    if "max_new_tokens" in defaults:
        defaults["max_tokens"] = defaults.pop("max_new_tokens")
    return defaults
