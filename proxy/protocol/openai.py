"""The OpenAI requests that the sidecar takes, with vLLM's extra fields (0.33), and their checks.

``parse_chat`` and its siblings turn the bytes of a body into a checked struct or raise ``RequestError`` with the field
at fault in ``param``. What needs the model (vocabulary, context length, engine) is checked by ``proxy.render``.
Fields that are not named here survive in ``extra``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from proxy.errors import RequestError
from proxy.protocol import checks
from proxy.protocol.checks import DEFAULT_LIMITS, Limits
from proxy.protocol.decode import json_object, to_struct, vllm_error
from proxy.protocol.messages import check_messages, check_tool_choice, normalized_tools

__all__ = [
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "Limits",
    "StreamOptions",
    "TokenizeRequest",
    "parse_chat",
    "parse_completion",
    "parse_detokenize",
    "parse_tokenize",
]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(msgspec.Struct, kw_only=True):
    """``stream_options``: usage at the end, and (only together with it) in every chunk."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationFields(msgspec.Struct, kw_only=True):
    """What chat and text completions share. None means: not given."""

    model: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    length_penalty: float = 1.0
    use_beam_search: bool = False
    watermarking: bool | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    best_of: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    bad_words: list[str] = []
    allowed_token_ids: list[int] | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    thinking_token_budget: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    repetition_detection: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: int | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int = 0
    request_id: str | None = None
    user: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    extra: dict[str, Any] = {}

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, without repeats."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(dict.fromkeys(self.stop))

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """``POST /v1/chat/completions``. ``messages`` and ``tools`` stay dicts, checked; ``tools`` as vLLM shows them."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    return_token_offsets: bool | None = False
    return_prompt_text: bool | None = None
    raw: bytes = b""  # the body as it came, for a remote renderer

    @property
    def output_limit(self) -> int | None:
        """``max_completion_tokens``, else ``max_tokens``."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def output_limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wanted_logprobs(self) -> int | None:
        """None: none; n: the sampled token's and those of the n likeliest."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationFields, kw_only=True):
    """``POST /v1/completions``. ``prompts`` is ``prompt`` as a list of texts or of id lists (ints), one per prompt."""

    prompt: str | list[Any] | None = None
    suffix: str | None = None
    echo: bool | None = False
    logprobs: int | None = None
    add_special_tokens: bool = True
    return_token_offsets: bool | None = False
    prompts: list[Any] = []  # of str, or of list[int]

    @property
    def output_limit(self) -> int:
        """``max_tokens``; OpenAI's and vLLM's default of 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def output_limit_param(self) -> str:
        return "max_tokens"

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def echo_only(self) -> bool:
        """The prompt is to be repeated and nothing generated."""
        return bool(self.echo) and self.max_tokens == 0


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: exactly one of ``prompt`` and ``messages``; ``add_special_tokens`` None: by kind."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    extra: dict[str, Any] = {}


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None
    extra: dict[str, Any] = {}


def parse_chat(body: bytes, limits: Limits = DEFAULT_LIMITS, *, media: bool = False) -> ChatCompletionRequest:
    """A checked chat request. ``media``: parts that are not text may pass (a remote renderer takes them)."""
    data = json_object(body)
    data.pop("raw", None)
    request = to_struct(data, ChatCompletionRequest)
    request.raw = body
    check_messages(request.messages, media=media)
    if request.tools is not None:
        request.tools = normalized_tools(request.tools)
    check_tool_choice(request.tool_choice, request.tools)
    # an explicit null stays null: vLLM tells the two apart in parse_context
    if "tool_choice" not in data:
        request.tool_choice = "auto" if request.tools else "none"
    _check_chat_prompt(request.continue_final_message, request.add_generation_prompt, "add_generation_prompt" in data)
    _check_template_kwargs(request.chat_template_kwargs)
    checks.check_generation(request, limits)
    if request.max_completion_tokens is not None:
        checks.check_output_limit(request.max_completion_tokens, "max_completion_tokens")
    if request.max_tokens is not None:
        checks.check_output_limit(request.max_tokens, "max_tokens")
    top = request.top_logprobs or 0
    if top < -1:
        raise vllm_error("`top_logprobs` must be a positive value or -1.", "top_logprobs", top)
    if top and not request.logprobs:
        raise vllm_error("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if request.logprob_token_ids and not request.logprobs:
        raise vllm_error("when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids")
    if request.echo and request.stream and request.logprobs:
        raise RequestError("`echo` with `logprobs` is not available when `stream=True`.", param="echo")
    if request.structured_outputs is not None and isinstance(request.tool_choice, dict):
        raise RequestError(
            "You can only either use constraints for structured outputs or tools, not both.", param="structured_outputs"
        )
    return request


def parse_completion(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CompletionRequest:
    """A checked completion request."""
    data = json_object(body)
    data.pop("prompts", None)
    request = to_struct(data, CompletionRequest)
    if request.suffix is not None:
        raise vllm_plain("suffix is only supported for models with FIM completion rendering", "suffix")
    if "prompt_embeds" in request.extra:
        raise RequestError("`prompt_embeds` is not supported: send text or token ids.", param="prompt_embeds")
    request.prompts = checks.prompt_list(request.prompt, limits)
    checks.check_generation(request, limits)
    if request.max_tokens is not None and not request.echo_only:
        checks.check_output_limit(request.max_tokens, "max_tokens")
    if request.logprobs is not None and request.logprobs < -1:
        raise vllm_error("`logprobs` must be a positive value or -1.", "logprobs", request.logprobs)
    if request.logprob_token_ids and request.logprobs is None:
        raise vllm_error("when using `logprob_token_ids`, `logprobs` must be set.", "logprob_token_ids")
    if request.echo and request.stream and request.logprobs is not None:
        raise RequestError("`echo` with `logprobs` is not available when `stream=True`.", param="echo")
    return request


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """A checked tokenize request."""
    data = json_object(body)
    request = to_struct(data, TokenizeRequest)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("Exactly one of `prompt` and `messages` is required.", param="prompt")
    if request.messages is not None:
        check_messages(request.messages, media=False)
    request.tools = normalized_tools(request.tools) if request.tools else None
    _check_chat_prompt(request.continue_final_message, request.add_generation_prompt, "add_generation_prompt" in data)
    _check_template_kwargs(request.chat_template_kwargs)
    return request


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """A checked detokenize request; ids are not negative."""
    request = to_struct(json_object(body), DetokenizeRequest)
    checks.check_ids(request.tokens, "tokens")
    return request


def vllm_plain(text: str, param: str) -> RequestError:
    """A fault that vLLM tells without naming the parameter in its text."""
    return RequestError(text, param=param)


def _check_chat_prompt(continued: bool, generation_prompt: bool, given: bool) -> None:
    if not (continued and generation_prompt):
        return
    if given:
        raise vllm_plain(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.", "continue_final_message"
        )
    raise vllm_plain(
        "continue_final_message and add_generation_prompt are not compatible. Set `add_generation_prompt` to false "
        "to have the model continue the final message.",
        "continue_final_message",
    )


def _check_template_kwargs(kwargs: dict[str, Any] | None) -> None:
    for key in ("tokenize", "conversation", "messages", "tools", "return_dict"):
        if kwargs and key in kwargs:
            raise RequestError(f"`chat_template_kwargs.{key}` is not allowed.", param=f"chat_template_kwargs.{key}")
