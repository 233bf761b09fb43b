"""Notices that a file has been replaced, also behind symbolic links: a Kubernetes ConfigMap is updated by renaming a
link (``..data``) over another, so that the path stays and everything behind it is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

Signature = tuple[int, int, int, int]


def signature(path: str) -> Signature | None:
    """What tells one version of a file from another; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


class FileWatch:
    """Looks at ``path`` every ``interval`` seconds, in a thread (it may lie on a network), and calls ``changed``."""

    def __init__(self, path: str, changed: Callable[[], Awaitable[None]], interval: float = 1.0) -> None:
        self._path = path
        self._changed = changed
        self.interval = interval
        self._seen = signature(path)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            await self.look()

    async def look(self) -> None:
        """Look now."""
        now = await asyncio.to_thread(signature, self._path)
        # Between the removal of a file and its return there is nothing to read.
        if now is not None and now != self._seen:
            self._seen = now
            await self._changed()
