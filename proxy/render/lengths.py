"""How long a prompt may be and how much may follow it: the rules and the words of vLLM's render (0.33)."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.errors import RequestError
from proxy.protocol.decode import vllm_error
from proxy.render.model import Model


@dataclass(frozen=True)
class Lengths:
    """Of one request. ``max_model_len`` None: not known yet, so the engine has to check.

    ``output_limit`` is what the request asks for (None: as much as fits), named by ``output_param``.
    ``truncate``: keep that many prompt tokens, -1 as many as leave room for one. ``side`` is the one that is cut:
    right keeps the first tokens; None is the left, sparing the special tokens that a tokenizer adds.
    """

    max_model_len: int | None
    output_limit: int | None
    output_param: str
    truncate: int | None = None
    side: str | None = None

    def check(self) -> None:
        """Raise where the numbers alone rule the request out."""
        limit = self.max_model_len
        if limit is None:
            return
        if self.output_limit is not None and self.output_limit > limit:
            raise vllm_error(
                f"{self.output_param}={self.output_limit} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens.",
                self.output_param,
                self.output_limit,
            )
        if self.truncate is not None and self.truncate > limit:
            raise vllm_error(
                f"truncate_prompt_tokens={self.truncate} cannot be greater than max_model_len = {limit}. "
                "Please request a smaller truncation size.",
                "truncate_prompt_tokens",
                self.truncate,
            )

    def keep(self) -> int | None:
        """How many prompt tokens to keep; None: all."""
        if self.truncate != -1:
            return self.truncate
        if self.max_model_len is None:
            return None
        return self.max_model_len if self.output_limit == 0 else self.max_model_len - 1

    def check_text(self, text: str, model: Model) -> str:
        """``text``, cut where a prompt is truncated anyway; too many characters for any tokenization is an error.

        This bounds the tokenizer's work before it is done.
        """
        limit = self.max_model_len
        if limit is None or len(text) <= (longest := limit * model.max_chars_per_token):
            return text
        if self.truncate is None:
            raise vllm_error(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {len(text)} "
                f"characters (more than {longest} characters, which is the upper bound for {limit} input tokens). "
                "Please reduce the length of the input prompt.",
                "input_text",
                len(text),
            )
        return text[:longest] if self.side == "right" else text[-longest:]

    def encode(self, text: str, model: Model, *, add_special_tokens: bool) -> list[int]:
        """Token ids of ``text``, truncated if asked for, checked against the context length."""
        text = self.check_text(text, model)
        ids = model.encode(text, add_special_tokens=add_special_tokens)
        kept = self.keep()
        if kept is not None and len(ids) > kept:
            if self.side is None and add_special_tokens:
                return self._around_text(ids, model.encode(text, add_special_tokens=False), kept)
            return self._cut(ids, kept)
        limit = self.max_model_len
        if limit is not None and len(ids) > limit:
            # vLLM stops tokenizing one token past the limit and says so
            raise _too_long(limit, limit + 1)
        return ids

    def given(self, ids: list[int]) -> list[int]:
        """A prompt that came as ids: truncated if asked for, checked against the context length."""
        kept = self.keep()
        if kept is not None and len(ids) > kept:
            return self._cut(ids, kept)
        if self.max_model_len is not None and len(ids) > self.max_model_len:
            raise _too_long(self.max_model_len, len(ids))
        return ids

    def _cut(self, ids: list[int], kept: int) -> list[int]:
        return ids[:kept] if self.side == "right" else ids[len(ids) - kept :]

    def _around_text(self, ids: list[int], plain: list[int], kept: int) -> list[int]:
        """``ids`` with ``plain``, the text's own tokens, cut so that the special ones around them stay."""
        added = len(ids) - len(plain)
        start = next((at for at in range(added + 1) if ids[at : at + len(plain)] == plain), None)
        if start is None or kept <= added:
            return self._cut(ids, kept)
        return [*ids[:start], *self._cut(plain, kept - added), *ids[start + len(plain) :]]

    def max_tokens(self, prompt_tokens: int, default: int | None, cap: int | None) -> int | None:
        """How many tokens may be generated after ``prompt_tokens``; None: not known here.

        ``default`` stands in for a missing limit, ``cap`` bounds any. RequestError where nothing may follow.
        """
        wanted = self.output_limit if self.output_limit is not None else default
        room = None
        if self.max_model_len is not None:
            counted = prompt_tokens
            if self.truncate is not None:
                counted = min(counted, self.max_model_len if self.truncate == -1 else self.truncate)
            room = self.max_model_len - counted
        limits = [value for value in (room, wanted, cap) if value is not None]
        result = min(limits) if limits else None
        if room is not None and room < 1 and (wanted is None or wanted > 0):
            raise _no_room(self.max_model_len, prompt_tokens, self.output_param, wanted)
        if result is not None and result < 1:
            raise vllm_error(f"max_tokens must be at least 1, got {result}.", self.output_param, result)
        return result


def _no_room(limit: int | None, count: int, param: str, wanted: int | None) -> RequestError:
    asked = "any output tokens" if wanted is None else f"{param}={wanted}"
    text = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {count} input tokens, "
        f"which leaves no room for {asked}. Please reduce the length of the input prompt."
    )
    return vllm_error(text, param) if wanted is None else vllm_error(text, param, wanted)


def _too_long(limit: int, count: int) -> RequestError:
    least = "at least " if count == limit + 1 else ""
    return vllm_error(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {least}{count} input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        "prompt.",
        "input_tokens",
        count,
    )
