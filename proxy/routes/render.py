"""``POST /v1/chat/completions/render`` and ``/v1/completions/render``: the engine's request, without generating."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.protocol.openai import parse_chat, parse_completion
from proxy.routes.context import call_of
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps


async def render_chat(request: Request) -> Response:
    call = call_of(request)
    asked = parse_chat(await request.body(), call.parts.limits, media=call.parts.settings.render_url is not None)
    name, _ = await call.parts.models.resolve(asked.model)
    call.record.model = name
    rendered = await call.parts.renderer.chat(asked)
    body = rendered.generate_body(f"chatcmpl-{call.record.id}", name, asked)
    return JsonBytes(dumps(body))


async def render_completion(request: Request) -> Response:
    call = call_of(request)
    asked = parse_completion(await request.body(), call.parts.limits)
    name, _ = await call.parts.models.resolve(asked.model)
    call.record.model = name
    prompts = await call.parts.renderer.completion(asked)
    bodies = [
        rendered.generate_body(f"cmpl-{call.record.id}-{index}", name, asked) for index, rendered in enumerate(prompts)
    ]
    return JsonBytes(dumps(bodies))
