"""Sampling parameters of a request, as vLLM's render (0.33) maps them: the request, else the model, else OpenAI.

One mapping, two outputs: what a token-only engine gets, and what the ``/render`` routes answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from proxy.errors import RequestError
from proxy.protocol.decode import vllm_error
from proxy.protocol.openai import ChatCompletionRequest, CompletionRequest, GenerationFields

OPENAI_DEFAULTS = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
_GREEDY = 1e-5  # below it vLLM samples greedily
_LEAST_TEMPERATURE = 1e-2  # above greedy, lower ones overflow
_STREAMED, _WHOLE = 1, 2  # vLLM's RequestOutputKind
# an engine without text has no use for these
_TEXT_ONLY = frozenset({
    "stop", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "output_kind",
    "skip_clone", "skip_reading_prefix_cache", "bad_words", "stream_interval",
})  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """What a model can take: ids below ``vocab_size``, up to ``max_logprobs`` (-1: all) candidates per token."""

    vocab_size: int
    max_logprobs: int

    def check(self, request: GenerationFields) -> None:
        """Raise RequestError for ids and counts out of bounds."""
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            self.check_ids(getattr(request, name) or (), name)
        for key in request.logit_bias or ():
            if not 0 <= int(key) < self.vocab_size:
                raise self._out_of_vocabulary([int(key)], "logit_bias", "logit_bias")
        most = self.vocab_size if self.max_logprobs == -1 else self.max_logprobs
        counts = (("sample", _logprobs_param(request), request_logprobs(request)),
                  ("prompt", "prompt_logprobs", request.prompt_logprobs))  # fmt: skip
        for kind, param, count in counts:
            wanted = self.vocab_size if count == -1 else count or 0
            if wanted > most:
                raise vllm_error(
                    f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {most}", param, wanted
                )
        if len(request.logprob_token_ids or ()) > most:
            raise RequestError(f"`logprob_token_ids` may have at most {most} ids.", param="logprob_token_ids")

    def check_ids(self, ids: Collection[int], param: str, shown: str | None = None) -> None:
        """Ids of the vocabulary only; ``shown`` names them in the message."""
        if ids and max(ids) >= self.vocab_size:
            index = next(i for i, value in enumerate(ids) if value >= self.vocab_size)
            # a number of thousands of digits has no place in a message, nor can Python print it
            bad = [value for value in ids if self.vocab_size <= value < 2**63][:8]
            raise self._out_of_vocabulary(bad, shown or param, f"{param}[{index}]")

    def _out_of_vocabulary(self, ids: list[int], name: str, param: str) -> RequestError:
        shown = ids or "(too large)"
        return RequestError(
            f"token_id(s) {shown} in {name} contain out-of-vocab token ids. Vocabulary size: {self.vocab_size}",
            param=param,
        )


def request_logprobs(request: GenerationFields) -> int | None:
    """How many candidates per sampled token; None: no logprobs."""
    assert isinstance(request, ChatCompletionRequest | CompletionRequest)
    return request.wanted_logprobs


def _logprobs_param(request: GenerationFields) -> str:
    return "top_logprobs" if isinstance(request, ChatCompletionRequest) else "logprobs"


def mapped(
    request: GenerationFields,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    structured_outputs: dict[str, Any] | None,
    keep_special_tokens: bool,
) -> dict[str, Any]:
    """All that vLLM's render puts into ``sampling_params``, in its order; floats as floats, ids as integers.

    ``defaults`` are the model's; ``keep_special_tokens``: a parser has to see them. RequestError for combinations
    that need the final values.
    """
    params: dict[str, Any] = {}
    n = request.n or 1
    if n != 1:
        params["n"] = n
    for name, neutral in OPENAI_DEFAULTS.items():
        value = getattr(request, name)
        value = defaults.get(name, neutral) if value is None else value
        params[name] = value if name == "top_k" else float(value)
    if params["temperature"] < _GREEDY:
        if n > 1:
            raise RequestError(f"n must be 1 when using greedy sampling, got {n}.", param="n")
        for name in ("top_p", "top_k", "min_p"):
            del params[name]
    else:
        params["temperature"] = max(params["temperature"], _LEAST_TEMPERATURE)
        if params["top_k"] == 0:
            del params["top_k"]
    if max_tokens is not None and request.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {request.min_tokens}.",
            param="min_tokens",
        )
    prompt_logprobs = request.prompt_logprobs
    if prompt_logprobs is None and getattr(request, "echo", False):
        prompt_logprobs = getattr(request, "top_logprobs", None) if _is_chat(request) else request_logprobs(request)
    optional: dict[str, Any] = {
        "watermarking": request.watermarking,
        "seed": None if request.seed == -1 else request.seed,
        "stop": [request.stop] if isinstance(request.stop, str) else request.stop or [],
        "stop_token_ids": list(dict.fromkeys(request.stop_token_ids or ())),
        "ignore_eos": request.ignore_eos or None,
        "max_tokens": max_tokens,
        "min_tokens": request.min_tokens or None,
        "logprobs": None if request.logprob_token_ids else request_logprobs(request),
        "prompt_logprobs": prompt_logprobs,
        "logprob_token_ids": request.logprob_token_ids or None,
        "skip_special_tokens": _skip_special(request, defaults, keep_special_tokens),
        "spaces_between_special_tokens": None if request.spaces_between_special_tokens else False,
        "include_stop_str_in_output": request.include_stop_str_in_output or None,
        "output_kind": _STREAMED if request.stream else _WHOLE,
        "stream_interval": request.stream_interval,
        "skip_clone": True,
        "structured_outputs": structured_outputs,
        "logit_bias": _logit_bias(request),
        "allowed_token_ids": request.allowed_token_ids,
        "extra_args": request.vllm_xargs or None,
        "bad_words": list(dict.fromkeys(request.bad_words)),
        "skip_reading_prefix_cache": prompt_logprobs is not None,
        "thinking_token_budget": None if request.thinking_token_budget == -1 else request.thinking_token_budget,
        "repetition_detection": request.repetition_detection,
    }
    params.update((name, value) for name, value in optional.items() if value is not None)
    return params


def for_engine(params: dict[str, Any], *, max_tokens_given: bool, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """``params`` of ``mapped`` as a token-only engine wants them.

    No stop strings; the EOS ids as stop ids, unless they are to be ignored; ``max_tokens`` only if somebody asked
    for it, since the engine fills a missing one with all that fits.
    """
    result = {name: value for name, value in params.items() if name not in _TEXT_ONLY}
    if not max_tokens_given:
        result.pop("max_tokens", None)
    stop_ids = result["stop_token_ids"]
    if not params.get("ignore_eos"):
        stop_ids = list(dict.fromkeys([*stop_ids, *eos_token_ids]))
    result["stop_token_ids"] = stop_ids
    if params["bad_words"]:  # only an engine with a tokenizer gets here with some
        result["bad_words"] = params["bad_words"]
    if constraint := params.get("structured_outputs"):
        result["structured_outputs"] = {key: value for key, value in constraint.items() if value and key[0] != "_"}
    return result


def _is_chat(request: GenerationFields) -> bool:
    return isinstance(request, ChatCompletionRequest)


def _skip_special(request: GenerationFields, defaults: dict[str, Any], keep: bool) -> bool | None:
    """False or None (vLLM leaves out the default, True)."""
    skip = defaults.get("skip_special_tokens", True) if request.skip_special_tokens is None else None
    skip = request.skip_special_tokens if skip is None else skip
    return False if keep or not skip else None


def _logit_bias(request: GenerationFields) -> dict[str, float] | None:
    if request.logit_bias is None:
        return None
    return {str(int(key)): min(100.0, max(-100.0, float(value))) for key, value in request.logit_bias.items()}
