"""Derenders what was passed through, beside everything else, and compares."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.derender.derenderer import Derenderer
from proxy.derender.message import MessageBuilder
from proxy.derender.settings import ChatSettings
from proxy.derender.stream import ChatStream
from proxy.errors import RequestError, UpstreamError
from proxy.observe import logs
from proxy.protocol.checks import Limits
from proxy.protocol.openai import parse_chat, parse_completion
from proxy.render.rendered import Rendered
from proxy.render.renderer import Renderer
from proxy.rollout import undo
from proxy.rollout.compare import Answer, Call, Difference, differences, prompt_difference, usage_difference
from proxy.rollout.counters import Counters
from proxy.rollout.options import RolloutOptions
from proxy.rollout.shadow import Job, Opened, Told

SLICE_SECONDS = 0.001  # of derendering before others get their turn
SLICE_IDS = 64  # of an answer that came in one piece
MAX_SAMPLE_IDS = 4096
PROMPT_TAIL = 64  # ids of the prompt in a sample: whether reasoning is open is decided by its end


@dataclass
class _Derendered:
    """Our answer to one choice, and how far each text had come after each chunk."""

    answer: Answer = field(default_factory=Answer)
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    lengths: dict[str, list[int]] = field(default_factory=lambda: {"reasoning": [], "content": []})

    def token_at(self, name: str, offset: int) -> int | None:
        """The number of ids after which the text had passed ``offset``."""
        lengths = self.lengths.get(name)
        if not lengths:
            return None
        at = bisect_right(lengths, offset)
        return self.tokens[min(at, len(self.tokens) - 1)]


class Shadow:
    """The queue of answers to compare, the one task that does it, the samples of what differed."""

    def __init__(self, renderer: Renderer, derenderer: Derenderer, limits: Limits, counters: Counters) -> None:
        self.options = RolloutOptions()
        self._renderer = renderer
        self._derenderer = derenderer
        self._limits = limits
        self._counters = counters
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.samples: deque[dict[str, Any]] = deque(maxlen=self.options.shadow_samples)

    def configure(self, options: RolloutOptions) -> None:
        self.options = options
        if self.samples.maxlen != options.shadow_samples:
            self.samples = deque(self.samples, maxlen=options.shadow_samples)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def submit(self, opened: Opened, *, request_id: str, path: str, body: bytes) -> None:
        """Take an answer that has been relayed to its end; never waits."""
        recording = opened.tap.recording
        if reason := recording.why_not():
            (self._counters.dropped if reason == "too_large" else self._counters.skipped)[reason] += 1
            return
        if len(self._waiting) >= self.options.shadow_queue:
            self._counters.dropped["queue"] += 1
            return
        self._waiting.append(
            Job(request_id, path, body, opened.tap.streamed, opened.n, recording.choices, recording.usage)
        )
        self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                job = self._waiting.popleft()
                try:
                    await self._compare(job)
                except (RequestError, UpstreamError) as error:
                    # The engine has served what this proxy refuses: no difference of text, but one all the same.
                    self._counters.skipped["refused"] += 1
                    self._sample(job, {"refused": error.param if isinstance(error, RequestError) else None})
                except Exception as error:
                    logs.failure(error)
                    self._counters.skipped["internal"] += 1

    async def _compare(self, job: Job) -> None:
        prompts = await self._rendered(job)
        found: list[tuple[int, Difference, int | None]] = []
        completion = reasoning = 0
        pause = _Pause()
        for index in sorted(job.choices):
            told = job.choices[index]
            rendered = prompts[min(index // job.n, len(prompts) - 1)]
            ours = await self._derender(job, index, told, rendered, pause)
            completion += ours.completion_tokens
            reasoning += ours.reasoning_tokens
            for difference in differences(ours.answer, told.answer):
                found.append((index, difference, ours.token_at(difference.field, difference.offset)))
            if (prompt := prompt_difference(rendered.prompt_token_ids, told.prompt or ())) is not None:
                found.append((index, prompt, None))
        if job.usage is not None:
            asked = sum(len(job.choices[index].prompt or ()) for index in sorted(job.choices)[:: job.n])
            if (usage := usage_difference(_counts(asked, completion, reasoning), _told(job.usage))) is not None:
                found.append((0, usage, None))
        self._counters.compared += 1
        for name in {difference.field for _, difference, _ in found}:
            self._counters.mismatch[name] += 1
        for index, difference, token in found:
            self._sample(job, self._shown(job.choices[index], index, difference, token))

    async def _rendered(self, job: Job) -> Sequence[Rendered]:
        if job.path == "/v1/completions":
            return await self._renderer.completion(parse_completion(job.body, self._limits))
        asked = parse_chat(job.body, self._limits, media=self._renderer.takes_media)
        return [await self._renderer.chat(asked)]

    async def _derender(
        self, job: Job, index: int, told: Told, rendered: Rendered, pause: Callable[[], Awaitable[None]]
    ) -> _Derendered:
        opening = self._derenderer.text if job.path == "/v1/completions" else self._derenderer.chat
        stream: ChatStream = opening(
            rendered.settings, request_id=job.request_id, prompt_token_ids=told.prompt, index=index
        )
        ours = _Derendered()
        builder = MessageBuilder()
        seen, reasoning, content = 0, 0, 0
        for ids in _cut(told.chunks):
            for delta in stream.feed(ids):
                builder.add(delta)
                reasoning += len(delta.reasoning or "")
                content += len(delta.content or "")
            seen += len(ids)
            ours.tokens.append(seen)
            ours.lengths["reasoning"].append(reasoning)
            ours.lengths["content"].append(content)
            await pause()
        for delta in stream.feed([], self._engine_finish(told, rendered.settings), told.stop_reason):
            builder.add(delta)
        calls = [Call(call["name"], call["arguments"]) for call in builder.tool_calls]
        ours.answer = Answer(builder.reasoning or "", builder.content or "", calls, builder.finish_reason)
        ours.completion_tokens, ours.reasoning_tokens = stream.completion_tokens, stream.reasoning_tokens
        return ours

    def _engine_finish(self, told: Told, settings: ChatSettings) -> str:
        """How the engine itself must have ended: by its last id where that ends answers, else as it told."""
        last = told.chunks[-1][-1] if told.chunks else None
        ends = () if settings.ignore_eos else self._derenderer.eos_token_ids
        if last in ends or last in settings.stop_token_ids:
            return "stop"
        finish = told.finish_reason or ""
        return "stop" if finish == "tool_calls" else finish

    def _shown(self, told: Told, index: int, difference: Difference, token: int | None) -> dict[str, Any]:
        ids = [token_id for chunk in told.chunks for token_id in chunk]
        prompt = told.prompt or []
        shown: dict[str, Any] = {
            "choice": index,
            "field": difference.field,
            "offset": difference.offset,
            "token": token,
            "ours": difference.ours,
            "theirs": difference.theirs,
            "call": difference.call,
            "prompt_tokens": len(prompt),
            "prompt_tail": prompt[-PROMPT_TAIL:],
            "token_ids": ids[:MAX_SAMPLE_IDS],
            "tokens": len(ids),
        }
        if self.options.shadow_content:
            shown["our_text"], shown["their_text"] = difference.excerpts
        return shown

    def _sample(self, job: Job, shown: dict[str, Any]) -> None:
        head = {"time": time.time(), "request_id": job.request_id, "path": job.path, "stream": job.streamed}
        self.samples.append(head | shown)


class _Pause:
    """Gives way once a slice of time has been used up."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def __call__(self) -> None:
        if time.perf_counter() - self._since > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


def _cut(chunks: list[list[int]]) -> Sequence[list[int]]:
    """The chunks, long ones in pieces: where they are cut does not matter to what is said."""
    if all(len(chunk) <= SLICE_IDS for chunk in chunks):
        return chunks
    return [chunk[at : at + SLICE_IDS] for chunk in chunks for at in range(0, len(chunk), SLICE_IDS)]


def _counts(prompt: int, completion: int, reasoning: int) -> dict[str, int | None]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "reasoning_tokens": reasoning,
    }


def _told(usage: undo.Usage) -> dict[str, int | None]:
    details = usage.completion_tokens_details
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "reasoning_tokens": details.reasoning_tokens if details is not None else None,
    }
