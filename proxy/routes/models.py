"""``/v1/models``, ``/tokenize``, ``/detokenize``, ``/version``: what clients ask beside generating."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy import __version__
from proxy.protocol.openai import parse_detokenize, parse_tokenize
from proxy.routes.context import call_of
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps


async def models(request: Request) -> Response:
    registry = call_of(request).parts.models
    data = [
        {
            "id": card.id,
            "object": "model",
            "created": registry.created,
            "owned_by": "derender-proxy",
            "root": card.root,
            "parent": card.parent,
            "max_model_len": card.max_model_len,
        }
        for card in registry.cards
    ]
    return JsonBytes(dumps({"object": "list", "data": data}))


async def tokenize(request: Request) -> Response:
    call = call_of(request)
    asked = parse_tokenize(await request.body())
    call.record.model, _ = await call.parts.models.resolve(asked.model)
    return JsonBytes(dumps(await call.parts.renderer.tokenize(asked)))


async def detokenize(request: Request) -> Response:
    call = call_of(request)
    asked = parse_detokenize(await request.body())
    call.record.model, _ = await call.parts.models.resolve(asked.model)
    return JsonBytes(dumps(await call.parts.renderer.detokenize(asked)))


async def version(request: Request) -> Response:
    return JsonBytes(dumps({"version": __version__}))
