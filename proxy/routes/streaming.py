"""From a generation to an SSE answer; the same for chat and text completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response

from proxy.errors import error_event
from proxy.routes.context import Call
from proxy.routes.generation import Generation, failure_of
from proxy.routes.responses import Stream, unless_client_leaves
from proxy.routes.sse_chunks import KEEP_ALIVE, usage_bytes


def final_usage(generation: Generation, *, reasoning: bool) -> bytes:
    """The usage of all choices together, tokens counted up to where each was cut."""
    return usage_bytes(
        generation.prompt_tokens,
        generation.completion_tokens,
        cached=generation.cached_tokens,
        reasoning=generation.reasoning_tokens if reasoning else None,
    )


async def stream_response(
    call: Call,
    generation: Generation,
    out: list[bytes],
    opening: bytes,
    final: Callable[[], bytes],
) -> Response:
    """The answer, its headers held until the engine's first event or for one keep-alive interval.

    ``out`` is where the generation's sink puts its frames, ``opening`` goes before the first of them, ``final``
    gives what follows the last. A failure before the headers is raised, a later one becomes an event.
    """
    settings, metrics, record = call.parts.settings, call.parts.metrics, call.record
    first = asyncio.ensure_future(generation.pull())
    try:
        if await unless_client_leaves(call.request.receive, first, settings.sse_keep_alive_interval or None):
            first.result()
    except BaseException:
        generation.release()
        raise

    async def blocks() -> AsyncGenerator[bytes, None]:
        try:
            if not first.done():
                yield KEEP_ALIVE
            more = await first
            out.insert(0, opening)
            while more:
                if out:
                    # All that one network read gave leaves in one write.
                    block = b"".join(out)
                    out.clear()
                    yield block
                more = await generation.pull()
            await generation.close()
            out.append(final())
        except Exception as error:
            # What was decoded before the fault goes first.
            out.append(error_event(failure_of(error, record, metrics)))
        yield b"".join(out)

    def on_end(complete: bool) -> None:
        generation.finish_record()
        if not complete and record.error != "shutdown":
            record.code = 499
            metrics.client_disconnects += 1

    return Stream(
        blocks(),
        generation,
        keep_alive=settings.sse_keep_alive_interval,
        stall_timeout=settings.client_stall_timeout,
        added_latency=metrics.added_latency,
        on_end=on_end,
    )
