"""Checks of the generation fields, with the ranges and the words of vLLM 0.33 where it has a rule."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxy.errors import RequestError
from proxy.protocol.decode import vllm_error

if TYPE_CHECKING:
    from proxy.protocol.openai import GenerationFields

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_CACHE_SALT_LENGTH = 128  # vLLM's bound: salts reach cache back ends as keys
MAX_REQUEST_ID_LENGTH = 256  # ids travel in headers and logs
MAX_SCHEMA_NESTING = 64  # vLLM's: a grammar's cost grows steeply with nesting
STRUCTURED_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_ID = re.compile(r"-?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request may ask for, each named by the field it bounds."""

    max_n: int = 128  # OpenAI's bound; each choice is a live stream
    max_prompts: int = 1024  # vLLM's
    max_stop_strings: int = 16  # OpenAI and vLLM take 4; clients of older servers send more, and matching is ours
    max_stop_length: int = 1024  # characters held back per choice, at worst
    max_bad_words: int = 1024  # vLLM's order of magnitude


DEFAULT_LIMITS = Limits()


def check_ids(ids: list[int], param: str) -> None:
    """Raise unless all are non-negative integers; the struct has already refused other types."""
    if ids and min(ids) < 0:
        index = next(i for i, value in enumerate(ids) if value < 0)
        raise RequestError(f"`{param}[{index}]` must not be negative.", param=f"{param}[{index}]")


def check_output_limit(value: int, param: str) -> None:
    """``max_tokens`` is at least 1. How far it may go is the renderer's to say."""
    if value < 1:
        raise vllm_error(f"max_tokens must be at least 1, got {value}.", param, value)


def prompt_list(prompt: str | list[Any] | None, limits: Limits) -> list[str] | list[list[int]]:
    """``prompt`` of a completion as a list of texts, or of id lists; empty ones are refused."""
    if prompt is None or prompt == "":
        raise vllm_error("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise vllm_error("You must pass at least one prompt", "prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        check_ids(prompt, "prompt")
        return [prompt]
    if len(prompt) > limits.max_prompts:
        raise RequestError(
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {limits.max_prompts}.",
            param="prompt",
        )
    if kinds == {str}:
        return prompt
    if kinds == {list}:
        for index, ids in enumerate(prompt):
            _check_id_list(ids, f"prompt[{index}]")
        return prompt
    wanted = type(prompt[0])
    index = next((i for i, item in enumerate(prompt) if type(item) is not wanted), 0)
    if wanted not in (int, str, list):
        index = 0
    raise RequestError(
        f"`prompt[{index}]`: a prompt is a string, an array of strings, an array of token ids (integers) or an array "
        "of such arrays.",
        param=f"prompt[{index}]",
    )


def _check_id_list(ids: list[Any], path: str) -> None:
    if not ids:
        raise RequestError(f"`{path}` must not be empty.", param=path)
    if set(map(type, ids)) != {int}:
        index = next(i for i, item in enumerate(ids) if type(item) is not int)
        raise RequestError(f"`{path}[{index}]` must be an integer token id.", param=f"{path}[{index}]")
    check_ids(ids, path)


def check_generation(request: GenerationFields, limits: Limits) -> None:
    """Everything that chat and text completions have in common and that needs no model."""
    _check_int64(request)
    _check_sampling(request, limits)
    _check_strings(request, limits)
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        check_ids(getattr(request, name) or [], name)
    if request.allowed_token_ids is not None and not request.allowed_token_ids:
        raise vllm_error("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
    _check_logit_bias(request.logit_bias)
    if request.stream_options and not request.stream:
        raise vllm_error("Stream options can only be defined when `stream=True`.", "stream_options")
    if (prompt_logprobs := request.prompt_logprobs) is not None:
        if request.stream:
            raise vllm_error("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if prompt_logprobs < -1:
            raise vllm_error("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", prompt_logprobs)
    _check_response_format(request.response_format)
    _check_structured_outputs(request.structured_outputs)
    _check_xargs(request.vllm_xargs)


def _check_sampling(request: GenerationFields, limits: Limits) -> None:
    n = 1 if request.n is None else request.n
    if n < 1:
        raise RequestError(f"n must be at least 1, got {n}.", param="n")
    if n > limits.max_n:
        raise RequestError(f"n must be at most {limits.max_n}, got {n}.", param="n")
    if request.best_of is not None and request.best_of != n:
        raise RequestError("`best_of` other than `n` is not supported.", param="best_of")
    if request.use_beam_search:
        raise RequestError("Beam search is not supported.", param="use_beam_search")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is not None and not -2.0 <= value <= 2.0:
            raise RequestError(f"{name} must be in [-2, 2], got {value}.", param=name)
    if (repetition := request.repetition_penalty) is not None and not repetition > 0.0:
        raise RequestError(
            f"repetition_penalty must be greater than zero, got {repetition}.", param="repetition_penalty"
        )
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty"):
        value = getattr(request, name)
        if value is not None and not math.isfinite(value):
            raise RequestError(f"{name} must be a finite number.", param=name)
    if (temperature := request.temperature) is not None:
        if temperature < 0.0:
            raise vllm_error(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
        if temperature > 2.0:
            raise vllm_error(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if (top_p := request.top_p) is not None and not 0.0 < top_p <= 1.0:
        raise vllm_error(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if (top_k := request.top_k) is not None and top_k < -1:
        raise RequestError(f"top_k must be 0 (disable), or at least 1, got {top_k}.", param="top_k")
    if (min_p := request.min_p) is not None and not 0.0 <= min_p <= 1.0:
        raise RequestError(f"min_p must be in [0, 1], got {min_p}.", param="min_p")
    if request.min_tokens < 0:
        raise RequestError(
            f"min_tokens must be greater than or equal to 0, got {request.min_tokens}.", param="min_tokens"
        )
    budget = request.thinking_token_budget
    if budget is not None and budget < -1:
        raise vllm_error(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            budget,
        )
    if request.stream_interval is not None and request.stream_interval < 1:
        raise vllm_error(
            f"stream_interval must be at least 1, got {request.stream_interval}.",
            "stream_interval",
            request.stream_interval,
        )


def _check_strings(request: GenerationFields, limits: Limits) -> None:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    at = "stop" if isinstance(request.stop, str) else "stop[{}]"
    if len(stops) > limits.max_stop_strings:
        raise RequestError(f"`stop` may have at most {limits.max_stop_strings} strings.", param="stop")
    for index, stop in enumerate(stops):
        if not stop:
            raise RequestError("stop cannot contain an empty string.", param=at.format(index))
        if len(stop) > limits.max_stop_length:
            raise RequestError(
                f"A stop string may have at most {limits.max_stop_length} characters.", param=at.format(index)
            )
    if len(request.bad_words) > limits.max_bad_words:
        raise RequestError(f"`bad_words` may have at most {limits.max_bad_words} words.", param="bad_words")
    for index, word in enumerate(request.bad_words):
        if not word:
            raise RequestError("bad_words cannot contain an empty string.", param=f"bad_words[{index}]")
    salt = request.cache_salt
    if salt is not None:
        if not salt:
            raise vllm_error("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
        if len(salt) > MAX_CACHE_SALT_LENGTH or set(salt) & set("@/\\\0"):
            raise vllm_error(
                "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
                "cache_salt",
            )
    if request.request_id is not None and len(request.request_id) > MAX_REQUEST_ID_LENGTH:
        raise RequestError(f"`request_id` may have at most {MAX_REQUEST_ID_LENGTH} characters.", param="request_id")


def _check_logit_bias(bias: dict[str, float] | None) -> None:
    if not bias:
        return
    invalid = [key for key in bias if not _ID.fullmatch(key)]
    if invalid:
        raise RequestError(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {_shown(invalid)}",
            param="logit_bias",
        )


def _shown(values: list[str]) -> str:
    """The first few of what a client sent, cut to a length fit for a message."""
    return repr([value[:40] for value in values[:8]])


def _check_int64(request: GenerationFields) -> None:
    names = (
        "seed", "priority", "top_k", "min_tokens", "max_tokens", "max_completion_tokens", "n", "top_logprobs",
        "logprobs", "prompt_logprobs", "thinking_token_budget", "truncate_prompt_tokens", "stream_interval",
    )  # fmt: skip
    for name in names:
        value = getattr(request, name, None)
        if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            raise RequestError(f"`{name}` is out of range.", param=name)
    if (kept := request.truncate_prompt_tokens) is not None and kept < -1:
        raise RequestError("`truncate_prompt_tokens` must be at least -1.", param="truncate_prompt_tokens")


def _check_response_format(value: dict[str, Any] | None) -> None:
    if value is None:
        return
    param = "response_format"
    kind = value.get("type")
    if kind in ("text", "json_object"):
        return
    if kind == "json_schema":
        schema = value.get("json_schema")
        if schema is None:
            raise vllm_error(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.", param
            )
        if not isinstance(schema, dict):
            raise RequestError(f"`{param}.json_schema` must be an object.", param=f"{param}.json_schema")
        if not isinstance(schema.get("name"), str):
            raise RequestError(f"`{param}.json_schema.name` must be a string.", param=f"{param}.json_schema.name")
        if not isinstance(schema.get("schema"), dict):
            raise RequestError(f"`{param}.json_schema.schema` must be an object.", param=f"{param}.json_schema.schema")
        _check_nesting(schema["schema"], f"{param}.json_schema.schema")
        return
    if kind == "structural_tag":
        legacy = isinstance(value.get("structures"), list) and isinstance(value.get("triggers"), list)
        if not legacy and not isinstance(value.get("format"), dict):
            raise vllm_error("Invalid response_format structural_tag specification.", param)
        _check_nesting(value, param)
        return
    raise RequestError(
        f"`{param}.type` must be one of text, json_object, json_schema, structural_tag.", param=f"{param}.type"
    )


def _check_structured_outputs(value: dict[str, Any] | None) -> None:
    if value is None:
        return
    param = "structured_outputs"
    given = [kind for kind in STRUCTURED_KINDS if value.get(kind) is not None]
    if len(given) != 1:
        raise RequestError(
            f"`{param}` must have exactly one of {', '.join(STRUCTURED_KINDS)}, got {len(given)}.", param=param
        )
    kinds: dict[str, type | tuple[type, ...]] = {"json": (dict, str), "choice": list, "json_object": bool}
    options: dict[str, type] = {
        "disable_any_whitespace": bool, "disable_additional_properties": bool, "whitespace_pattern": str,
    }  # fmt: skip
    if not isinstance(value[given[0]], kinds.get(given[0], str)):
        raise RequestError(f"`{param}.{given[0]}` has the wrong type.", param=f"{param}.{given[0]}")
    for key, kind in options.items():
        if not isinstance(value.get(key), kind | None):
            raise RequestError(f"`{param}.{key}` has the wrong type.", param=f"{param}.{key}")
    if given == ["choice"] and not (value["choice"] and all(isinstance(item, str) for item in value["choice"])):
        raise RequestError(f"`{param}.choice` must be a non-empty array of strings.", param=f"{param}.choice")
    _check_nesting(value[given[0]], f"{param}.{given[0]}")


def _check_nesting(value: object, param: str) -> None:
    level = [value]
    for _ in range(MAX_SCHEMA_NESTING):
        inner: list[object] = []
        for node in level:
            inner.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        if not (level := inner):
            return
    raise RequestError(f"`{param}` is nested too deeply.", param=param)


def _check_xargs(value: dict[str, Any] | None) -> None:
    for key, item in (value or {}).items():
        for leaf in item if isinstance(item, list) else [item]:
            if not isinstance(leaf, str | int | float):
                raise RequestError(
                    f"`vllm_xargs.{key}` must be a string, a number or an array of these.", param=f"vllm_xargs.{key}"
                )
            if isinstance(leaf, int) and not INT64_MIN <= leaf < 2**64:
                raise RequestError(f"`vllm_xargs.{key}` is out of range.", param=f"vllm_xargs.{key}")
