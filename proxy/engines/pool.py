"""A few engines behind one door: each request goes to the one with the least to do.

Rules:

1. Load is what this proxy has under way at each engine; between equals they take turns.
2. An engine that cannot be reached leaves at once, one that says it is unwell after FAILURES answers; either is asked
   every ``interval`` and comes back with its first good answer. With nobody left, all are tried.
3. A request that reached nobody, or that was refused before it began (503), goes to the next; one whose engine hung up
   without an answer does so once, since it may be what the engine died of. What has begun to answer is never repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from proxy.engines.base import Engine, EngineStream, GenerateRequest, ModelCard
from proxy.engines.exposition import merged
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent

log = logging.getLogger("derender")

HEALTH_INTERVAL = 2.0  # seconds between two questions to an engine
FAILURES = 2  # unwell answers in a row: one may be a hiccup
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Member:
    """One engine. ``name`` is host and port, for logs and labels. ``running``: requests under way."""

    name: str
    url: str
    engine: Engine
    running: int = 0
    up: bool = False
    failures: int = 0
    asked: bool = False  # has answered or failed once


class Pool(Engine):
    """Engines that serve the same models."""

    def __init__(self, members: Sequence[tuple[str, Engine]], *, interval: float = HEALTH_INTERVAL) -> None:
        """``members``: URL and client of each; ``interval`` in seconds."""
        self.members = [Member(url.split("://", 1)[-1], url, engine) for url, engine in members]
        self._interval = interval
        self._turn = 0
        self._watch: asyncio.Task[None] | None = None

    @property
    def dialect(self) -> str:  # type: ignore[override]
        dialects = {member.engine.dialect for member in self.members}
        return dialects.pop() if len(dialects) == 1 else ""

    async def start(self) -> None:
        for member in self.members:
            await member.engine.start()
        self._watch = asyncio.create_task(self._watching())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
        await asyncio.gather(*(member.engine.close() for member in self.members))

    # -- who is well ---------------------------------------------------------------------------------------

    async def _watching(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        """Ask every engine how it is."""
        await asyncio.gather(*(self._ask(member) for member in self.members))

    async def _ask(self, member: Member) -> bool:
        well = await member.engine.healthy()
        if well and not member.up:
            try:
                await member.engine.models()  # whom it speaks to and which adapters there are, may have changed
            except UpstreamError:
                well = False
        if well:
            self._heard(member)
        else:
            member.failures += 1
            if member.failures >= FAILURES or not member.up:
                self.lost(member)
        return well

    def _heard(self, member: Member) -> None:
        member.failures = 0
        if not member.up:
            member.up = True
            log.info("engine joins the pool", extra={"fields": {"engine": member.name}})
        member.asked = True

    def lost(self, member: Member) -> None:
        if member.up or not member.asked:
            log.warning("engine leaves the pool", extra={"fields": {"engine": member.name}})
        member.up, member.asked = False, True

    def choose(self, without: Sequence[Member] = ()) -> Member | None:
        """The least loaded engine that is up, or of all if none is; None when all are in ``without``."""
        count = len(self.members)
        self._turn = (self._turn + 1) % count
        in_turn = [self.members[(self._turn + step) % count] for step in range(count)]
        left = [member for member in in_turn if member not in without]
        return min(left, key=lambda member: (not member.up, member.running), default=None)

    # -- generating ----------------------------------------------------------------------------------------

    def generate(self, request: GenerateRequest) -> EngineStream:
        return _PoolStream(self, request)

    async def generate_full(self, request: GenerateRequest) -> GenerateEvent:
        async def ask(member: Member) -> GenerateEvent:
            try:
                return await member.engine.generate_full(request)
            finally:
                member.running -= 1

        return await self.at_one(ask)

    async def at_one(self, work: Callable[[Member], Awaitable[T]]) -> T:
        """``work`` at the engine with the least to do, at the next if that did not take it on.

        ``running`` has been counted up for ``work``, which counts it down when it is done with the engine, and when
        it fails.
        """
        tried: list[Member] = []
        hung_up = False
        failure: UpstreamError | None = None
        while (member := self.choose(tried)) is not None:
            tried.append(member)
            member.running += 1
            try:
                return await work(member)
            except UpstreamError as error:
                failure = error
                if error.kind in ("connect", "timeout_connect"):
                    self.lost(member)
                    if error.status == 502:  # it had taken the request
                        if hung_up:
                            raise
                        hung_up = True
                elif not (error.kind == "status" and error.status == 503):
                    raise
        assert failure is not None
        raise failure

    # -- questions -----------------------------------------------------------------------------------------

    async def models(self) -> list[ModelCard]:
        """The first list, of those that are up before those that are not; all are asked, to know their adapters.

        Raises UpstreamError if nobody answers.
        """
        members = sorted(self.members, key=lambda member: not member.up)
        answers = await asyncio.gather(*(member.engine.models() for member in members), return_exceptions=True)
        for answer in answers:
            if not isinstance(answer, BaseException):
                return answer
        raise next(answer for answer in answers if isinstance(answer, BaseException))

    async def has_tokenizer(self) -> bool | None:
        """What all of them say: a request may go to any."""
        told = [
            answer
            for answer in await asyncio.gather(
                *(member.engine.has_tokenizer() for member in self.members), return_exceptions=True
            )
            if isinstance(answer, bool)
        ]
        return all(told) if told else None

    async def healthy(self) -> bool:
        """Whether any is well."""
        return any(await asyncio.gather(*(self._ask(member) for member in self.members)))

    async def metrics(self) -> bytes:
        """The series of all that answer, each with an ``upstream`` label. Raises UpstreamError if none does."""

        async def ask(member: Member) -> tuple[str, bytes]:
            return member.name, await member.engine.metrics()

        answers = await asyncio.gather(*(ask(member) for member in self.members), return_exceptions=True)
        texts = [answer for answer in answers if isinstance(answer, tuple)]
        if not texts:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return merged(texts)


class _PoolStream(EngineStream):
    """The stream of whichever engine takes it."""

    def __init__(self, pool: Pool, request: GenerateRequest) -> None:
        self._pool = pool
        self._request = request
        self._member: Member | None = None
        self._inner: EngineStream | None = None

    @property
    def received_at(self) -> float:  # type: ignore[override]
        return 0.0 if self._inner is None else self._inner.received_at

    @property
    def read_at(self) -> float:  # type: ignore[override]
        return 0.0 if self._inner is None else self._inner.read_at

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self._inner is not None and self._inner.ended

    async def __aenter__(self) -> EngineStream:
        await self._pool.at_one(self._enter)
        return self

    async def _enter(self, member: Member) -> None:
        try:
            inner = member.engine.generate(self._request)
            await inner.__aenter__()
        except BaseException:
            member.running -= 1
            raise
        self._inner, self._member = inner, member

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._member is not None:
            self._member.running -= 1
            if isinstance(error, UpstreamError) and error.kind in ("eof", "timeout_idle"):
                self._pool.lost(self._member)  # until it says that it is well: whoever goes on shall do so elsewhere
            self._member = None
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, trace)

    def __anext__(self) -> Coroutine[Any, Any, list[GenerateEvent]]:
        if self._inner is None:
            raise RuntimeError("the stream has not been entered")
        return self._inner.__anext__()
