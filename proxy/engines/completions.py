"""Tokens from an OpenAI-shaped ``POST /v1/completions``: pods that serve today, with their tokenizer, as they are.

The prompt goes as ids, the ids come back beside a text that nobody here looks at (it may lag behind them). Who the
engine is, its list of models says (``owned_by``); what that means is in ``FLAVOURS``, one row each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy.engines.base import GenerateRequest, ModelCard
from proxy.engines.completions_events import CompletionsReader, read_whole
from proxy.engines.http import EngineOptions, HTTPEngine, Reader, refused, renamed, safe_id
from proxy.errors import RequestError
from proxy.protocol.generate import GenerateEvent

ROUTE = "/v1/completions"


@dataclass(frozen=True)
class Flavour:
    """What one server's completions want and give.

    ``ask``: fields that make it send ids. ``params``: sampling parameters it takes, by vLLM's names.
    ``fields``: those of the request beside them. ``id_field``: where the request's id goes (``single_id``: for one
    choice only). ``abort``: route and field of an abort by that id; the closed connection aborts everywhere.
    ``least_logprobs``: what to ask for where the sampled tokens' alone are wanted. ``names_ids``: candidates of
    logprobs can be had by id. ``constraints``: what structured outputs are called as fields, ``formats``: as
    types of ``response_format``, where they are not vLLM's own.
    """

    name: str
    ask: dict[str, Any]
    params: dict[str, str]
    fields: dict[str, str] = field(default_factory=dict)
    id_field: str | None = None
    single_id: bool = False
    abort: tuple[str, str] | None = None
    least_logprobs: int = 0
    names_ids: bool = False
    constraints: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_COMMON = _same(
    *("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed"),
    *("repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias"),
)
FLAVOURS = {
    "vllm": Flavour(
        name="vllm",
        ask={"return_token_ids": True, "return_tokens_as_token_ids": True},
        params=_COMMON
        | _same("allowed_token_ids", "bad_words", "structured_outputs", "prompt_logprobs", "thinking_token_budget")
        | _same("repetition_detection", "logprob_token_ids")
        | {"extra_args": "vllm_xargs"},
        fields=_same("cache_salt", "priority", "kv_transfer_params", "ec_transfer_params"),
        id_field="request_id",
        names_ids=True,
    ),
    # Streamed completions have ids since #30917. Neither ids in logprobs nor vLLM's extras.
    "sglang": Flavour(
        name="sglang",
        ask={"return_token_ids": True},
        params=_COMMON | {"extra_args": "custom_params"},
        fields=_same("cache_salt", "priority"),
        id_field="rid",
        single_id=True,
        abort=("/abort_request", "rid"),
        constraints={"json": "json_schema", "regex": "regex", "grammar": "ebnf"},
    ),
    # Refuses fields it does not know. Stop ids are cut from the ids unless they are asked for; logprobs 0 are none.
    "tensorrt_llm": Flavour(
        name="tensorrt_llm",
        ask={"detokenize": False, "include_stop_str_in_output": True},
        params=_COMMON | _same("thinking_token_budget"),
        least_logprobs=1,
        formats={"json": "json_schema", "regex": "regex", "grammar": "ebnf"},
    ),
}
_NEUTRAL_MODEL = "default"  # TensorRT-LLM wants a name, whatever it is
_MEANINGLESS = ("skip_special_tokens", "spaces_between_special_tokens", "detokenize", "output_kind")


class CompletionsEngine(HTTPEngine):
    """Client of one server. ``flavour``: vLLM's until its list of models has told another."""

    dialect = "completions"
    route = ROUTE

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self.flavour = FLAVOURS["vllm"]
        self._lengths: dict[str, int] = {}

    async def models(self) -> list[ModelCard]:
        cards = await super().models()
        owners = {card.owned_by for card in cards}
        self.flavour = next((flavour for name, flavour in FLAVOURS.items() if name in owners), FLAVOURS["vllm"])
        self._lengths = {card.id: card.max_model_len for card in cards if card.max_model_len is not None}
        return cards

    async def has_tokenizer(self) -> bool | None:
        return True  # or it could not speak text

    def body_for(self, request: GenerateRequest, *, stream: bool) -> dict[str, Any]:
        flavour, params = self.flavour, request.sampling_params
        body = self._sampling(flavour, params)
        body |= flavour.ask
        body["model"] = request.model or _NEUTRAL_MODEL
        if request.model is None and flavour.name == "vllm":
            del body["model"]
        body["prompt"] = request.token_ids
        body["stream"] = stream
        if stream:
            body["stream_options"] = {"include_usage": True}
        if "max_tokens" not in body:
            # Left out it is 16. As many as fit: counted here where the length is known, else by the engine.
            length = self._lengths.get(request.model or "") or self.options.max_model_len
            if length is not None:
                body["max_tokens"] = max(1, length - len(request.token_ids))
            else:
                body["max_tokens"] = None
        if flavour.id_field is not None and (request.choices == 1 or not flavour.single_id):
            body[flavour.id_field] = safe_id(request.request_id)
        for name in ("cache_salt", "priority", "kv_transfer_params", "ec_transfer_params", "features"):
            value = getattr(request, name)
            if value is None:
                continue
            if name not in flavour.fields:
                if name in ("cache_salt", "priority"):  # wishes about scheduling, not about the answer
                    continue
                raise refused(name, flavour.name)
            body[flavour.fields[name]] = value
        return body

    @staticmethod
    def _sampling(flavour: Flavour, params: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in params.items() if name not in (*_MEANINGLESS, "logprobs")}
        constraint = given.pop("structured_outputs", None) if "structured_outputs" not in flavour.params else None
        result = renamed(given, flavour.params, flavour.name)
        for name, value in (constraint or {}).items():
            if value not in (None, False):
                result |= constrained(flavour, name, value)
        logprobs = params.get("logprobs")
        if logprobs is not None:
            if logprobs > 0 and not flavour.names_ids:
                raise RequestError(
                    f"The engine ({flavour.name}) names the candidates of logprobs by their text, which is not always "
                    "that of one token: only the sampled tokens' can be had.",
                    param="logprobs",
                )
            result["logprobs"] = max(logprobs, flavour.least_logprobs)
        return result

    def reader(self, request: GenerateRequest) -> Reader:
        return CompletionsReader(logprobs=request.sampling_params.get("logprobs") is not None)

    def read_answer(self, request: GenerateRequest, raw: bytes) -> GenerateEvent:
        return read_whole(raw, logprobs=request.sampling_params.get("logprobs") is not None)

    def abort(self, request: GenerateRequest, reader: Reader | None, told_id: str | None) -> None:
        """By id where the server takes one; the closed connection has told all of them already."""
        if self.flavour.abort is not None and request.choices == 1:
            route, name = self.flavour.abort
            self.in_background(self._abort(route, {name: safe_id(request.request_id)}))

    async def _abort(self, route: str, body: dict[str, str]) -> None:
        await self.post_abort(route, body)


def constrained(flavour: Flavour, name: str, value: Any) -> dict[str, Any]:
    """The fields for one of vLLM's structured outputs. Raises RequestError for one that the server does not have."""
    if name == "json_object":
        return {"response_format": {"type": "json_object"}}
    if name == "structural_tag":
        return {"response_format": msgspec.json.decode(value) if isinstance(value, str) else value}
    if name in flavour.constraints:
        return {flavour.constraints[name]: value if isinstance(value, str) else msgspec.json.encode(value).decode()}
    if name in flavour.formats:
        kind = flavour.formats[name]
        if name == "json":
            value = {"schema": msgspec.json.decode(value) if isinstance(value, str) else value}
        return {"response_format": {"type": kind, kind: value}}
    raise refused(f"structured_outputs.{name}", flavour.name)
