"""Which models there are: those that the engine lists, under the names that clients may use for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from proxy.engines.base import Engine, ModelCard
from proxy.errors import RequestError, UpstreamError

log = logging.getLogger("derender")

ASK_AGAIN = 1.0  # seconds between two questions to the engine that misses may cause
LOADING_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds between tries while an engine loads; the last one repeats


class ModelRegistry:
    """Names that clients use, mapped to names that the engine knows.

    ``served`` are the configured names; they all mean the engine's base model. Without them the engine's own name
    is used. Adapters are known by the names that the engine gives them.
    """

    def __init__(
        self,
        engine: Engine | None,
        served: Sequence[str],
        *,
        fallback: str,
        max_model_len: int | None,
        on_length: Callable[[int], None],
        on_tokenizer: Callable[[bool], None] | None = None,
    ) -> None:
        self._engine = engine
        self._served = list(served)
        self._fallback = fallback  # the name where there is no engine to ask
        self._configured_length = max_model_len
        self._on_length = on_length
        self._on_tokenizer = on_tokenizer  # None: need not be asked for (again)
        self._cards: list[ModelCard] = []
        self._asked_at = -1e9
        self._asking: asyncio.Task[None] | None = None
        self.created = int(time.time())

    @property
    def known(self) -> bool:
        """Whether the engine has told its models, or there is none to ask."""
        return self._engine is None or bool(self._cards)

    @property
    def cards(self) -> list[ModelCard]:
        """What ``/v1/models`` lists: base models under their served names, then adapters."""
        bases = [card for card in self._cards if card.parent is None]
        adapters = [card for card in self._cards if card.parent is not None]
        base = bases[0] if bases else ModelCard(id=self._fallback, root=self._fallback)
        length = self._configured_length or base.max_model_len
        names = self._served or [card.id for card in bases] or ([self._fallback] if self._engine is None else [])
        listed = [ModelCard(id=name, root=base.root or base.id, max_model_len=length) for name in names]
        return listed + adapters

    @property
    def default_engine_name(self) -> str | None:
        """The engine's own name of its base model; None where it is not known."""
        return next((card.id for card in self._cards if card.parent is None), None)

    @property
    def default_name(self) -> str:
        """The name that answers carry where the request gives none."""
        return self.cards[0].id if self.cards else self._fallback

    async def discover(self) -> None:
        """Ask the engine until it answers; runs beside the server while the engine loads."""
        pauses = iter(LOADING_PAUSES)
        pause, told = LOADING_PAUSES[0], False
        while True:
            try:
                await self.refresh()
            except UpstreamError as error:
                if not told:
                    log.warning("engine does not answer yet", extra={"fields": {"kind": error.kind}})
                    told = True
            if self.known:
                fields = {"models": [card.id for card in self.cards], "max_model_len": self.max_model_len}
                log.info("engine found", extra={"fields": fields})
                return
            pause = next(pauses, pause)
            await asyncio.sleep(pause)

    @property
    def max_model_len(self) -> int | None:
        return self._configured_length or next((card.max_model_len for card in self._cards if card.max_model_len), None)

    async def refresh(self) -> None:
        """Ask the engine once. Raises UpstreamError."""
        if self._engine is None:
            return
        self._asked_at = time.monotonic()
        cards = await self._engine.models()
        if self._on_tokenizer is not None:
            told = await self._engine.has_tokenizer()
            if told is not None:
                self._on_tokenizer(told)
                self._on_tokenizer = None
        self._cards = cards
        length = self.max_model_len
        if length is not None:
            self._on_length(length)

    async def resolve(self, name: str | None) -> tuple[str, str | None]:
        """The name that the answer carries, and the engine's; raises RequestError (404, or 503 while loading)."""
        found = self._find(name)
        if found is None and time.monotonic() - self._asked_at >= ASK_AGAIN:
            await self._ask()  # an adapter may have been loaded since, or the engine come up
            found = self._find(name)
        if found is not None:
            return found
        if not self.known:
            raise RequestError("The engine is not ready yet.", status=503, headers={"retry-after": "2"})
        raise RequestError(f"The model `{name}` does not exist.", param="model", status=404)

    async def _ask(self) -> None:
        """One question for all requests that wait for its answer; a failure leaves things as they are."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self.refresh())
            self._asking.add_done_callback(self._asked)
        await asyncio.wait((self._asking,))

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()

    def _find(self, name: str | None) -> tuple[str, str | None] | None:
        if self._engine is None:
            names = self._served or [self._fallback]
            return (name or names[0], None) if not name or name in names else None
        bases = [card.id for card in self._cards if card.parent is None]
        if not bases and not self._cards:
            return None
        base = bases[0] if bases else None
        if not name:
            return self.default_name, base
        if name in self._served:
            return name, base
        for card in self._cards:
            if card.id == name and (card.parent is not None or not self._served):
                return name, name
        return None
