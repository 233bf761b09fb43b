"""``POST /debug/inspect``: a captured stream, or ids, taken apart chunk by chunk; the page's view of ``--explain``.

``{"capture": TEXT}`` is what the offline command takes; ``{"ids": [...], "chunk": N}`` are ids of one choice, N to a
chunk. ``reasoning_parser`` and ``tool_call_parser`` default to the server's. Nothing of it is kept or logged.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from proxy import offline, parsers
from proxy.derender.deltas import Delta
from proxy.derender.derenderer import ChatSettings, Derenderer, UnknownFormat
from proxy.derender.parsing.plugins import installed
from proxy.errors import RequestError
from proxy.protocol.generate import GenerateChoice, GenerateEvent
from proxy.routes.context import Parts, call_of
from proxy.routes.debug import only_if_on
from proxy.routes.responses import JsonBytes
from proxy.routes.sse_chunks import dumps

MOST_IDS = 20_000
SLICE = 0.001  # seconds of work between two turns for everybody else
ANY_TOOL = {"type": "function", "function": {"name": ""}}  # calls are looked for, whatever they are called

Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Question(msgspec.Struct, forbid_unknown_fields=True):
    capture: str | None = None
    ids: list[Id] | None = None
    chunk: Annotated[int, msgspec.Meta(ge=1)] = 1
    prompt_token_ids: list[Id] | None = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None


async def names(request: Request) -> Response:
    """The parsers that may be picked, and those that this server has."""
    parts = call_of(request).parts
    only_if_on(parts)
    registry = installed()
    own = [name or "none" for name in parts.settings.parser_names]
    fixed = ["none", "auto"]
    return JsonBytes(
        dumps(
            {
                "reasoning": fixed + sorted(registry.reasoning),
                "tools": fixed + sorted(registry.tools),
                "own": {"reasoning": own[0], "tools": own[1]},
            }
        )
    )


async def inspect(request: Request) -> Response:
    parts = call_of(request).parts
    only_if_on(parts)
    try:
        asked = msgspec.json.decode(await request.body(), type=Question)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RequestError("The question cannot be read: {capture | ids, chunk, ...} is wanted.") from None
    capture = _capture(asked)
    ids = sum(len(choice.token_ids or ()) for event in capture.events for choice in event.choices)
    if ids > MOST_IDS:
        raise RequestError(f"These are {ids} ids; {MOST_IDS} are taken.", param="capture")
    derenderer, why = _derenderer(parts, asked)
    prompt = asked.prompt_token_ids if asked.prompt_token_ids is not None else capture.prompt
    settings = ChatSettings(tools=(ANY_TOOL,), tool_choice="auto")
    session = offline.Session(derenderer, settings, prompt or [], "")
    steps = []
    began = time.perf_counter()
    for step in offline.explained(session, capture.events):
        steps.append(_told(step))
        if time.perf_counter() - began > SLICE:
            await asyncio.sleep(0)
            began = time.perf_counter()
    finished = bool(session.streams) and all(stream.finished for stream in session.streams.values())
    return JsonBytes(dumps({"why": why, "prompt": prompt is not None, "finished": finished, "steps": steps}))


def _capture(asked: Question) -> offline.Capture:
    if (asked.capture is None) == (asked.ids is None):
        raise RequestError("Give either `capture` or `ids`.", param="capture")
    if asked.capture is not None:
        try:
            return offline.read_capture(asked.capture)
        except ValueError as error:  # about the shape of what was pasted; goes back to who pasted it
            raise RequestError(f"The capture cannot be read: {error}", param="capture") from None
    ids = asked.ids or []
    events = []
    for begin in range(0, len(ids), asked.chunk):
        last = begin + asked.chunk >= len(ids)
        piece = GenerateChoice(
            index=0, token_ids=ids[begin : begin + asked.chunk], finish_reason="stop" if last else None
        )
        events.append(GenerateEvent(choices=[piece]))
    return offline.Capture(events, None)


def _derenderer(parts: Parts, asked: Question) -> tuple[Derenderer, str]:
    """For the parsers that were picked, and what `auto` has to say. RequestError for names that there are not."""
    own = parts.settings.parser_names
    picked = (asked.reasoning_parser, asked.tool_call_parser)
    if picked == (None, None):
        return parts.derenderer, parts.parsers_why
    registry = installed()
    named: list[str | None] = []
    for name, mine, known, param in (
        (picked[0], own[0], registry.reasoning, "reasoning_parser"),
        (picked[1], own[1], registry.tools, "tool_call_parser"),
    ):
        # No other names: they may import what an operator has installed for another purpose.
        if name is not None and name not in ("none", "auto", mine) and name not in known:
            raise RequestError("There is no such parser.", param=param)
        named.append(mine if name is None else None if name == "none" else name)
    renderer, vocabulary = parts.renderer, parts.derenderer.vocabulary
    try:
        choice = parsers.resolved(named[0], named[1], renderer.tokenizer, vocabulary, renderer.template_text)
        derenderer = Derenderer(
            vocabulary,
            reasoning_parser=choice.reasoning,
            tool_parser=choice.tools,
            eos_token_ids=renderer.eos_token_ids,
            tool_call_streaming=parts.settings.tool_call_streaming,
            framing_whitespace=parts.settings.framing_whitespace,
            checkpoint=parsers.checkpoint_of(renderer.tokenizer),
        )
    except UnknownFormat as error:
        raise RequestError(f"These parsers cannot be had together: {error}", param="tool_call_parser") from None
    return derenderer, choice.explanation


def _told(step: offline.Explained) -> dict[str, Any]:
    return {
        "choice": step.choice,
        "tokens": step.tokens,
        "finish_reason": step.finish_reason,
        "before": step.before,
        "after": step.after,
        "emitted": [item for delta in step.deltas for item in _regions(delta)],
        "held": step.held,
    }


def _regions(delta: Delta) -> list[dict[str, Any]]:
    """What was emitted, by region: reasoning, content, name, arguments, finish."""
    found: list[dict[str, Any]] = []
    if delta.reasoning:
        found.append({"region": "reasoning", "text": delta.reasoning})
    if delta.content:
        found.append({"region": "content", "text": delta.content})
    for call in delta.tool_calls or ():
        if call.name:
            found.append({"region": "name", "text": call.name, "call": call.index})
        if call.arguments:
            found.append({"region": "arguments", "text": call.arguments, "call": call.index})
    if delta.finish_reason is not None:
        found.append({"region": "finish", "text": delta.finish_reason})
    return found
