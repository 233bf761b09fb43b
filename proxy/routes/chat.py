"""``POST /v1/chat/completions``: render, generate, derender, in one connection."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.derender.deltas import Delta
from proxy.derender.message import MessageBuilder
from proxy.derender.stream import ChatStream
from proxy.protocol.openai import ChatCompletionRequest, parse_chat
from proxy.render.rendered import Rendered
from proxy.routes import answers
from proxy.routes.context import Call, call_of
from proxy.routes.generation import Generation, Source
from proxy.routes.prompt_logprobs import with_tokens
from proxy.routes.responses import JsonBytes, run_unless_client_leaves
from proxy.routes.sse_chunks import DONE, ChatChunks, dumps, usage_bytes
from proxy.routes.streaming import final_usage, stream_response


async def chat_completions(request: Request) -> Response:
    call = call_of(request)
    asked = parse_chat(await request.body(), call.parts.limits, media=call.parts.renderer.takes_media)
    call.adopt_id(asked.request_id)
    call.record.stream = bool(asked.stream)
    name, engine_model = await call.parts.models.resolve(asked.model)
    call.record.model = name
    rendered = await call.parts.renderer.chat(asked)
    n = asked.n or 1
    call.record.n = n
    streams = [
        call.parts.derenderer.chat(
            rendered.settings,
            request_id=call.record.id,
            prompt_token_ids=rendered.prompt_token_ids,
            index=index,
        )
        for index in range(n)
    ]
    source = Source(call.engine_request(rendered, engine_model), streams)
    if asked.stream:
        return await _streamed(call, asked, name, rendered, source)
    return await _whole(call, asked, name, rendered, source)


def _echo(asked: ChatCompletionRequest) -> str:
    """With ``echo``, the answer begins with the message that it goes on with; otherwise with nothing."""
    last = asked.messages[-1]
    content = last.get("content")
    if asked.echo and not asked.add_generation_prompt and last["role"] == "assistant" and isinstance(content, str):
        return content
    return ""


async def _streamed(
    call: Call, asked: ChatCompletionRequest, name: str, rendered: Rendered, source: Source
) -> Response:
    parts, record = call.parts, call.record
    n = len(source.streams)
    chunks = ChatChunks(
        f"chatcmpl-{record.id}",
        name,
        call.created,
        n,
        reasoning_field=parts.settings.reasoning_field,
        token_ids=bool(asked.return_token_ids),
    )
    out: list[bytes] = []
    prompt = len(rendered.prompt_token_ids)
    add = chunks.add

    def sink(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        add(out, index, deltas)

    def sink_with_usage(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        add(out, index, deltas, usage_bytes(prompt, stream.completion_tokens))

    generation = Generation(
        call.engine,
        [source],
        sink_with_usage if asked.continuous_usage else sink,
        record=record,
        metrics=parts.metrics,
        started=call.started,
    )
    usage = usage_bytes(prompt, 0) if asked.continuous_usage else None
    ids = rendered.prompt_token_ids if asked.return_token_ids else None
    # Nothing of it is sent before the engine has answered.
    text = rendered.prompt_text if asked.return_prompt_text else None
    roles = [chunks.role(index, ids, usage, text) for index in range(n)]
    if echo := _echo(asked):
        for index in range(n):
            chunks.add(roles, index, [Delta(content=echo)], usage)

    def final() -> bytes:
        if not asked.include_usage:
            return DONE
        return chunks.usage(final_usage(generation, reasoning=parts.has_reasoning)) + DONE

    return await stream_response(call, generation, out, b"".join(roles), final)


async def _whole(
    call: Call, asked: ChatCompletionRequest, name: str, rendered: Rendered, source: Source
) -> Response:
    """The answer in one piece, put together from the same deltas that a stream would send."""
    parts = call.parts
    messages = [MessageBuilder() for _ in source.streams]

    def sink(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        for delta in deltas:
            messages[index].add(delta)

    # What engines tell only in whole answers has to be asked for in one.
    whole = (
        asked.kv_transfer_params is not None
        or asked.ec_transfer_params is not None
        or asked.prompt_logprobs is not None
    )
    generation = Generation(
        call.engine,
        [source],
        sink,
        record=call.record,
        metrics=parts.metrics,
        started=call.started,
        whole=whole,
    )
    await run_unless_client_leaves(call.request.receive, generation.run())
    generation.finish_record()
    call.record.finish = ",".join(message.finish_reason or "" for message in messages)
    answer = source.answer
    body = answers.chat(
        f"chatcmpl-{call.record.id}",
        call.created,
        name,
        messages,
        answers.usage(generation, reasoning=parts.has_reasoning),
        reasoning_field=parts.settings.reasoning_field,
        prompt_token_ids=rendered.prompt_token_ids if asked.return_token_ids else None,
        prompt_text=rendered.prompt_text if asked.return_prompt_text else None,
        echo=_echo(asked),
        token_ids=bool(asked.return_token_ids),
        whole=answer,
        prompt_logprobs=with_tokens(answer.prompt_logprobs if answer else None, parts.renderer.tokenizer),
    )
    return JsonBytes(dumps(body))
