"""Going on when an engine is lost: what it has generated becomes the end of the prompt of a request to the next.

Rules:

1. Only where the rest comes out as it would have: one choice, sampling that depends on nothing but the ids so far (no
   seed unless greedy, no grammar, no penalties that know prompt from output), and nothing handed over between engines.
   Every parameter that is not known to be sound is a reason not to go on.
2. Only after a loss: the connection broke off, the stream ended before its answer, or fell silent. What an engine says,
   an error or an abort, is final.
3. At most RESUMES times, and never twice without a token in between. When nobody takes the rest, the client is told of
   the first loss.
4. An answer that was complete but for its end (as many tokens as were asked for, or a stop token) is ended here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from types import TracebackType
from typing import Any

from proxy.engines.base import Engine, EngineStream, GenerateRequest, ModelCard
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateChoice, GenerateEvent

log = logging.getLogger("derender")

RESUMES = 3
LOSSES = frozenset({"eof", "timeout_idle"})

# What samples the next id from the ids so far, wherever the prompt ends.
_SOUND = frozenset({
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "min_tokens", "stop_token_ids",
    "ignore_eos", "logprobs", "logprob_token_ids", "logit_bias", "allowed_token_ids",
})  # fmt: skip
# The same as long as they have these values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1), "presence_penalty": (None, 0), "frequency_penalty": (None, 0), "seed": (None,),
    "prompt_logprobs": (None,), "structured_outputs": (None,), "extra_args": (None, {}),
}  # fmt: skip
_GREEDY = 1e-5  # vLLM samples greedily below it


def refusal(request: GenerateRequest) -> str | None:
    """What makes it unsound to go on with this request elsewhere; None where it can be done."""
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if getattr(request, name) is not None:
            return name
    params = request.sampling_params
    greedy = params.get("temperature", 1.0) is not None and params.get("temperature", 1.0) < _GREEDY
    for name, value in params.items():
        if name in _SOUND or value is None or (name == "seed" and greedy) or value in _NEUTRAL.get(name, ()):
            continue
        return name
    return None


class Resuming(Engine):
    """``inner``, whose streams survive the loss of the engine that they come from.

    ``eos_token_ids``: those of the model. ``told`` is called with what became of a loss (resumed, failed or unsound)
    and its kind.
    """

    def __init__(
        self, inner: Engine, eos_token_ids: Collection[int], told: Callable[[str, str], None]
    ) -> None:
        self._inner = inner
        self.eos_token_ids = frozenset(eos_token_ids)
        self.told = told

    @property
    def dialect(self) -> str:  # type: ignore[override]
        return self._inner.dialect

    async def start(self) -> None:
        await self._inner.start()

    async def close(self) -> None:
        await self._inner.close()

    def generate(self, request: GenerateRequest) -> EngineStream:
        return _ResumingStream(self, self._inner, request)

    async def generate_full(self, request: GenerateRequest) -> GenerateEvent:
        return await self._inner.generate_full(request)

    async def models(self) -> list[ModelCard]:
        return await self._inner.models()

    async def healthy(self) -> bool:
        return await self._inner.healthy()

    async def has_tokenizer(self) -> bool | None:
        return await self._inner.has_tokenizer()

    async def metrics(self) -> bytes:
        return await self._inner.metrics()


class _ResumingStream(EngineStream):
    """The streams of one request, one after the other."""

    def __init__(self, owner: Resuming, engine: Engine, request: GenerateRequest) -> None:
        self._owner = owner
        self._engine = engine
        self._request = request
        self._running = engine.generate(request)
        self._ids: list[int] = []  # what has been generated
        self._resumes = 0
        self._fresh = True  # something has come since the last loss
        self._over = False  # ended here

    @property
    def received_at(self) -> float:  # type: ignore[override]
        return self._running.received_at

    @property
    def read_at(self) -> float:  # type: ignore[override]
        return self._running.read_at

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self._over or self._running.ended

    async def __aenter__(self) -> EngineStream:
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._running.__aexit__(kind, error, trace)

    async def __anext__(self) -> list[GenerateEvent]:
        if self._over:
            raise StopAsyncIteration
        while True:
            try:
                events = await self._running.__anext__()
            except UpstreamError as error:
                ending = await self._after(error)
                if ending is not None:
                    return [ending]
                continue
            for event in events:
                for choice in event.choices:
                    if choice.token_ids:
                        self._ids += choice.token_ids
                        self._fresh = True
                if self._resumes and event.usage is not None and event.usage.prompt_tokens_details is not None:
                    details = event.usage.prompt_tokens_details
                    details.cached_tokens = min(details.cached_tokens or 0, len(self._request.token_ids))
            return events

    async def _after(self, loss: UpstreamError) -> GenerateEvent | None:
        """Go on after ``loss``, or raise it; the end of the answer, if that was all that is lost."""
        if loss.kind not in LOSSES:
            raise loss
        why = refusal(self._request)
        if why is not None:
            self._owner.told("unsound", loss.kind)
            raise loss
        if self._resumes == RESUMES or not self._fresh:
            self._owner.told("failed", loss.kind)
            raise loss
        self._resumes += 1
        self._fresh = False
        await self._running.__aexit__(UpstreamError, loss, None)
        ending = self._ending()
        if ending is not None:
            self._over = True
        else:
            try:
                stream = self._engine.generate(self._rest())
                await stream.__aenter__()
            except UpstreamError:
                self._owner.told("failed", loss.kind)
                raise loss from None
            self._running = stream
        log.warning(
            "engine lost, going on",
            extra={"fields": {"engine_id": self._request.request_id, "kind": loss.kind, "tokens": len(self._ids)}},
        )
        self._owner.told("resumed", loss.kind)
        return ending

    def _ending(self) -> GenerateEvent | None:
        """The end of an answer that lacks nothing else."""
        params, ids = self._request.sampling_params, self._ids
        most = params.get("max_tokens")
        finish: tuple[str, int | None] | None = None
        if ids and len(ids) >= (params.get("min_tokens") or 0):
            if ids[-1] in (params.get("stop_token_ids") or ()):
                finish = "stop", ids[-1]
            elif ids[-1] in self._owner.eos_token_ids and not params.get("ignore_eos"):
                finish = "stop", None
        if finish is None and most is not None and len(ids) >= most:
            finish = "length", None
        if finish is None:
            return None
        reason, stop = finish
        return GenerateEvent(choices=[GenerateChoice(index=0, token_ids=[], finish_reason=reason, stop_reason=stop)])

    def _rest(self) -> GenerateRequest:
        params, count = dict(self._request.sampling_params), len(self._ids)
        for name in ("max_tokens", "min_tokens"):
            if params.get(name) is not None:
                params[name] = max(0, params[name] - count)
        return replace(
            self._request,
            request_id=f"{self._request.request_id}-{self._resumes + 1}",
            token_ids=[*self._request.token_ids, *self._ids],
            sampling_params=params,
        )
