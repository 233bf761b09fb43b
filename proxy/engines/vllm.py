"""vLLM's generate dialect: ``POST /inference/v1/generate`` of 0.33, its Rust frontend, older servers, inference-sim.

Usage is always asked for: ``--enable-force-include-usage`` does not reach this route. Aborts need the id as the engine
has it: ``generate-tokens-`` and then the ``x-request-id`` header, or else the body's ``request_id``.
"""

from __future__ import annotations

from typing import Any

from proxy.engines.base import GenerateRequest
from proxy.engines.events import decode_event
from proxy.engines.http import EngineOptions, HTTPEngine, Reader, safe_id
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent

GENERATE = "/inference/v1/generate"
ABORT_ROUTES = ("/inference/v1/abort_requests", "/abort_requests")
ID_PREFIX = "generate-tokens-"

VLLMOptions = EngineOptions


class _Events:
    """Events say all there is to say by themselves."""

    event = staticmethod(decode_event)


_READER = _Events()


class VLLMEngine(HTTPEngine):
    """Client of one vLLM server."""

    dialect = "vllm"
    route = GENERATE

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self._abort_routes: tuple[str, ...] = ABORT_ROUTES

    def body_for(self, request: GenerateRequest, *, stream: bool) -> dict[str, Any]:
        return body_of(request, stream=stream)

    def reader(self, request: GenerateRequest) -> Reader:
        return _READER

    def read_answer(self, request: GenerateRequest, raw: bytes) -> GenerateEvent:
        return decode_event(raw)

    async def has_tokenizer(self) -> bool | None:
        """Rendering text is what an engine without a tokenizer refuses (400); it costs the others microseconds."""
        try:
            status = await self.status_of("/v1/completions/render", {"prompt": "a"})
        except UpstreamError:
            return None
        return {200: True, 400: False}.get(status)

    def abort(self, request: GenerateRequest, reader: Reader | None, told_id: str | None) -> None:
        """By the id that the engine has told; else in both forms in use.

        vLLM's frontend adds a prefix, its Rust one does not. Ids carry our random suffix: no other request is hit.
        """
        ours = safe_id(request.request_id)
        self.in_background(self._abort([told_id] if told_id is not None else [ID_PREFIX + ours, ours]))

    async def _abort(self, ids: list[str]) -> None:
        for route in self._abort_routes:
            known = await self.post_abort(route, {"request_ids": ids})
            if known is None:
                return
            if known:
                self._abort_routes = (route,)  # a server has the one or the other: ask for it first from now on
                return
        self._abort_routes = ABORT_ROUTES


def body_of(request: GenerateRequest, *, stream: bool) -> dict[str, Any]:
    """The JSON body for vLLM. Unknown fields first, so that none of them replaces one of ours."""
    body: dict[str, Any] = {name: value for name, value in request.extra.items() if name != "output_mode"}
    body["request_id"] = safe_id(request.request_id)
    body["token_ids"] = request.token_ids
    body["sampling_params"] = request.sampling_params
    body["stream"] = stream
    body.pop("stream_options", None)
    if stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": request.continuous_usage}
    for name in _OPTIONAL:
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    return body


_OPTIONAL = (
    *("model", "cache_salt", "priority", "kv_transfer_params", "ec_transfer_params", "features"),
    *("reasoning_ended", "reasoning_parser_kwargs"),
)
