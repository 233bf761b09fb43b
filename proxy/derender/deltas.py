"""What derendering emits: deltas of one choice, in the order in which the model wrote them."""

from __future__ import annotations

import msgspec


class ToolCallDelta(msgspec.Struct, gc=False):
    """A piece of the tool call ``index`` (0, 1, ... in order of appearance in this answer).

    The first piece of a call has ``id`` and ``name``; later ones have only ``arguments``, a fragment of
    the JSON text of the arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class LogprobCandidate(msgspec.Struct, gc=False):
    """One alternative at a position, in OpenAI's shape."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class LogprobEntry(msgspec.Struct, gc=False):
    """``choices[].logprobs.content[]`` of OpenAI: the sampled token and its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[LogprobCandidate] = []


class Delta(msgspec.Struct, gc=False):
    """One step of a choice. ``reasoning`` never stands beside ``content`` or ``tool_calls``.

    ``finish_reason`` is set on the last delta of a choice and nowhere else. ``logprobs`` and ``token_ids``
    belong to the tokens that this delta accounts for, whether or not their text is in it.
    """

    reasoning: str | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[LogprobEntry] | None = None
    token_ids: list[int] | None = None
