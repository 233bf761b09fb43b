"""A few threads for tokenizing long prompts, with a bound on what may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from proxy.errors import RequestError

T = TypeVar("T")


class Workers:
    """Runs work in ``threads`` threads; more than ``queue`` unfinished pieces are refused with a 429."""

    def __init__(self, threads: int, queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="render")
        self._room = threads + queue
        self._pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which must be thread-safe. RequestError(429) where too much is waiting."""
        if self._pending >= self._room:
            raise RequestError(
                "Too many long prompts are waiting to be tokenized.", status=429, headers={"retry-after": "1"}
            )
        self._pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        # counted until the thread is done, also when the client has gone
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left to look at it

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
