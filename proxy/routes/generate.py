"""``POST /inference/v1/generate``: ids in; ids, text or a parsed message out, by ``output_mode``."""

from __future__ import annotations

import dataclasses
import secrets

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.derender.deltas import Delta
from proxy.derender.message import MessageBuilder
from proxy.derender.settings import ChatSettings
from proxy.derender.stream import ChatStream
from proxy.engines.base import GenerateRequest
from proxy.errors import RequestError
from proxy.protocol.generate_request import GenerateBody, ParseContext, Under, parse_generate
from proxy.protocol.openai import parse_chat
from proxy.render.context import template_kwargs
from proxy.render.rendered import RESERVED, Rendered
from proxy.render.renderer import chat_settings
from proxy.render.sampling import for_engine
from proxy.routes import answers, generate_answers
from proxy.routes.context import REQUEST_ID, Call, call_of
from proxy.routes.generate_answers import GenerateChunks
from proxy.routes.generation import Generation, Source
from proxy.routes.prompt_logprobs import with_tokens
from proxy.routes.responses import JsonBytes, run_unless_client_leaves
from proxy.routes.sse_chunks import DONE, dumps, usage_bytes
from proxy.routes.streaming import final_usage, stream_response

PATH = "/inference/v1/generate"


async def generate(request: Request) -> Response:
    call = call_of(request)
    parts, record = call.parts, call.record
    asked = parse_generate(await request.body(), parts.limits)
    record.stream, record.n = bool(asked.stream), asked.n
    name, engine_model = await parts.models.resolve(asked.model)
    record.model = name
    with Under("sampling_params"):
        (rendered,) = await parts.renderer.completion(asked.sampling)
    engine = call.engine
    if asked.output_mode == "tokens" and engine.dialect == "vllm" and parts.rollout.relay is not None:
        record.mode = "passthrough"
        return _Relayed(call, asked, engine_model)
    if asked.output_mode == "tokens" and asked.sampling.logprobs is not None:
        raise RequestError(
            "This engine's logprobs cannot be shown by token id: use output_mode='text'.",
            param="sampling_params.logprobs",
            status=501,
        )
    settings = _settings(call, asked)
    opening = parts.derenderer.chat if asked.output_mode == "derender" else parts.derenderer.text
    streams = [
        opening(settings, request_id=record.id, prompt_token_ids=asked.token_ids, index=index)
        for index in range(asked.n)
    ]
    source = Source(_engine_request(call, asked, rendered, engine_model), streams)
    answer_id = f"generate-tokens-{_client_id(call, asked)}"
    if asked.stream:
        return await _streamed(call, asked, source, answer_id, visible=settings.include_reasoning)
    return await _whole(call, asked, source, answer_id, name, visible=settings.include_reasoning)


class _Relayed(Response):
    """The engine's own answer, byte for byte, to the checked request."""

    def __init__(self, call: Call, asked: GenerateBody, engine_model: str | None) -> None:
        super().__init__()
        self._call = call
        fields = {key: value for key, value in asked.body.items() if key not in ("parse_context", "chat_request")}
        # Never the client's own: aborting by id must not reach another's request.
        fields["request_id"] = f"{call.record.id}-{secrets.token_hex(8)}"
        if engine_model is not None:
            fields["model"] = engine_model
        self._body = dumps(fields)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        relay = self._call.parts.rollout.relay
        assert relay is not None
        await relay(scope, receive, send, record=self._call.record, body=self._body, path=PATH.encode())


def _client_id(call: Call, asked: GenerateBody) -> str:
    """What the client calls the request: its header, else its body, else what we made up."""
    header = call.request.headers.get(call.parts.settings.request_id_header)
    if header is None and asked.request_id is not None and REQUEST_ID.fullmatch(asked.request_id):
        return asked.request_id
    return call.record.id


def _engine_request(call: Call, asked: GenerateBody, rendered: Rendered, model: str | None) -> GenerateRequest:
    """The client's own parameters, without what is matched here; no defaults are put in, as vLLM puts in none."""
    params = {key: value for key, value in asked.sampling_params.items() if key != "detokenize"}
    params |= {"stop_token_ids": params.get("stop_token_ids") or [], "bad_words": params.get("bad_words") or []}
    rendered.sampling_params = for_engine(
        params,
        max_tokens_given=asked.sampling.max_tokens is not None,
        eos_token_ids=call.parts.renderer.eos_token_ids,
    )
    rendered.cache_salt, rendered.priority = asked.cache_salt, asked.priority
    rendered.kv_transfer_params, rendered.ec_transfer_params = asked.kv_transfer_params, asked.ec_transfer_params
    rendered.features = asked.features
    rendered.reasoning_ended = asked.reasoning_ended
    rendered.reasoning_parser_kwargs = asked.reasoning_parser_kwargs
    rendered.extra = {key: value for key, value in asked.extra.items() if key not in RESERVED}
    if asked.content_parts is not None:
        rendered.extra["content_parts"] = asked.content_parts
    return call.engine_request(rendered, model)


def _settings(call: Call, asked: GenerateBody) -> ChatSettings:
    """What derendering depends on: the chat's part from its context, the rest from the sampling parameters."""
    sampling = asked.sampling
    base = chat_settings(sampling, {})
    settings = dataclasses.replace(base, return_token_ids=True)
    if asked.output_mode != "derender":
        return settings
    # Renders set skip_special_tokens to false for the parser's sake, not because somebody wants to see them.
    settings = dataclasses.replace(settings, skip_special_tokens=True)
    if asked.chat_request is not None:
        with Under("chat_request"):
            chat = parse_chat(dumps(asked.chat_request), call.parts.limits, media=True)
        own = chat_settings(chat, template_kwargs(chat, call.parts.settings.default_chat_template_kwargs))
        return dataclasses.replace(
            own,
            stop=base.stop if sampling.stop is not None else own.stop,
            include_stop_str_in_output=base.include_stop_str_in_output or own.include_stop_str_in_output,
            min_tokens=base.min_tokens,
            stop_token_ids=base.stop_token_ids,
            ignore_eos=base.ignore_eos,
            logprobs=base.logprobs,
            return_token_ids=True,
        )
    context = asked.context
    if context is None:
        if call.parts.derenderer.parses:
            raise RequestError(
                "output_mode='derender' requires parse_context on a server with a tool or reasoning parser. Use the "
                "one returned by /render.",
                param="parse_context",
            )
        context = ParseContext()
    return dataclasses.replace(
        settings,
        tools=context.tools or [],
        tool_choice=context.tool_choice,
        parallel_tool_calls=context.parallel_tool_calls is not False,
        include_reasoning=context.include_reasoning,
        chat_template_kwargs=context.chat_template_kwargs,
        history_tool_calls=context.history_tool_call_cnt,
    )


async def _streamed(call: Call, asked: GenerateBody, source: Source, answer_id: str, *, visible: bool) -> Response:
    parts = call.parts
    chunks = GenerateChunks(answer_id, asked, reasoning_field=parts.settings.reasoning_field, visible=visible)
    out: list[bytes] = []
    prompt = len(asked.token_ids)

    def sink(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        usage = usage_bytes(prompt, stream.completion_tokens) if asked.continuous_usage else None
        chunks.add(out, index, deltas, usage)

    generation = Generation(
        call.engine, [source], sink, record=call.record, metrics=parts.metrics, started=call.started
    )

    def final() -> bytes:
        return (chunks.usage(final_usage(generation, reasoning=False)) if asked.include_usage else b"") + DONE

    return await stream_response(call, generation, out, b"", final)


async def _whole(
    call: Call, asked: GenerateBody, source: Source, answer_id: str, name: str, *, visible: bool
) -> Response:
    parts = call.parts
    messages = [MessageBuilder() for _ in source.streams]

    def sink(index: int, deltas: list[Delta], stream: ChatStream) -> None:
        for delta in deltas:
            messages[index].add(delta)

    whole = (
        asked.kv_transfer_params is not None
        or asked.ec_transfer_params is not None
        or asked.sampling.prompt_logprobs is not None
    )
    generation = Generation(
        call.engine, [source], sink, record=call.record, metrics=parts.metrics, started=call.started, whole=whole
    )
    await run_unless_client_leaves(call.request.receive, generation.run())
    generation.finish_record()
    call.record.finish = ",".join(message.finish_reason or "" for message in messages)
    answer = source.answer
    usage = answers.usage(generation, reasoning=False) | {"completion_tokens_details": None}
    body = generate_answers.whole(
        answer_id,
        name,
        call.created,
        asked,
        messages,
        usage,
        reasoning_field=parts.settings.reasoning_field,
        visible=visible,
        answer=answer,
        prompt_logprobs=with_tokens(answer.prompt_logprobs if answer else None, parts.renderer.tokenizer),
    )
    return JsonBytes(dumps(body))
