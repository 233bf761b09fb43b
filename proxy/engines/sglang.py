"""SGLang's own dialect: ``POST /generate`` with ``input_ids``, streamed, with or without ``--skip-tokenizer-init``.

Where it differs from vLLM's (read from SGLang's sources):

* ``max_new_tokens`` is 128 unless told otherwise; null is "as many as fit".
* With n > 1 the ids of the requests inside are random, whatever ``rid`` said: an abort needs those that events tell.
* A model is chosen by the process alone, an adapter by ``lora_path``.
* There is no usage event: counts are in the ``meta_info`` of every event.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from proxy.engines.base import GenerateRequest, ModelCard
from proxy.engines.http import EngineOptions, HTTPEngine, Reader, refused, renamed, safe_id
from proxy.engines.sglang_events import SGLangReader, read_whole
from proxy.errors import RequestError, UpstreamError
from proxy.protocol.generate import GenerateEvent

ROUTE = "/generate"
ABORT = "/abort_request"
SERVER_INFO = ("/server_info", "/get_server_info")  # the second is the older name

# Sampling parameters by vLLM's names, and what SGLang calls them.
PARAMS = {
    **{
        name: name
        for name in (
            *("n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "stop_token_ids", "ignore_eos", "logit_bias"),
        )
    },
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "extra_args": "custom_params",
}
_BESIDE = ("logprobs", "prompt_logprobs", "structured_outputs")  # have places of their own
_MEANINGLESS = ("skip_special_tokens", "spaces_between_special_tokens", "detokenize", "output_kind")
_CONSTRAINTS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}
# Fields of a client's that SGLang knows and that harm nobody; others (pickled processors, sessions) stay here.
EXTRA = (
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "data_parallel_rank"),
    *("disagg_prefill_dp_rank", "extra_key", "routing_key"),
)


class SGLangEngine(HTTPEngine):
    """Client of one SGLang server."""

    dialect = "sglang"
    route = ROUTE

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self._adapters: frozenset[str] = frozenset()

    async def models(self) -> list[ModelCard]:
        cards = await super().models()
        self._adapters = frozenset(card.id for card in cards if card.parent is not None)
        return cards

    async def has_tokenizer(self) -> bool | None:
        for path in SERVER_INFO:
            try:
                told = msgspec.json.decode(await self._get(path), type=_ServerInfo)
            except (UpstreamError, msgspec.DecodeError):
                continue
            if told.skip_tokenizer_init is not None:
                return not told.skip_tokenizer_init
        return None

    def body_for(self, request: GenerateRequest, *, stream: bool) -> dict[str, Any]:
        params = request.sampling_params
        for name in ("features", "kv_transfer_params", "ec_transfer_params"):
            if getattr(request, name) is not None:
                raise refused(name, self.dialect)
        body: dict[str, Any] = {name: request.extra[name] for name in EXTRA if name in request.extra}
        body["input_ids"] = request.token_ids
        body["sampling_params"] = sampling_of(params)
        body["stream"] = stream
        if request.choices == 1:
            body["rid"] = safe_id(request.request_id)
        for name in ("cache_salt", "priority"):
            if getattr(request, name) is not None:
                body[name] = getattr(request, name)
        if request.model in self._adapters:
            body["lora_path"] = request.model
        logprobs, prompt_logprobs = params.get("logprobs"), params.get("prompt_logprobs")
        for name, count in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
            if count is not None and count < 0:
                raise RequestError(f"`{name}`: the engine ({self.dialect}) cannot give all of them.", param=name)
        if logprobs is not None or prompt_logprobs is not None:
            body["return_logprob"] = True
            body["top_logprobs_num"] = max(logprobs or 0, prompt_logprobs or 0)
            if prompt_logprobs is not None:
                body["logprob_start_len"] = 0
        return body

    def reader(self, request: GenerateRequest) -> SGLangReader:
        return SGLangReader(request.choices, logprobs=request.sampling_params.get("logprobs"))

    def read_answer(self, request: GenerateRequest, raw: bytes) -> GenerateEvent:
        params = request.sampling_params
        return read_whole(
            raw,
            request.token_ids,
            logprobs=params.get("logprobs"),
            prompt_logprobs=params.get("prompt_logprobs"),
        )

    def abort(self, request: GenerateRequest, reader: Reader | None, told_id: str | None) -> None:
        ids = set(reader.request_ids.values()) if isinstance(reader, SGLangReader) else set()
        if request.choices == 1:
            ids.add(safe_id(request.request_id))
        for rid in ids:  # where none is known, the closed connection has to do: SGLang looks at it every 2 s
            self.in_background(self._abort(rid))

    async def _abort(self, rid: str) -> None:
        await self.post_abort(ABORT, {"rid": rid})


class _ServerInfo(msgspec.Struct):
    skip_tokenizer_init: bool | None = None


def sampling_of(params: dict[str, Any]) -> dict[str, Any]:
    """``sampling_params`` of SGLang. Raises RequestError for what it does not have."""
    dialect = SGLangEngine.dialect
    result = renamed(
        {name: value for name, value in params.items() if name not in _BESIDE and name not in _MEANINGLESS},
        PARAMS,
        dialect,
    )
    result.setdefault("max_new_tokens", None)
    if result.get("top_k") == 0:
        result["top_k"] = -1
    for name, value in (params.get("structured_outputs") or {}).items():
        if name == "json_object" and value is True:
            result["json_schema"] = '{"type": "object"}'
        elif name in _CONSTRAINTS:
            result[_CONSTRAINTS[name]] = value if isinstance(value, str) else json.dumps(value)
        elif value not in (None, False):
            raise refused(f"structured_outputs.{name}", dialect)
    return result
