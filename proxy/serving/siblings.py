"""What a worker knows of the others: asked over their local sockets when somebody wants the whole.

Whichever worker is asked for ``/metrics`` or ``/debug`` answers for all. What a worker has counted outlives it in a
file beside its socket, written every few seconds: its successor goes on from there, and counters do not fall.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from proxy.observe.exposition import added
from proxy.serving.control import ask
from proxy.serving.drain import Drain

log = logging.getLogger("derender")

SAVED_EVERY = 2.0  # seconds


class Siblings:
    """The workers whose sockets are in ``directory``, of which this one is number ``index``."""

    def __init__(self, directory: Path, index: int, count: int, exposition: Callable[[], bytes]) -> None:
        self._others = [number for number in range(count) if number != index]
        self._directory = directory
        self._own = exposition
        self._file = self._counts(index)
        self._before: list[bytes] = []  # what predecessors had counted
        self._saving: asyncio.Task[None] | None = None

    def socket_of(self, index: int) -> Path:
        return self._directory / f"{index}.sock"

    def _counts(self, index: int) -> Path:
        return self._directory / f"{index}.counts"

    async def start(self, drain: Drain) -> None:
        """Go on from a predecessor's counts, and join a drain that is under way."""
        with contextlib.suppress(OSError):
            self._before = [self._file.read_bytes()]
        for answer in await self._answers("state"):
            if answer is None:
                continue
            with contextlib.suppress(ValueError):
                state = json.loads(answer)
                if state["phase"] != "serving":
                    drain.begin(elapsed=state["elapsed"])
        self._saving = asyncio.create_task(self._save())

    async def close(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._saving
            self._write()

    def exposition(self) -> bytes:
        """This worker's and its predecessors'."""
        return added([self._own()], self._before) if self._before else self._own()

    async def all_expositions(self) -> bytes:
        """Of all workers together."""
        live, past = [self.exposition()], []
        for number, answer in zip(self._others, await self._answers("metrics"), strict=True):
            if answer is not None:
                live.append(answer)
            else:
                with contextlib.suppress(OSError):
                    past.append(self._counts(number).read_bytes())
        return added(live, past)

    async def told(self, question: str) -> list[Any]:
        """What the others answer in JSON, of those that do."""
        return [msgspec.json.decode(answer) for answer in await self._answers(question) if answer]

    async def _answers(self, question: str) -> list[bytes | None]:
        return await asyncio.gather(*(ask(self.socket_of(number), question) for number in self._others))

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SAVED_EVERY)
            self._write()

    def _write(self) -> None:
        draft = self._file.with_suffix(".draft")
        try:
            draft.write_bytes(self.exposition())
            os.replace(draft, self._file)
        except OSError as error:
            log.debug("counts not saved: %s", type(error).__name__)
