"""vLLM's decode window: what ours carries, vLLM's algorithm goes on with, and the other way round."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from proxy.derender.derenderer import ChatSettings, Derenderer
from proxy.derender.window import Window, unfinished
from tests import derenders

PIECES = ["Hello", " world", "é", " 鰻", "😀", "🏽", "\n\n", "日本語", " naïve", "<|im_end|>", "ﷺ", "\u200d", "नमस्ते"]


class Theirs:
    """``detokenize_incrementally`` of vLLM, for byte-level tokenizers, carried as its derender state carries it."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[str], prefix: int, read: int) -> None:
        self.tokenizer = tokenizer
        self.tokens, self.prefix, self.read = tokens, prefix, read
        self.special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    def push(self, token_id: int) -> str:
        new = [] if token_id in self.special else [self.tokenizer.id_to_token(token_id) or ""]
        output = self.tokens + new
        decode = self.tokenizer.decoder.decode
        before = decode(output[self.prefix : self.read]) if output[self.prefix : self.read] else ""
        whole = decode(output[self.prefix :]) if output[self.prefix :] else ""
        text = ""
        if len(whole) > len(before) and not whole.endswith("\ufffd"):
            text = whole[len(before) :]
            self.prefix, self.read = self.read, len(output)
        self.tokens = output[self.prefix :]
        self.read -= self.prefix
        self.prefix = 0
        return text


def ids_of(rng: random.Random) -> list[int]:
    tokenizer = derenders.tokenizer("qwen3")
    return [
        i for _ in range(rng.randint(1, 12)) for i in tokenizer.encode(rng.choice(PIECES), add_special_tokens=False).ids
    ]


@pytest.mark.parametrize("prompt", [[], [9707, 1879]])
def test_a_stream_moves_to_vllm_and_back_at_any_token(prompt: list[int]) -> None:
    vocabulary = derenders.vocabulary("qwen3")
    opener = Derenderer(vocabulary)

    def opened():
        return opener.text(ChatSettings(), request_id="r", prompt_token_ids=prompt)

    def said(stream, token_id: int) -> str:
        return "".join(delta.content or "" for delta in stream.feed([token_id]))

    for seed in range(150):
        rng = random.Random(seed)
        ids = ids_of(rng)
        stream, whole = opened(), ""
        for token_id in ids:
            whole += said(stream, token_id)
        for cut in range(len(ids) + 1):
            window, ours, text = Window(vocabulary, True, prompt), opened(), ""
            for token_id in ids[: cut - unfinished(vocabulary, ids[:cut])]:
                text += said(ours, token_id)
            window.push(ids[:cut])
            # there ...
            theirs = Theirs(derenders.tokenizer("qwen3"), list(window.tokens), 0, window.read)
            middle = ids[cut : cut + 2]
            text += "".join(map(theirs.push, middle))
            # ... and back
            carried = Window.carried(vocabulary, True, theirs.tokens, theirs.prefix, theirs.read)
            again = opened()
            again.resume(carried.pending, False)
            for token_id in ids[cut + 2 :]:
                text += said(again, token_id)
            assert text.rstrip("\ufffd") == whole.rstrip("\ufffd"), (seed, cut)


def test_tokens_that_end_in_a_character() -> None:
    """Whatever the cuts, what is held back is what vLLM holds back: the tokens since the last whole character."""
    vocabulary = derenders.vocabulary("qwen3")
    for seed in range(100):
        ids = ids_of(random.Random(seed))
        theirs = Theirs(derenders.tokenizer("qwen3"), [], 0, 0)
        for cut, token_id in enumerate(ids, 1):
            theirs.push(token_id)
            assert unfinished(vocabulary, ids[:cut]) == len(theirs.tokens) - theirs.read


def test_primed_with_the_prompt() -> None:
    vocabulary = derenders.vocabulary("qwen3")
    ids = list(derenders.tokenizer("qwen3").encode("one two three four five six seven").ids)
    window = Window(vocabulary, True, ids)
    assert (window.tokens, window.read) == (["Ġthree", "Ġfour", "Ġfive", "Ġsix", "Ġseven"], 5)


def test_byte_fallback_tokens_are_spelled_as_tokenizers_do() -> None:
    from proxy.derender.vocabulary import Vocabulary

    vocabulary = Vocabulary([b" a", b"\xe9"], added={}, special=(), byte_level=False)
    assert [vocabulary.spell(data) for data in (b" a b", b"\xe9\x9b")] == ["▁a▁b", "<0xE9><0x9B>"]
    for data in (b" a b", b"\xe9\x9b", "é".encode()):
        assert vocabulary.token_bytes(vocabulary.spell(data)) == data
