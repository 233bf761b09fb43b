"""The checks of vLLM's ``--tokens-only`` engine (0.33), in its order and words, as captured from a running one.

``check`` gives a ``Query``, or raises ``Refusal`` with HTTP status and body. What the real engine finds only after
it has sent status 200 (a prompt too long, ids out of vocabulary, too many logprobs) is in ``Query.late``: an error
event of a stream, a 400 otherwise. In one thing it is stricter: booleans and floats are no integers, since a proxy
that sends them is at fault.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from proxy.simulator.model import Model
from proxy.simulator.options import Options

MAX_SEQUENCES = 16_384


class Refusal(Exception):
    """An answer that is no answer: ``status`` and the fields of the OpenAI error object."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400, kind: str = "BadRequestError"):
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": status}

    def body(self) -> bytes:
        return json.dumps({"error": self.error}, separators=(",", ":")).encode()

    def event(self) -> bytes:
        """As an event of a stream; the real engine writes blanks here."""
        return b"data: " + json.dumps({"error": self.error}).encode() + b"\n\n"


@dataclass
class Query:
    """A request that may run. ``max_tokens`` is at most what fits into the model."""

    token_ids: list[int]
    params: dict[str, Any]
    request_id: str | None
    n: int
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    late: Refusal | None = None
    extra_args: dict[str, Any] = field(default_factory=dict)


def check(body: bytes, model: Model, options: Options) -> Query:
    """The query in ``body``. Raises Refusal."""
    data = _fields(body)
    params: dict[str, Any] = data["sampling_params"]
    name = data.get("model")
    if name is not None and name not in model.names:
        aliases = ", ".join(model.names)
        message = f"The model `{name}` does not exist. Valid aliases: {aliases}."
        raise Refusal(message, param="model", status=404, kind="NotFoundError")
    _sampling(params)
    if (mode := data.get("output_mode", "tokens")) != "tokens":
        raise Refusal(
            f"output_mode='{mode}' requires a tokenizer, but this server does not load one (--tokens-only or "
            "--skip-tokenizer-init). Send the request to a server that loads a tokenizer, or use output_mode='tokens'."
        )
    if params.get("stop"):
        raise Refusal(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
            "Check stop strings on the coordinator, or use stop_token_ids."
        )
    n = params.get("n") or 1
    if n > options.max_num_seqs:
        most = options.max_num_seqs
        raise Refusal(f"sampling_params.n must be at most the server's max_num_seqs ({most}), got {n}.")
    token_ids: list[int] = data["token_ids"]
    stream_options = data.get("stream_options") or {}
    room = max(model.max_model_len - len(token_ids), 0)
    wanted = params.get("max_tokens")
    usage = bool(stream_options.get("include_usage"))
    return Query(
        token_ids=token_ids,
        params=params,
        request_id=data.get("request_id"),
        n=n,
        max_tokens=room if wanted is None else min(wanted, room),
        stream=data.get("stream") or False,
        include_usage=usage,
        continuous_usage=usage and bool(stream_options.get("continuous_usage_stats")),
        return_token_ids=data.get("return_token_ids") or False,
        late=_late(token_ids, params, model, options),
        extra_args=params.get("extra_args") or {},
    )


def _late(token_ids: list[int], params: dict[str, Any], model: Model, options: Options) -> Refusal | None:
    length, longest = len(token_ids), model.max_model_len
    tail = " Make sure that `max_model_len` is no smaller than the number of text tokens"
    if length > longest:
        return Refusal(
            f"The decoder prompt (length {length}) is longer than the maximum model length of {longest}.{tail}."
        )
    if length == longest:
        return Refusal(
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer "
            f"than the maximum model length of {longest}.{tail} (prompt + requested output tokens)."
        )
    for name, word in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        asked = params.get(name)
        asked = model.vocab_size if asked == -1 else asked
        if asked is not None and asked > options.max_logprobs:
            most = options.max_logprobs
            message = f"Requested {word} logprobs of {asked}, which is greater than max allowed: {most} "
            return Refusal(f"{message}(parameter={name}, value={asked})", param=name)
    if (highest := max(token_ids)) >= model.vocab_size:
        return Refusal(f"Token id {highest} is out of vocabulary")
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in params.get(name) or ():
            if not 0 <= token < model.vocab_size:
                return Refusal(f"{name} contains the id {token}, which is out of vocabulary", param=name)
    return None


def _fields(body: bytes) -> dict[str, Any]:
    if not body:
        raise _invalid([("missing", "body", "Field required", "None")])
    try:
        data = json.loads(body)
    except json.JSONDecodeError as error:
        context = {"error": error.msg}
        raise _invalid(
            [("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", context)]
        ) from None
    except (UnicodeDecodeError, RecursionError):
        raise _invalid([("json_invalid", "body.0", "JSON decode error", "<dict of 0 items>")]) from None
    if not isinstance(data, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid([("model_attributes_type", "body", message, _shown(data))])
    problems: list[tuple[Any, ...]] = []
    for name in ("token_ids", "sampling_params"):
        if name not in data:
            problems.append(("missing", f"body.{name}", "Field required", _shown(data)))
    if "token_ids" in data:
        problems += _token_ids(data["token_ids"])
    if not isinstance(data.get("sampling_params", {}), dict):
        message = "Input should be a valid dictionary or instance of SamplingParams"
        problems.append(("dataclass_type", "body.sampling_params", message, _shown(data["sampling_params"])))
    for name, kind, word in _TYPES:
        value = data.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            problems.append((f"{word}_type", f"body.{name}", f"Input should be a valid {_WORDS[word]}", _shown(value)))
    if (mode := data.get("output_mode", "tokens")) not in ("tokens", "text", "derender"):
        choices = "'tokens', 'text' or 'derender'"
        problem = ("literal_error", "body.output_mode", f"Input should be {choices}", mode, {"expected": choices})
        problems.append(problem)
    if problems:
        raise _invalid(problems)
    return data


_TYPES: tuple[tuple[str, type, str], ...] = (
    *(("request_id", str, "string"), ("model", str, "string"), ("cache_salt", str, "string")),
    *(("stream", bool, "bool"), ("return_token_ids", bool, "bool"), ("reasoning_ended", bool, "bool")),
    *(("stream_options", dict, "dict"), ("kv_transfer_params", dict, "dict"), ("ec_transfer_params", dict, "dict")),
    *(("priority", int, "int"), ("reasoning_parser_kwargs", dict, "dict")),
)
_WORDS = {"string": "string", "bool": "boolean", "dict": "dictionary", "int": "integer"}


def _token_ids(value: Any) -> list[tuple[Any, ...]]:
    if not isinstance(value, list):
        return [("list_type", "body.token_ids", "Input should be a valid list", _shown(value))]
    wrong = []
    for position, token in enumerate(value):
        if type(token) is not int:
            kind, message = "int_type", "Input should be a valid integer"
            if isinstance(token, str):
                kind, message = "int_parsing", message + ", unable to parse string as an integer"
            elif isinstance(token, float):
                kind, message = "int_from_float", message + ", got a number with a fractional part"
            wrong.append((kind, f"body.token_ids.{position}", message, _shown(token)))
    if wrong:
        return wrong
    if not value:
        context = {"field_type": "List", "min_length": 1, "actual_length": 0}
        message = "List should have at least 1 item after validation, not 0"
        return [("too_short", "body.token_ids", message, _shown(value), context)]
    if min(value) < 0:
        text = "token_ids must not contain negative values"
        context = {"error": ValueError(text)}
        return [("value_error", "body.token_ids", f"Value error, {text}", _shown(value), context)]
    return []


def _invalid(problems: list[tuple[Any, ...]]) -> Refusal:
    count = len(problems)
    lines = [f"{count} validation error{'s' if count > 1 else ''}:"]
    for problem in problems:
        names = ("type", "loc", "msg", "input", "ctx")
        lines.append(f"  {dict(zip(names, problem, strict=False))}")
    return Refusal("\n".join(lines), param=problems[0][1], kind="Bad Request")


def _shown(value: Any) -> Any:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return "None" if value is None else value


def _sampling(params: dict[str, Any]) -> None:
    """SamplingParams: types first, then ranges in vLLM's order."""
    for name, kinds in _SAMPLING_TYPES.items():
        value = params.get(name)
        if value is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " | ".join(kind.__name__ for kind in kinds)
            message = f"Value error, Expected `{expected}`, got `{type(value).__name__}` - at `$.{name}`"
            raise _invalid([("value_error", f"body.sampling_params.{name}", message, _shown(value))])
    for name in ("stop_token_ids", "allowed_token_ids"):
        if not all(type(token) is int for token in params.get(name) or ()):
            raise Refusal(f"{name} must contain only integers, got {params[name]}.")
    n = params.get("n")
    if n is not None and n < 1:
        raise Refusal(f"n must be at least 1, got {n}.")
    if n is not None and n > MAX_SEQUENCES:
        raise Refusal(
            f"n must be at most {MAX_SEQUENCES}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
            "environment variable."
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= (value := float(params.get(name) or 0.0)) <= 2.0:
            raise Refusal(f"{name} must be in [-2, 2], got {value}.")
    if (value := float(_or(params.get("repetition_penalty"), 1.0))) <= 0.0 or not math.isfinite(value):
        word = "greater than zero" if math.isfinite(value) else "a finite number"
        raise Refusal(f"repetition_penalty must be {word}, got {value}.")
    temperature = float(_or(params.get("temperature"), 1.0))
    if not 0.0 <= temperature <= 2.0:
        word = (
            "non-negative" if temperature < 0 else "a finite number" if not math.isfinite(temperature) else "in [0, 2]"
        )
        raise _parameter("temperature", temperature, f"temperature must be {word}, got {temperature}.")
    if not 0.0 < (value := float(_or(params.get("top_p"), 1.0))) <= 1.0:
        raise _parameter("top_p", value, f"top_p must be in (0, 1], got {value}.")
    if (top_k := params.get("top_k") or 0) < -1:
        raise Refusal(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if not 0.0 <= (value := float(params.get("min_p") or 0.0)) <= 1.0:
        raise Refusal(f"min_p must be in [0, 1], got {value}.")
    most, least = params.get("max_tokens"), params.get("min_tokens") or 0
    if most is not None and most < 1:
        raise _parameter("max_tokens", most, f"max_tokens must be at least 1, got {most}.")
    if least < 0:
        raise Refusal(f"min_tokens must be greater than or equal to 0, got {least}.")
    if most is not None and least > most:
        raise Refusal(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    for name in ("logprobs", "prompt_logprobs"):
        if (asked := params.get(name)) is not None and asked < -1:
            raise _parameter(name, asked, f"{name} must be non-negative or -1, got {asked}.")
    if n is not None and n > 1 and temperature < 1e-5:
        raise Refusal(f"n must be 1 when using greedy sampling, got {n}.")


def _parameter(name: str, value: Any, message: str) -> Refusal:
    return Refusal(f"{message} (parameter={name}, value={value})", param=name)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


_NUMBER = (float, int)
_SAMPLING_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("n", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "top_k", "seed"), (int,)),
    **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"), _NUMBER),
    "repetition_penalty": _NUMBER,
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "bad_words"), (list,)),
    **dict.fromkeys(("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"), (bool,)),
    **dict.fromkeys(("extra_args", "logit_bias", "structured_outputs"), (dict,)),
    "stop": (str, list),
}
