"""``POST /v1/chat/completions/render`` and ``/v1/completions/render``: the engine's request, without generating."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.protocol.openai import parse_chat, parse_completion
from proxy.render.bodies import chat_body, completion_bodies
from proxy.routes.context import call_of
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps


async def render_chat(request: Request) -> Response:
    call = call_of(request)
    asked = parse_chat(await request.body(), call.parts.limits, media=call.parts.renderer.takes_media)
    call.adopt_id(asked.request_id)
    asked.model, _ = await call.parts.models.resolve(asked.model)
    call.record.model = asked.model
    rendered = await call.parts.renderer.chat(asked)
    return JsonBytes(dumps(chat_body(rendered, asked, call.record.id)))


async def render_completion(request: Request) -> Response:
    call = call_of(request)
    asked = parse_completion(await request.body(), call.parts.limits)
    call.adopt_id(asked.request_id)
    asked.model, _ = await call.parts.models.resolve(asked.model)
    call.record.model = asked.model
    prompts = await call.parts.renderer.completion(asked)
    return JsonBytes(dumps(completion_bodies(prompts, asked, call.record.id)))
