"""``POST /inference/v1/generate`` as a client of the sidecar sends it (vLLM 0.33), and its checks.

vLLM's fields, its words where it has a rule, and one field of ours: ``chat_request``, the conversation's own request in
place of ``parse_context``. Sampling parameters are checked as those of a completion whose prompt is ids, since they
are the same; faults are told under ``sampling_params``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from proxy.errors import RequestError
from proxy.protocol.checks import DEFAULT_LIMITS, Limits, check_generation, check_ids, check_output_limit
from proxy.protocol.decode import json_object, to_struct, vllm_error
from proxy.protocol.messages import check_tool_choice, normalized_tools
from proxy.protocol.openai import CompletionRequest, StreamOptions

OutputMode = Literal["tokens", "text", "derender"]
MAX_CACHE_SALT = 1024  # this route's; chat has a smaller one


class ParseContext(msgspec.Struct, kw_only=True):
    """What of a chat its answer's parser needs; vLLM's and our ``/render`` give it."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    history_tool_call_cnt: int = 0
    extra: dict[str, Any] = {}


class GenerateBody(msgspec.Struct, kw_only=True):
    """The request. ``sampling`` are ``sampling_params`` checked, ``body`` is all of it as it came."""

    token_ids: list[int]
    sampling_params: dict[str, Any]
    request_id: str | None = None
    model: str | None = None
    output_mode: OutputMode = "tokens"
    parse_context: dict[str, Any] | None = None
    chat_request: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    features: Any = None
    content_parts: list[dict[str, Any]] | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    sampling: CompletionRequest = msgspec.field(default_factory=CompletionRequest)
    context: ParseContext | None = None
    body: dict[str, Any] = {}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def n(self) -> int:
        return self.sampling.n or 1


# What a completion has beside its sampling parameters must not be set through them.
_SAMPLING = frozenset({
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "structured_outputs",
    "logit_bias", "allowed_token_ids", "bad_words", "logprob_token_ids", "thinking_token_budget",
    "repetition_detection",
})  # fmt: skip
_OWN = ("sampling", "context", "body", "extra")


def parse_generate(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> GenerateBody:
    """A checked request. What needs the model (vocabulary, context length) is checked later."""
    data = json_object(raw)
    for name in _OWN:
        data.pop(name, None)
    request = to_struct(data, GenerateBody)
    request.body = data
    if not request.token_ids:
        raise RequestError("`token_ids` must have at least one id.", param="token_ids")
    check_ids(request.token_ids, "token_ids")
    if request.stream_options and not request.stream:
        raise vllm_error("Stream options can only be defined when `stream=True`.", "stream_options")
    if request.cache_salt is not None and not 0 < len(request.cache_salt) <= MAX_CACHE_SALT:
        raise RequestError(f"`cache_salt` must have 1 to {MAX_CACHE_SALT} characters.", param="cache_salt")
    request.sampling = _sampling(request, limits)
    if request.output_mode != "tokens" and request.sampling_params.get("detokenize") is False:
        raise RequestError(
            f"output_mode='{request.output_mode}' requires sampling_params.detokenize to be true",
            param="sampling_params.detokenize",
        )
    if request.output_mode == "derender" and request.parse_context is not None:
        if request.chat_request is not None:
            raise RequestError("Only one of `parse_context` and `chat_request` may be given.", param="chat_request")
        request.context = _context(request.parse_context)
    return request


def _sampling(request: GenerateBody, limits: Limits) -> CompletionRequest:
    given = {name: value for name, value in request.sampling_params.items() if name in _SAMPLING}
    if isinstance(given.get("logit_bias"), dict):
        given["logit_bias"] = {str(key): value for key, value in given["logit_bias"].items()}
    with Under("sampling_params"):
        sampling = to_struct({name: value for name, value in given.items() if value is not None}, CompletionRequest)
        sampling.prompt = sampling_prompt = request.token_ids
        sampling.prompts = [sampling_prompt]
        sampling.stream = request.stream
        check_generation(sampling, limits)
        if sampling.max_tokens is not None:
            check_output_limit(sampling.max_tokens, "max_tokens")
        if sampling.logprobs is not None and sampling.logprobs < -1:
            raise vllm_error("`logprobs` must be a positive value or -1.", "logprobs", sampling.logprobs)
    return sampling


class Under:
    """Tells faults of an inner object by their place: ``logit_bias`` as ``sampling_params.logit_bias``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError) and error.param:
            if error.param.startswith("prompt") and not error.param.startswith("prompt_"):
                error.param = "token_ids" + error.param.removeprefix("prompt")
            elif error.param == "input_tokens":
                error.param = "token_ids"
            else:
                error.param = f"{self.name}.{error.param}"


def _context(given: dict[str, Any]) -> ParseContext:
    with Under("parse_context"):
        context = to_struct(given, ParseContext)
        if context.extra:
            raise RequestError(
                f"Unknown parse_context fields {sorted(context.extra)[:8]}; the render server is newer than this "
                "generate server"
            )
        if context.history_tool_call_cnt < 0:
            raise RequestError("`history_tool_call_cnt` must not be negative.", param="history_tool_call_cnt")
        if context.tools:  # an empty list, which chat refuses, may come from a converter and is none
            context.tools = normalized_tools(context.tools)
        if context.tools or isinstance(context.tool_choice, dict):
            check_tool_choice(context.tool_choice, context.tools)
        elif context.tool_choice not in (None, "none", "auto", "required"):
            raise RequestError("`tool_choice` must be none, auto, required or a named function.", param="tool_choice")
    return context
