"""What rendering gives: everything that a request needs of the engine and of the derenderer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.derender.derenderer import ChatSettings

# fields of the engine's generate request: a client's unknown fields must not set them
RESERVED = frozenset({
    "request_id", "token_ids", "token_offsets", "features", "content_parts", "sampling_params", "model",
    "reasoning_ended", "reasoning_parser_kwargs", "return_token_ids", "output_mode", "parse_context", "stream",
    "stream_options", "cache_salt", "priority", "kv_transfer_params", "ec_transfer_params",
})  # fmt: skip


@dataclass(slots=True)
class Rendered:
    """One prompt, ready to be generated from.

    ``sampling_params``: for a token-only engine (no stop strings, EOS ids among the stop ids, ``max_tokens`` only if
    asked for). ``render_params``: the same as vLLM's render answers them. ``prompt_text``: None where the prompt came
    as ids or was rendered elsewhere. ``max_tokens``: the most that will be generated; None: all that fits, and the
    context length is not known. ``echo_only``: the prompt is the answer; one token is asked for, since engines
    generate at least one, and is not to be shown. ``extra``: unknown fields of the request, safe to forward.
    """

    prompt_token_ids: list[int]
    sampling_params: dict[str, Any]
    render_params: dict[str, Any]
    settings: ChatSettings
    max_tokens: int | None
    prompt_text: str | None = None
    echo_only: bool = False
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    features: Any = None
    content_parts: list[dict[str, Any]] | None = None
    token_offsets: list[tuple[int, int]] | None = None
    parse_context: dict[str, Any] | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
