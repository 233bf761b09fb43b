"""``POST /v1/chat/completions/derender`` and ``/v1/completions/derender``: vLLM's stateless derender, wire-compatible.

An ASGI application each, since a streamed answer is one POST per engine chunk: of what such a call costs, HTTP is the
larger part, so that a layer less is worth having. The order of the checks is that of the protocol's rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Scope, Send

from proxy.derender.deltas import Delta, LogprobEntry
from proxy.derender.live import Live, Step, merged
from proxy.derender.logprobs import LogprobFormatter
from proxy.derender.state import parse_state
from proxy.engines.events import decode_event
from proxy.errors import RequestError, UpstreamError
from proxy.observe.logs import Record
from proxy.protocol import derender as wire
from proxy.protocol.derender import NULL, ChunkChoice, GenerateChunk, StreamCall
from proxy.routes import derender_session, derender_whole
from proxy.routes.context import Parts, record_of
from proxy.routes.derender_chunks import QUIET, ChatShape, Rest, TextShape, usage_bytes
from proxy.routes.derender_tier import PARSER_NEEDS_PROMPT, PARSER_NEEDS_REQUEST, Asked
from proxy.routes.generation import failure_of
from proxy.routes.responses import ClientLeft, error_response
from proxy.routes.sse_chunks import completion_logprobs

_BLANKS = b" \t\r\n"
_NO_DELTA = Delta()
_EMPTY_STATE = (
    b'{"prev_tokens":[],"prefix_offset":0,"read_offset":0,"role_sent":false,"logprob_context_token_ids":[],'
    b'"logprob_text_offset":0,"output_token_ids":[],"output_chunk_lens":[],"tools_streamed":false,'
    b'"last_tool_call_ids":[]}'
)


async def read_body(receive: Receive) -> bytes:
    """The whole body; raises ClientLeft."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def send_json(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def content_type(scope: Scope) -> bytes:
    """The media type of the body, lower case, without parameters."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value).split(b";")[0].strip().lower()
    return b""


class DerenderEndpoint:
    """``chat``: the chat path, else that of completions."""

    def __init__(self, *, chat: bool) -> None:
        self.chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: Parts = scope["derender.parts"]
        record = record_of(scope)
        try:
            media = content_type(scope)
            if self.chat and media in derender_session.MEDIA_TYPES:
                await derender_session.serve(parts, scope, receive, send, media)
                return
            if media != b"application/json":
                raise RequestError("Unsupported media type: only application/json is allowed.", param="content-type")
            answer = await self._answer(parts, record, await read_body(receive))
        except (RequestError, UpstreamError) as error:
            failure_of(error, record, parts.metrics)
            await error_response(error)(scope, receive, send)
            return
        await send_json(send, answer)

    async def _answer(self, parts: Parts, record: Record, body: bytes) -> bytes:
        call: StreamCall | None
        try:
            call = wire.parse_stream(body)
        except RequestError:
            # which shape the body has decides which fault is told
            if wire.is_streamed(body):
                raise
            call = None
        if call is None or not call.stream:
            record.stream = False
            return await derender_whole.answer(parts, body, self.chat)
        record.stream = True
        record.probe = True  # one line per chunk helps nobody; at debug level they are there
        return await self.step(parts, call)

    async def step(self, parts: Parts, call: StreamCall) -> bytes:
        """The answer to one chunk."""
        chat, tier = self.chat, parts.tier
        chunk = _chunk(call.generate_chunk)
        asked = tier.asked_chat(call.chat_request) if chat else tier.asked_completion(call.completion_request)
        model, _ = await parts.models.resolve(call.model)
        prompt = bytes(call.prompt_token_ids)
        if chat and tier.derenderer.parses:
            if bytes(call.chat_request) == NULL:
                raise RequestError(PARSER_NEEDS_REQUEST, param="chat_request")
            if prompt == NULL:
                raise RequestError(PARSER_NEEDS_PROMPT, param="prompt_token_ids")
        if len(chunk.choices) > 1:
            raise RequestError(
                f"`generate_chunk.choices` may have at most one choice (got {len(chunk.choices)}): one state carries "
                "one choice.",
                param="generate_chunk.choices",
            )
        raw = bytes(call.stream_state)
        if not chunk.choices:
            state, created, request_id = _EMPTY_STATE, chunk.created or 0, chunk.request_id or ""
            if raw != NULL:
                told = parse_state(raw)
                state, created = told.written(), told.fields.created or created
            shape = ChatShape(request_id, model, created, 0) if chat else TextShape(request_id, model, created, 0)
            return shape.without_choice(_rest(chunk, None, call.prompt_tokens, asked)) + state + b"}"
        choice = chunk.choices[0]
        ids = choice.token_ids or []
        wire.check_ids(ids, "generate_chunk.choices[0].token_ids", tier.vocab_size)
        if choice.logprobs is not None and choice.logprobs.content:
            # an event has one entry per token; more could be any number
            wire.check_logprobs(
                choice.logprobs.content,
                "generate_chunk.choices[0].logprobs",
                len(ids),
                parts.settings.max_logprobs,
                tier.vocab_size,
            )
        if prompt != NULL:
            prompt = prompt.translate(None, _BLANKS)
        binding = tier.binding(asked, model, chunk.request_id or "", choice.index, prompt)
        tokens = 0 if prompt == NULL or prompt == b"[]" else prompt.count(b",") + 1
        limit = parts.models.max_model_len
        chunk_key = bytes(call.generate_chunk) + b"%d" % (call.prompt_tokens or 0)
        if len(chunk_key) > 256:
            chunk_key = hashlib.blake2b(chunk_key, digest_size=16).digest()

        live: Live | None
        carried: bytes | None = None if raw == NULL else raw
        cache = tier.cache
        if carried is not None and (live := cache.take(binding, carried)) is not None:
            tier.lookups["live"] += 1
        elif (again := cache.repeated(binding, carried, chunk_key)) is not None:
            tier.lookups["live"] += 1
            return _answered(again)
        else:
            live = None
            if carried is None:
                wire.check_length(tokens, 0, len(ids), limit, _longest(tokens, len(ids)))
                prompt_ids = self._prompt(prompt, chunk, asked, tier.vocab_size)
                live = tier.fresh(chat, asked, binding, chunk, choice.index, prompt_ids)
            else:
                claim = parse_state(carried)
                if claim.fields.finished:
                    return self._after_the_end(
                        chunk, choice, model, claim.fields.created or chunk.created or 0, carried, asked
                    )
                live = cache.take_claimed(binding, claim)
                if live is not None:
                    tier.lookups["live"] += 1
                else:
                    wire.check_length(tokens, claim.count, len(ids), limit, _longest(tokens, len(ids), claim.count))
                    prompt_ids = [] if prompt == NULL else wire.parse_ids(prompt, "prompt_token_ids", tier.vocab_size)
                    live = await tier.resume(chat, asked, binding, claim, chunk, choice.index, prompt_ids, limit)
        try:
            wire.check_length(tokens, live.position, len(ids), limit, _longest(tokens, len(ids), live.position))
        except RequestError:
            cache.drop(live, "error")
            raise
        try:
            if live.shape is None:
                live.shape = (
                    ChatShape(chunk.request_id or binding.hex()[:32], model, live.created, choice.index,
                              parts.settings.reasoning_field)
                    if chat
                    else TextShape(chunk.request_id or binding.hex()[:32], model, live.created, choice.index)
                )  # fmt: skip
            return await self._advance(parts, live, chunk, choice, ids, asked, call, chunk_key, carried is None)
        except BaseException:
            cache.drop(live, "error")
            raise

    def _prompt(self, prompt: bytes, chunk: GenerateChunk, asked: Asked, vocab_size: int) -> list[int]:
        """Ids of the prompt, of which plain text needs the last ones: the engine's will do."""
        if prompt != NULL:
            return wire.parse_ids(prompt, "prompt_token_ids", vocab_size)
        if asked.windowed and bytes(chunk.prompt_token_ids) != NULL:
            return wire.parse_ids(chunk.prompt_token_ids, "generate_chunk.prompt_token_ids", vocab_size)
        return []

    async def _advance(
        self,
        parts: Parts,
        live: Live,
        chunk: GenerateChunk,
        choice: ChunkChoice,
        ids: list[int],
        asked: Asked,
        call: StreamCall,
        chunk_key: bytes,
        first: bool,
    ) -> bytes:
        tier, stream = parts.tier, live.stream
        step = Step(None if first else live)
        before = stream.completion_tokens
        finish, stop = choice.finish_reason, choice.stop_reason
        shown = len(ids)
        if finish is not None:
            stop, shown = tier.ending(asked, finish, stop, ids)
        held = len(live.unfed)
        deltas = await tier.feed(live, ids, finish, stop)
        delta = merged(deltas) if deltas else _NO_DELTA
        logprobs: Sequence[LogprobEntry] | None = None
        if choice.logprobs is not None and not asked.hidden:
            formatter = LogprobFormatter(tier.vocabulary, asked.top, asked.as_ids, whole=True, context=live.context)
            content = choice.logprobs.content or []
            if stream.stopped:
                content = content[: max(0, stream.completion_tokens - before - held)]
            logprobs = [formatter.entry(item.token_id, item) for item in content]
        if delta.tool_calls:
            live.note_calls(delta.tool_calls)
        live.take(ids, shown)
        role = self.chat and not live.role_sent
        live.role_sent = live.role_sent or self.chat
        quiet = (
            finish is None
            and delta.finish_reason is None
            and logprobs is None
            and chunk.usage is None
            and not asked.return_token_ids
            and bytes(chunk.metrics) == NULL
        )
        if self.chat:
            shape: ChatShape = live.shape
            if quiet and not role and delta.content is not None and delta.tool_calls is None:
                told = shape.text(delta)
            else:
                rest = QUIET if quiet else _rest(chunk, choice, call.prompt_tokens, asked)
                told = shape.full(delta, role, logprobs, rest)
        else:
            said = delta.content or ""
            shaped = None
            if logprobs is not None:
                shaped = completion_logprobs(logprobs, live.offset)
                for n, entry in enumerate(choice.logprobs.content or [] if choice.logprobs else []):
                    if n < len(shaped["top_logprobs"]) and not entry.top_logprobs:
                        shaped["top_logprobs"][n] = None
            live.offset += sum(len(entry.token) for entry in logprobs) if logprobs else len(said)
            text_shape: TextShape = live.shape
            told = (
                text_shape.text(said)
                if quiet
                else text_shape.full(delta, shaped, _rest(chunk, choice, call.prompt_tokens, asked))
            )
        parts.metrics.tokens["completion"] += len(ids)
        pieces = live.write(tier.seal)
        if stream.finished:
            tier.cache.drop(live, "finish")
        else:
            live.remember(step, chunk_key, told)
            tier.cache.put(live)
        return b"".join([told, *pieces, b"}"])

    def _after_the_end(
        self, chunk: GenerateChunk, choice: ChunkChoice, model: str, created: int, state: bytes, asked: Asked
    ) -> bytes:
        """A choice that has ended says no more, though an engine may run on behind a stop string matched here."""
        shape = (
            ChatShape(chunk.request_id or "", model, created, choice.index)
            if self.chat
            else TextShape(chunk.request_id or "", model, created, choice.index)
        )
        rest = _rest(chunk, None, None, asked)
        told = (
            shape.full(_NO_DELTA, False, None, rest)
            if isinstance(shape, ChatShape)
            else shape.full(_NO_DELTA, None, rest)
        )
        return told + parse_state(state).written() + b"}"


def _chunk(raw: msgspec.Raw) -> GenerateChunk:
    """``generate_chunk``; its logprobs may have the shape of servers before vLLM 0.30."""
    try:
        return wire.parse_chunk(raw)
    except RequestError as error:
        if ".logprobs" not in (error.param or ""):
            raise
        try:
            event = decode_event(bytes(raw))
        except UpstreamError:
            raise error from None
        return wire.parse_chunk(wire.dumps(event))


def _answered(live: Live) -> bytes:
    """The answer to the last step once more; the stream has not moved."""
    assert live.step is not None
    return b"".join([live.step.answer, *live.pieces(), b"}"])


def _rest(chunk: GenerateChunk, choice: ChunkChoice | None, prompt_tokens: int | None, asked: Asked) -> Rest:
    ids = NULL
    if choice is not None and asked.return_token_ids:
        ids = wire.dumps(choice.token_ids)
    return Rest(
        NULL if chunk.usage is None else usage_bytes(chunk.usage, prompt_tokens),
        bytes(chunk.metrics),
        bytes(chunk.prompt_token_ids) if asked.return_token_ids else NULL,
        ids,
    )


def _longest(prompt: int, delta: int, carried: int = 0) -> str:
    """The field that is to blame for too many tokens: the longest."""
    if prompt >= max(carried, delta):
        return "prompt_token_ids"
    return "generate_chunk.choices[0].token_ids" if delta >= carried else "stream_state.output_token_ids"
