"""Wire types of a token-only engine: vLLM's ``/inference/v1/generate`` (0.33).

Other dialects are mapped to these by their adapter in ``proxy.engines``. Fields that a server leaves
out take their defaults; fields that are not named here are ignored.
"""

from __future__ import annotations

import msgspec


class TopLogprob(msgspec.Struct, gc=False):
    """One candidate at a position: ``logprob`` is a natural logarithm, ``rank`` counts from 1."""

    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprob(msgspec.Struct, gc=False):
    """The sampled token of a position; ``top_logprobs`` has the sampled token first, then rank order."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[TopLogprob] = []


class Logprobs(msgspec.Struct, gc=False):
    content: list[TokenLogprob] | None = None


class PromptTokensDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts. In a chunk (continuous stats) they are those of that chunk's choice."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class GenerateChoice(msgspec.Struct, gc=False):
    """What one event says of one choice. ``token_ids`` are the new ids only."""

    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None


class EngineError(msgspec.Struct, gc=False):
    """The ``error`` object of an engine's answer, before or inside the stream."""

    message: str = ""
    type: str = "InternalServerError"
    param: str | None = None
    code: int | str | None = None


class GenerateEvent(msgspec.Struct, gc=False):
    """One event of the stream, or a whole non-streamed answer (whose choices carry all ids)."""

    request_id: str | None = None
    choices: list[GenerateChoice] = []
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: EngineError | None = None
    kv_transfer_params: dict[str, object] | None = None
    ec_transfer_params: dict[str, object] | None = None
    prompt_logprobs: list[dict[str, object] | None] | None = None
