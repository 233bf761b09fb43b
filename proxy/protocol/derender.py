"""Wire types of the derender endpoints (vLLM 0.33), and the bounds that need no model.

What is large and often needs no look (prompt ids, carried state, the request) stays ``msgspec.Raw``: JSON that is
known to be well-formed and has not been decoded. Fields that are not named here are ignored. Every fault is a
``RequestError`` that names one field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from proxy.errors import RequestError
from proxy.protocol.decode import in_our_words
from proxy.protocol.generate import Logprobs, TokenLogprob, Usage

T = TypeVar("T")

MAX_REQUEST_ID = 1024  # characters; the id goes into every answer
NULL = b"null"
NOTHING = msgspec.Raw(NULL)


# Seconds since the epoch, as every JSON reader takes it.
Created = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ChunkChoice(msgspec.Struct, gc=False):
    """What one engine event says of one choice; ``token_ids`` are the new ids only."""

    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None


class GenerateChunk(msgspec.Struct):
    """One event of ``/inference/v1/generate``; a choice, or usage alone."""

    choices: list[ChunkChoice]
    request_id: str | None = None
    created: Created | None = None
    usage: Usage | None = None
    output_mode: Literal["tokens"] = "tokens"
    prompt_token_ids: msgspec.Raw = NOTHING
    metrics: msgspec.Raw = NOTHING


class StreamCall(msgspec.Struct):
    """Body of a streaming call. ``chat_request`` / ``completion_request``: whichever the path takes."""

    generate_chunk: msgspec.Raw
    stream: bool | None = None
    model: str | None = None
    stream_state: msgspec.Raw = NOTHING
    prompt_tokens: int | None = None
    prompt_token_ids: msgspec.Raw = NOTHING
    chat_request: msgspec.Raw = NOTHING
    completion_request: msgspec.Raw = NOTHING


class WholeChoice(msgspec.Struct):
    """One finished choice; a missing ``finish_reason`` means "stop", as in OpenAI's specification."""

    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None


class WholeResponse(msgspec.Struct):
    """A non-streamed answer of ``/inference/v1/generate``."""

    choices: list[WholeChoice]
    request_id: str | None = None
    created: Created | None = None
    output_mode: Literal["tokens"] = "tokens"
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[msgspec.Raw] | None = None
    kv_transfer_params: msgspec.Raw = NOTHING
    metrics: msgspec.Raw = NOTHING


class WholeChatCall(msgspec.Struct):
    """Body of a chat call that does not stream."""

    generate_response: WholeResponse
    stream: bool | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    chat_request: msgspec.Raw = NOTHING


class WholeCompletionCall(msgspec.Struct):
    """Body of a completion call that does not stream: one generate response for each prompt."""

    generate_responses: list[WholeResponse]
    stream: bool | None = None
    model: str | None = None
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[int] | None] | None = None
    completion_request: msgspec.Raw = NOTHING


class SessionOpening(msgspec.Struct):
    """The first line of a streaming session: what a stream of events has in common."""

    model: str | None = None
    created: Created | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: msgspec.Raw = NOTHING
    chat_request: msgspec.Raw = NOTHING


class _Kind(msgspec.Struct):
    stream: bool | None = None


_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_stream = msgspec.json.Decoder(StreamCall).decode
_decode_chunk = msgspec.json.Decoder(GenerateChunk).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode


def _typed(decode: Any, raw: bytes | msgspec.Raw, at: str = "") -> Any:
    """``raw`` by ``decode``; a fault names the field, under ``at``."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise in_our_words(str(error), at) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError("The request body is not valid JSON.") from error
    except RecursionError as error:
        raise RequestError("The request body is nested too deeply.") from error


def dumps(value: object) -> bytes:
    return msgspec.json.encode(value)


def is_streamed(body: bytes) -> bool:
    """Which of the two shapes a body has."""
    return bool(_typed(_decode_kind, body).stream)


def parse_stream(body: bytes) -> StreamCall:
    """The body of a streaming call, and of no other: ask ``is_streamed`` if ``stream`` is not set."""
    call: StreamCall = _typed(_decode_stream, body)
    if call.prompt_tokens is not None and call.prompt_tokens < 0:
        raise RequestError("`prompt_tokens` must not be negative.", param="prompt_tokens")
    return call


def parse_whole(body: bytes, kind: type[T]) -> T:
    """A body that does not stream: ``WholeChatCall`` or ``WholeCompletionCall``."""
    found: T = _typed(msgspec.json.Decoder(kind).decode, body)
    return found


def parse_opening(body: bytes) -> SessionOpening:
    """The first line of a session."""
    found: SessionOpening = _typed(msgspec.json.Decoder(SessionOpening).decode, body)
    return found


def parse_chunk(raw: bytes | msgspec.Raw) -> GenerateChunk:
    """``generate_chunk`` of a streaming call."""
    chunk: GenerateChunk = _typed(_decode_chunk, raw, "generate_chunk")
    if chunk.request_id is not None and len(chunk.request_id) > MAX_REQUEST_ID:
        raise RequestError(
            f"`generate_chunk.request_id` may have at most {MAX_REQUEST_ID} characters.",
            param="generate_chunk.request_id",
        )
    return chunk


def parse_ids(raw: bytes | msgspec.Raw, at: str, vocab_size: int) -> list[int]:
    """A JSON array of ids of the vocabulary; ``at`` is the field."""
    ids: list[int] = _typed(_decode_ids, raw, at)
    check_ids(ids, at, vocab_size)
    return ids


def check_ids(ids: list[int], at: str, vocab_size: int) -> None:
    """Raise unless all ids are of the vocabulary."""
    if len(ids) == 1 and 0 <= ids[0] < vocab_size:
        return
    if ids and not (0 <= min(ids) and max(ids) < vocab_size):
        place = next(n for n, value in enumerate(ids) if not 0 <= value < vocab_size)
        negative = ids[place] < 0
        what = "must not be negative" if negative else f"is not in the vocabulary of {vocab_size} ids"
        raise RequestError(f"`{at}[{place}]` {what}.", param=f"{at}[{place}]")


def check_logprobs(entries: list[TokenLogprob], at: str, tokens: int, most: int, vocab_size: int) -> None:
    """Raise where there are more entries than ``tokens``, more candidates than ``most`` (-1: no bound), or bad ids."""
    if len(entries) > tokens:
        raise RequestError(f"`{at}.content` has {len(entries)} entries for {tokens} tokens.", param=f"{at}.content")
    for n, entry in enumerate(entries):
        here = f"{at}.content[{n}]"
        # the sampled token may come on top of the candidates that were asked for
        if 0 <= most < len(entry.top_logprobs) - 1:
            raise RequestError(
                f"`{here}.top_logprobs` has {len(entry.top_logprobs)} candidates; max_logprobs is {most}.",
                param=f"{here}.top_logprobs",
            )
        check_ids([entry.token_id, *[item.token_id for item in entry.top_logprobs]], here, vocab_size)


def check_length(prompt: int, carried: int, delta: int, max_model_len: int | None, at: str) -> None:
    """The rule of vLLM, in its words; ``at`` is the field whose length is too much."""
    if max_model_len is not None and prompt + carried + delta > max_model_len:
        raise RequestError(
            f"prompt_token_ids length ({prompt}) plus output_token_ids length ({carried}) plus delta ({delta}) "
            f"exceeds max_model_len ({max_model_len}).",
            param=at,
        )
