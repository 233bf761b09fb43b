"""``--engine auto``: asks the engine which dialect to speak, once, when it first answers.

1. Its list of models says who made it (``owned_by``): SGLang has its own route, TensorRT-LLM completions only.
2. For vLLM, and whoever says nothing that is known here, an empty request tells whether ``/inference/v1/generate`` is
   there: it is refused (400, 422) where it is, and not found (404, 405) or not offered (403, 501) where not. vLLM
   offers it with ``--tokens-only`` or ``--enable-scale-out``; without, its completions give token ids.
"""

from __future__ import annotations

import asyncio
import logging

from proxy.engines.base import Engine, EngineStream, GenerateRequest, ModelCard
from proxy.engines.completions import CompletionsEngine
from proxy.engines.http import EngineOptions, HTTPEngine
from proxy.engines.sglang import ROUTE as SGLANG_ROUTE
from proxy.engines.sglang import SGLangEngine
from proxy.engines.vllm import GENERATE, VLLMEngine
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent

log = logging.getLogger("derender")

DIALECTS: dict[str, type[HTTPEngine]] = {
    "vllm": VLLMEngine,
    "sglang": SGLangEngine,
    "completions": CompletionsEngine,
}
_NOT_THERE = frozenset({403, 404, 405, 501})
_THERE = frozenset({200, 400, 413, 415, 422})


class AutoEngine(Engine):
    """Client of one engine whose dialect is found out."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._first: HTTPEngine = VLLMEngine(options)  # asks; the questions are the same for all
        self._found: HTTPEngine | None = None
        self._asking = asyncio.Lock()

    @property
    def dialect(self) -> str:  # type: ignore[override]
        return "" if self._found is None else self._found.dialect

    async def start(self) -> None:
        await self._first.start()

    async def close(self) -> None:
        await self._first.close()
        if self._found is not None and self._found is not self._first:
            await self._found.close()

    async def found(self) -> HTTPEngine:
        """The client that speaks the engine's dialect. Raises UpstreamError while it cannot be told."""
        async with self._asking:
            if self._found is None:
                name = await self._detect()
                engine = self._first if name == "vllm" else DIALECTS[name](self._options)
                await engine.start()
                await engine.models()  # completions learn from it whom they speak to
                self._found = engine
                log.info("engine dialect found", extra={"fields": {"url": self._options.url, "dialect": name}})
        return self._found

    async def _detect(self) -> str:
        owners = {card.owned_by for card in await self._first.models()}
        if "sglang" in owners:
            return "sglang"
        if "tensorrt_llm" in owners:
            return "completions"
        if await self._has(GENERATE):
            return "vllm"
        if "vllm" not in owners and await self._has(SGLANG_ROUTE):
            return "sglang"
        return "completions"

    async def _has(self, route: str) -> bool:
        status = await self._first.status_of(route, {})
        if status in _NOT_THERE:
            return False
        if status in _THERE:
            return True
        raise UpstreamError("The engine does not tell yet what it speaks.", status=503, kind="status")

    def generate(self, request: GenerateRequest) -> EngineStream:
        return self._now.generate(request)

    async def generate_full(self, request: GenerateRequest) -> GenerateEvent:
        return await (await self.found()).generate_full(request)

    @property
    def _now(self) -> HTTPEngine:
        if self._found is None:  # nothing is generated before the engine has told its models
            raise UpstreamError("The engine is not ready yet.", status=503, kind="connect")
        return self._found

    async def models(self) -> list[ModelCard]:
        return await (await self.found()).models()

    async def healthy(self) -> bool:
        try:
            return await (await self.found()).healthy()
        except UpstreamError:
            return False

    async def has_tokenizer(self) -> bool | None:
        return await (await self.found()).has_tokenizer()

    async def metrics(self) -> bytes:
        return await self._first.metrics()
