"""``/v1/completions`` with token ids in the simulated engine, as vLLM, SGLang and TensorRT-LLM answer it."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Self

from proxy.simulator.frames import Writer, dumps, logprob_entry, spans
from proxy.simulator.model import Model
from proxy.simulator.options import Options
from proxy.simulator.script import Answer, Behaviour
from proxy.simulator.validation import Query, Refusal

DEFAULT_MAX_TOKENS = 16
_PARAMS = (
    *("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed"),
    *("repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "logprobs", "stop"),
)
_VLLM = ("allowed_token_ids", "bad_words", "structured_outputs", "prompt_logprobs")
_TENSORRT = frozenset({
    *_PARAMS, "model", "prompt", "stream", "stream_options", "detokenize", "include_stop_str_in_output",
    "skip_special_tokens", "thinking_token_budget", "response_format", "priority", "user", "suffix", "echo",
}) - {"n_best"}  # fmt: skip


def _translated(body: dict[str, Any], names: tuple[str, ...], xargs: str | None, request_id: str) -> dict[str, Any]:
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
        raise Refusal("This prompt cannot be simulated: one list of ids is.", param="prompt")
    params = {name: body[name] for name in names if body.get(name) is not None}
    if "max_tokens" not in body:
        params["max_tokens"] = DEFAULT_MAX_TOKENS
    if xargs is not None and body.get(xargs):
        params["extra_args"] = body[xargs]
    return {
        "model": body.get("model"),
        "token_ids": prompt,
        "sampling_params": params,
        "stream": bool(body.get("stream")),
        "stream_options": body.get("stream_options"),
        "request_id": body.get(request_id),
    }


def from_vllm(body: dict[str, Any]) -> dict[str, Any]:
    """As a request of vLLM's generate. Raises Refusal."""
    return _translated(body, (*_PARAMS, *_VLLM), "vllm_xargs", "request_id")


def from_sglang(body: dict[str, Any]) -> dict[str, Any]:
    """The same. An engine that is asked for what only vLLM has would drop it unseen; here it is an error."""
    if unknown := body.keys() & {*_VLLM, "vllm_xargs", "return_tokens_as_token_ids"}:
        raise Refusal(f"SGLang's completions do not have {sorted(unknown)}")
    if (body.get("n") or 1) > 1 and isinstance(body.get("rid"), str):
        raise Refusal("The rid should be a list for batch processing.")
    return _translated(body, _PARAMS, "custom_params", "rid")


def from_tensorrt(body: dict[str, Any]) -> dict[str, Any]:
    """The same; TensorRT-LLM refuses every field that it does not know, and null for some."""
    for name in body:
        if name not in _TENSORRT:
            raise Refusal(f"[{{'type': 'extra_forbidden', 'loc': ('body', '{name}'), 'msg': 'Extra inputs are'}}]")
    for name in ("n", "top_k", "min_p", "ignore_eos", "min_tokens"):
        if name in body and body[name] is None:
            raise Refusal(f"[{{'type': 'type_error', 'loc': ('body', '{name}')}}]")
    if not isinstance(body.get("model"), str):
        raise Refusal("[{'type': 'missing', 'loc': ('body', 'model')}]")
    told = _translated(body, tuple(name for name in _PARAMS if name != "logprobs"), None, "")
    if body.get("max_tokens") is None:
        told["sampling_params"].pop("max_tokens", None)
    if body.get("logprobs"):  # 0 is none
        told["sampling_params"]["logprobs"] = body["logprobs"]
    told["model"] = None  # any name will do
    return told


def flat_error(refusal: Refusal) -> bytes:
    return dumps({"object": "error", **refusal.error})


class CompletionsWriter(Writer):
    """What the three have in common."""

    stop_field: ClassVar[str] = "stop_reason"
    names_ids: ClassVar[bool] = False

    body: dict[str, Any]
    model: Model

    @classmethod
    def for_query(
        cls, body: dict[str, Any], query: Query, behaviour: Behaviour, model: Model, options: Options
    ) -> Self:
        writer = cls(
            prompt=query.token_ids,
            vocab_size=model.vocab_size,
            logprobs=query.params.get("logprobs"),
            continuous=query.continuous_usage,
            cached=behaviour.cached_tokens,
            pad_bytes=behaviour.pad_bytes,
            finish_alone=behaviour.finish_alone,
        )
        writer.body, writer.model = body, model
        return writer

    # -- what differs --------------------------------------------------------------------------------------

    def shown_ids(self, ids: list[int], last: Answer | None) -> list[int] | None:
        """The ids of an event; ``last``: the answer that it ends."""
        return ids if self.body.get("return_token_ids") else None

    def shown_text(self, ids: list[int]) -> str:
        tokenizer = self.model.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(ids, skip_special_tokens=True))

    def cause(self, answer: Answer) -> int | str | None:
        """As an engine with a tokenizer tells it: nothing for the EOS."""
        return None if answer.stop_reason in self.model.eos_token_ids else answer.stop_reason

    # -- events --------------------------------------------------------------------------------------------

    def head(self, engine_id: str) -> bytes:
        made = {"id": engine_id, "object": "text_completion", "created": int(time.time()), "model": self._name}
        return b"data: " + dumps(made)[:-1] + b","

    @property
    def _name(self) -> str:
        return self.body.get("model") or self.model.names[0]

    def tails(self, index: int, answer: Answer) -> list[bytes]:
        done = 0
        tails = []
        for length, last in spans(answer.lengths, self.finish_alone):
            ids = answer.ids[done : done + length]
            body: dict[str, Any] = {"choices": [self._choice(index, ids, done, answer if last else None)]}
            done += length
            if self.continuous:
                body["usage"] = self.usage([done], nulls=True)
            if self.pad_bytes:
                body["padding"] = "x" * self.pad_bytes
            tails.append(dumps(body)[1:] + b"\n\n")
        return tails

    def _choice(self, index: int, ids: list[int], start: int, last: Answer | None) -> dict[str, Any]:
        shown = self.shown_ids(ids, last)
        choice: dict[str, Any] = {
            "index": index,
            "text": self.shown_text(ids),
            "logprobs": None,
            "finish_reason": None if last is None else last.finish_reason,
            self.stop_field: None if last is None else self.cause(last),
            "token_ids": shown,
        }
        if self.k is not None:
            count = len(ids if shown is None else shown)
            entries = [logprob_entry(token, start + at, self.k, self.vocab_size) for at, token in enumerate(ids)]
            choice["logprobs"] = self._logprobs(entries[:count])
        return choice

    def _logprobs(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "text_offset": [0] * len(entries),
            "tokens": [self._token(entry["token_id"]) for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {self._token(top["token_id"]): top["logprob"] for top in entry["top_logprobs"]} for entry in entries
            ],
        }

    def _token(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.names_ids else self.shown_text([token_id])

    def usage_tail(self, counts: list[int]) -> bytes:
        return dumps({"choices": [], "usage": self.usage(counts, nulls=False)})[1:] + b"\n\n"

    def abort_tail(self, index: int, total: int) -> bytes:
        return dumps({"choices": [self._choice(index, [], total, Answer([], "abort", None, []))]})[1:] + b"\n\n"

    def full(self, engine_id: str, model: str, answers: list[Answer], prompt_logprobs: int | None) -> bytes:
        choices = [self._choice(index, answer.ids, 0, answer) for index, answer in enumerate(answers)]
        if prompt_logprobs is not None:
            for choice in choices:
                choice["prompt_logprobs"] = self.prompt_logprobs(prompt_logprobs)
        usage = self.usage([len(answer.ids) for answer in answers], nulls=True)
        return self.head(engine_id)[6:] + dumps({"choices": choices, "usage": usage})[1:]


class VLLMWriter(CompletionsWriter):
    @property
    def names_ids(self) -> bool:  # type: ignore[override]
        return bool(self.body.get("return_tokens_as_token_ids"))


class SGLangWriter(CompletionsWriter):
    stop_field = "matched_stop"

    def cause(self, answer: Answer) -> int | str | None:
        return answer.stop_reason

    def error_body(self, refusal: Refusal) -> bytes:
        return flat_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        return b"data: " + dumps({"error": {"object": "error", **refusal.error}}) + b"\n\n"


class TensorRTWriter(CompletionsWriter):
    def shown_ids(self, ids: list[int], last: Answer | None) -> list[int] | None:
        if self.body.get("detokenize") is not False:
            return None
        if last is not None and last.finish_reason == "stop" and not self.body.get("include_stop_str_in_output"):
            return ids[:-1]
        return ids

    def shown_text(self, ids: list[int]) -> str:
        return "" if self.body.get("detokenize") is False else super().shown_text(ids)

    def error_body(self, refusal: Refusal) -> bytes:
        return flat_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        return b"data: " + flat_error(refusal) + b"\n\n"
