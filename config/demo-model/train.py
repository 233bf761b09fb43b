"""Makes the tokenizer of the demo model: byte-level BPE over the text that ships with Python, ChatML tokens on top.

    python config/demo-model/train.py [DIRECTORY]

The text is the documentation inside the standard library (PSF licence) and the samples below, so nothing is
downloaded. The same Python version gives the same files, byte for byte. There are no weights: the scripted engine of
``derender-proxy simulate`` stands in for the model.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BASE_VOCABULARY = 6_000  # ids of bytes and merges; the added tokens follow
MODEL_VOCABULARY = 6_080  # the model's, padded to a multiple of 64 as usual: the last ids have no token
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Not special, as in Qwen3: decoding with skip_special_tokens keeps them, the parsers need them.
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MODULES = (
    *("argparse", "ast", "asyncio", "collections", "concurrent", "csv", "datetime", "decimal", "difflib", "email"),
    *("fractions", "functools", "heapq", "http", "inspect", "json", "logging", "pathlib", "random", "statistics"),
    *("string", "subprocess", "textwrap", "typing", "unittest", "urllib", "zipfile"),
)
# What the library's prose is short of: tool calls, other scripts, emoji.
SAMPLES = (
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2, "unit": "celsius"}}\n',
    '{"type": "function", "function": {"name": "search", "description": "Search the web", "parameters": {"type": '
    '"object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}\n',
    "The user wants to know the weather. I should call the tool, then answer. Let me think about it step by step.\n",
    "Grüße aus Köln, schöne Straße. Où est la bibliothèque ? ¿Qué tal, señor? Привет, как дела? "
    "你好，世界。こんにちは。\n",
    "안녕하세요 세계. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया. 👋 🌍 🚀 👩‍👩‍👧 🇫🇷 ☀️ → ≤ ≥ € £\n",
)
# One word with what is before it, three digits, runs of punctuation, blanks: the usual cut before merging.
CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def library_text() -> Iterator[str]:
    """The docstrings of MODULES and the language reference that ``help()`` shows."""
    root = Path(ast.__file__).parent
    for name in MODULES:
        single = root / f"{name}.py"
        for file in [single] if single.exists() else sorted((root / name).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield ast.get_docstring(node) or ""
    for topic in sorted(topics):
        yield topics[topic]


def train(texts: Iterable[str], size: int = BASE_VOCABULARY) -> Tokenizer:
    """A tokenizer of ``size`` ids (fewer if the text has no more pairs), then SPECIAL and MARKERS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CUT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    return tokenizer


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """All files but the chat template, which is written by hand."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL + MARKERS}
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 32768,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
        },
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": MODEL_VOCABULARY,
            "max_position_embeddings": 32768,
            "eos_token_id": ids["<|im_end|>"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
        },
        "generation_config.json": {
            "do_sample": True,
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "pad_token_id": ids["<|endoftext|>"],
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 20,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    write(train([*SAMPLES * 20, *library_text()]), target)
