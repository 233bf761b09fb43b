"""``POST /v1/completions``: text in, text out; no parsers. Choices are numbered flat over the prompts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from proxy.derender.deltas import Delta
from proxy.derender.message import MessageBuilder
from proxy.derender.stream import ChatStream
from proxy.protocol.openai import CompletionRequest, parse_completion
from proxy.render.rendered import Rendered
from proxy.routes import answers
from proxy.routes.context import Call, call_of
from proxy.routes.generation import Generation, Source
from proxy.routes.prompt_logprobs import as_completion_logprobs, with_tokens
from proxy.routes.responses import SSE_HEADERS, JsonBytes, run_unless_client_leaves
from proxy.routes.sse_chunks import DONE, CompletionChunks, dumps, usage_bytes
from proxy.routes.streaming import final_usage, stream_response


async def completions(request: Request) -> Response:
    call = call_of(request)
    asked = parse_completion(await request.body(), call.parts.limits)
    call.adopt_id(asked.request_id)
    call.record.stream = bool(asked.stream)
    name, engine_model = await call.parts.models.resolve(asked.model)
    call.record.model = name
    prompts = await call.parts.renderer.completion(asked)
    n = asked.n or 1
    call.record.n = n * len(prompts)
    sources = []
    for number, rendered in enumerate(prompts):
        suffix = f"-{number}" if len(prompts) > 1 else ""
        streams = [
            call.parts.derenderer.text(
                rendered.settings,
                request_id=call.record.id,
                prompt_token_ids=rendered.prompt_token_ids,
                index=number * n + index,
            )
            for index in range(n)
        ]
        engine_request = call.engine_request(rendered, engine_model, suffix=suffix)
        if asked.echo and asked.logprobs is not None:
            engine_request.sampling_params.setdefault("prompt_logprobs", asked.logprobs)
        sources.append(Source(engine_request, streams, first=number * n))
    if asked.stream:
        if asked.echo_only:
            return _echo_stream(call, asked, name, prompts)
        return await _streamed(call, asked, name, prompts, sources)
    return await _whole(call, asked, name, prompts, sources)


def _prompt_text(call: Call, rendered: Rendered) -> str:
    """The prompt as text: the client's own, or decoded where it sent ids."""
    if rendered.prompt_text is not None:
        return rendered.prompt_text
    return str(call.parts.renderer.tokenizer.decode(rendered.prompt_token_ids))


async def _streamed(
    call: Call, asked: CompletionRequest, name: str, prompts: list[Rendered], sources: list[Source]
) -> Response:
    n = asked.n or 1
    chunks = CompletionChunks(
        f"cmpl-{call.record.id}", name, call.created, n * len(prompts), token_ids=bool(asked.return_token_ids)
    )
    out: list[bytes] = []

    def sink(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        usage = None
        if asked.continuous_usage:
            usage = usage_bytes(len(prompts[index // n].prompt_token_ids), stream.completion_tokens)
        chunks.add(out, index, deltas, usage)

    generation = Generation(
        call.engine, sources, sink, record=call.record, metrics=call.parts.metrics, started=call.started
    )
    opening = []
    for index in range(n * len(prompts)):
        rendered = prompts[index // n]
        if asked.echo or asked.return_token_ids:
            usage = usage_bytes(len(rendered.prompt_token_ids), 0) if asked.continuous_usage else None
            text = _prompt_text(call, rendered) if asked.echo else ""
            ids = rendered.prompt_token_ids if asked.return_token_ids else None
            opening.append(chunks.echo(index, text, ids, usage))

    def final() -> bytes:
        return (chunks.usage(final_usage(generation, reasoning=False)) if asked.include_usage else b"") + DONE

    return await stream_response(call, generation, out, b"".join(opening), final)


def _echo_stream(call: Call, asked: CompletionRequest, name: str, prompts: list[Rendered]) -> Response:
    """The prompts back and no token more: there is nothing to ask the engine for."""
    n = asked.n or 1
    chunks = CompletionChunks(f"cmpl-{call.record.id}", name, call.created, n * len(prompts))
    out: list[bytes] = []
    for index in range(n * len(prompts)):
        rendered = prompts[index // n]
        usage = usage_bytes(len(rendered.prompt_token_ids), 0)
        shown = usage if asked.continuous_usage else None
        ids = rendered.prompt_token_ids if asked.return_token_ids else None
        out.append(chunks.echo(index, _prompt_text(call, rendered), ids, shown))
        chunks.add(out, index, [Delta(finish_reason="length")], shown)
    if asked.include_usage:
        out.append(chunks.usage(usage_bytes(sum(len(rendered.prompt_token_ids) for rendered in prompts), 0)))
    out.append(DONE)
    return Response(b"".join(out), media_type="text/event-stream", headers=SSE_HEADERS)


async def _whole(
    call: Call, asked: CompletionRequest, name: str, prompts: list[Rendered], sources: list[Source]
) -> Response:
    n = asked.n or 1
    messages = [MessageBuilder() for _ in range(n * len(prompts))]

    def sink(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        for delta in deltas:
            messages[index].add(delta)

    with_prompt = bool(asked.echo) and asked.logprobs is not None
    whole = (
        with_prompt
        or asked.prompt_logprobs is not None
        or asked.kv_transfer_params is not None
        or asked.ec_transfer_params is not None
    )
    generation = Generation(
        call.engine,
        sources,
        sink,
        record=call.record,
        metrics=call.parts.metrics,
        started=call.started,
        whole=whole,
    )
    if whole or not asked.echo_only:
        await run_unless_client_leaves(call.request.receive, generation.run())
    usage = answers.usage(generation, reasoning=False)
    if asked.echo_only:
        # Engines generate one token at least; where one was asked for its logprobs, it is not shown nor counted.
        messages = [MessageBuilder() for _ in messages]
        for message in messages:
            message.add(Delta(finish_reason="length"))
        usage |= {"completion_tokens": 0, "total_tokens": generation.prompt_tokens}
    generation.finish_record()
    call.record.finish = ",".join(message.finish_reason or "" for message in messages)

    choices = []
    tokenizer = call.parts.renderer.tokenizer
    for index, message in enumerate(messages):
        rendered, answer = prompts[index // n], sources[index // n].answer
        told = with_tokens(answer.prompt_logprobs, tokenizer) if answer and (index % n == 0 or with_prompt) else None
        choices.append(
            answers.completion_choice(
                index,
                message,
                echo=_prompt_text(call, rendered) if asked.echo else None,
                prompt_token_ids=rendered.prompt_token_ids if asked.return_token_ids else None,
                token_ids=bool(asked.return_token_ids),
                prompt_entries=as_completion_logprobs(told, rendered.prompt_token_ids, tokenizer)
                if with_prompt
                else None,
                prompt_logprobs=told if asked.prompt_logprobs is not None else None,
            )
        )
    body = answers.completion(
        f"cmpl-{call.record.id}",
        call.created,
        name,
        choices,
        usage,
        [source.answer for source in sources],
    )
    return JsonBytes(dumps(body))
