"""Incremental detokenizing equals ``tokenizer.decode``, up to a character that is not finished."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from proxy.derender.detokenizer import WindowDetokenizer, detokenizer
from proxy.derender.vocabulary import Vocabulary
from tests import derenders

REAL = ("qwen3", "gptoss", "llama3_1", "deepseek_v3")


def expected(name: str, ids: list[int]) -> str:
    """One-shot decoding, without the replacement of a character that the last ids leave unfinished."""
    text = derenders.tokenizer(name).decode(ids, skip_special_tokens=False)
    data = b"".join(derenders.vocabulary(name).piece(i) for i in ids)
    # half of a surrogate is no character, but Python's decoder waits for its third byte to say so
    if data[-2:-1] == b"\xed" and data[-1:] >= b"\xa0" and data[-1:] <= b"\xbf":
        return text.removesuffix("\ufffd\ufffd")
    for cut in (1, 2, 3):
        tail = data[-cut:]
        if tail and len(tail) == cut and 0xC2 <= tail[0] <= 0xF4 and _begins_a_character(tail):
            return text.removesuffix("\ufffd")
    return text


def _begins_a_character(tail: bytes) -> bool:
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start == 0
    return False


@pytest.mark.parametrize("name", REAL)
@hypothesis_settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_equals_decode_for_random_ids(name: str, data: st.DataObject) -> None:
    vocabulary = derenders.vocabulary(name)
    count = derenders.tokenizer(name).get_vocab_size(with_added_tokens=True)
    # bytes that are no characters on their own are rare in a vocabulary: give them their share
    fragments = [i for i in range(count) if vocabulary.texts[i] is None]
    ids = data.draw(st.lists(st.one_of(st.integers(0, count - 1), st.sampled_from(fragments)), max_size=40))
    rng = random.Random(data.draw(st.integers(0, 1000)))
    decoder = detokenizer(vocabulary, [1])
    text = "".join(decoder.push(chunk) for chunk, _ in derenders.pieces(ids, derenders.cut(len(ids), rng)))
    assert text == expected(name, ids)


@pytest.mark.parametrize("name", REAL)
def test_every_single_id_equals_decode(name: str) -> None:
    vocabulary, tokenizer = derenders.vocabulary(name), derenders.tokenizer(name)
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    decoded = tokenizer.decode_batch([[token_id] for token_id in range(count)], skip_special_tokens=False)
    differ = [i for i in range(count) if vocabulary.texts[i] is not None and vocabulary.texts[i] != decoded[i]]
    assert not differ


def test_ids_beyond_the_tokenizer_say_nothing() -> None:
    decoder = detokenizer(derenders.vocabulary("qwen3"))
    assert decoder.push([151935, 13048, 10**9]) == "Hi"
    assert decoder.push([10**9]) == ""


def test_text_comes_as_soon_as_its_character_is_complete() -> None:
    decoder = detokenizer(derenders.vocabulary("qwen3"))
    ids = derenders.tokenizer("qwen3").encode("a 🦩 b").ids
    assert [decoder.push([i]) for i in ids] == ["a", " ", "", "🦩", " b"]  # id 11162 is a space and two bytes


def test_a_token_that_is_the_replacement_character_is_text() -> None:
    (token_id,) = derenders.tokenizer("qwen3").encode("\ufffd").ids
    assert detokenizer(derenders.vocabulary("qwen3")).push([token_id]) == "\ufffd"


def test_undecidable_bytes_are_linear() -> None:
    vocabulary = derenders.vocabulary("qwen3")
    lone = next(i for i in range(256) if vocabulary.pieces[i] == b"\x98")

    def seconds(count: int) -> float:
        decoder = detokenizer(vocabulary)
        begin = time.perf_counter()
        for _ in range(count):
            assert decoder.push([lone]) == "\ufffd"
        return time.perf_counter() - begin

    short = min(seconds(4000) for _ in range(3))
    assert seconds(32000) < 8 * short * 3


def test_a_character_cut_by_the_end_is_dropped_and_one_cut_by_a_marker_is_replaced() -> None:
    vocabulary = derenders.vocabulary("qwen3")
    half = derenders.tokenizer("qwen3").encode("鰻").ids[0]
    decoder = detokenizer(vocabulary)
    assert decoder.push([half]) == ""
    assert decoder.break_off() == "\ufffd"
    assert decoder.break_off() == ""


def sentencepiece() -> Tokenizer:
    """A vocabulary as SentencePiece writes it: ▁ for a space, bytes for what it lacks, first space stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁Paris", "▁is", "▁big", "▁", "é"]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def spell(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    return [tokenizer.token_to_id(piece) for piece in pieces]


def test_sentencepiece_keeps_the_space_of_a_first_word_that_continues_a_prompt() -> None:
    tokenizer = sentencepiece()
    vocabulary = Vocabulary.load(tokenizer)
    ids = spell(tokenizer, "▁Paris", "▁is", "▁big")
    continued, alone = detokenizer(vocabulary, [5]), detokenizer(vocabulary)
    assert "".join(continued.push([i]) for i in ids) == " Paris is big"
    assert "".join(alone.push([i]) for i in ids) == "Paris is big" == tokenizer.decode(ids)


def test_sentencepiece_bytes_become_characters() -> None:
    tokenizer = sentencepiece()
    ids = spell(tokenizer, "▁is", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "é", "▁", "▁")
    decoder = detokenizer(Vocabulary.load(tokenizer), [5])
    assert [decoder.push([i]) for i in ids] == [" is", "", "", "", "😀", "é", " ", " "]
    assert tokenizer.decode(ids) == "is😀é  "


class OnlyDecode:
    """A tokenizer that offers nothing but what slow ones do: ``decode``, its vocabulary and its special ids."""

    all_special_ids = (128000,)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return str(self._inner.decode(ids, skip_special_tokens=skip_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    def get_added_vocab(self) -> dict[str, int]:
        return {"<|begin_of_text|>": 128000, "<|eot_id|>": 128009}


@pytest.fixture(scope="module")
def only_decode() -> Vocabulary:
    return Vocabulary.load(OnlyDecode(derenders.tokenizer("llama3_1")), 128256)


def test_a_tokenizer_without_a_table_is_decoded_through_a_window(only_decode: Vocabulary) -> None:
    text = "Grüße 🫠🦩 für 鰻! And then, well, that's it.\n\n  code()"
    ids = derenders.tokenizer("llama3_1").encode(text, add_special_tokens=False).ids
    for seed in range(20):
        decoder = detokenizer(only_decode, [9906, 11])
        assert isinstance(decoder, WindowDetokenizer)
        lengths = derenders.cut(len(ids), random.Random(seed))
        out = []
        for chunk, _ in derenders.pieces(ids, lengths):
            saved = decoder.save()
            decoder = WindowDetokenizer(only_decode, [])
            decoder.load(saved)
            out.append(decoder.push(chunk))
        assert "".join(out) == text


def test_a_window_gives_up_on_what_never_becomes_a_character(only_decode: Vocabulary) -> None:
    lone = derenders.vocabulary("llama3_1").pieces.index(b"\x98")
    decoder = detokenizer(only_decode, [9906])
    out = [decoder.push([lone]) for _ in range(40)]
    assert "".join(out).count("\ufffd") >= 32
    assert "x" in decoder.push(derenders.tokenizer("llama3_1").encode("xyz xyz", add_special_tokens=False).ids)


def test_special_ids_and_added_tokens_of_the_real_vocabularies() -> None:
    qwen = derenders.vocabulary("qwen3")
    assert qwen.added["<think>"] not in qwen.special
    assert qwen.added["<|im_end|>"] in qwen.special
    assert qwen.size == 151936
    assert qwen.piece(-1) == qwen.piece(10**9) == b""
    assert qwen.fingerprint != derenders.vocabulary("gptoss").fingerprint
