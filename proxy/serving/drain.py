"""The end of a process without the end of its streams.

    serving -> window -> refusing -> over

1. A drain begins once, with a preStop hook (``derender-proxy drain``) or with a signal, whichever comes first. From
   then on the server is not ready.
2. For ``window`` seconds it takes new requests all the same: a gateway hears of the end later than we do. Connections
   are closed behind their answers, so that clients which keep them move on.
3. Then new requests are a 503, and streams under way have ``timeout`` seconds to end.
4. What is left then is cut: it ends with an error event and ``[DONE]``, as any stream that fails.

Leaving the process is the server's business (serving/server.py): it does once a signal has come and this is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from proxy.observe.logs import Record

Phase = Literal["serving", "window", "refusing", "over"]
LAST_WORDS = 2.0  # seconds that streams which are cut have to say so
NEVER = float("inf")


@dataclass(eq=False, slots=True)
class OpenRequest:
    """One request under way. ``cut``: the drain has ended it, by cancelling ``task``."""

    record: Record
    task: asyncio.Task[object] | None
    began: float = field(default_factory=time.monotonic)
    cut: bool = False


class Drain:
    """One per process. Times are seconds."""

    def __init__(self, window: float = 0.0, timeout: float = 30.0, now: Callable[[], float] = time.monotonic) -> None:
        self.open: set[OpenRequest] = set()
        self._timeout = timeout
        self._now = now
        self._window = window
        self._began = NEVER
        self._expired_at = NEVER  # when what was left has been cut

    @property
    def begun(self) -> bool:
        return self._began < NEVER

    @property
    def elapsed(self) -> float:
        """Since it began; 0 before."""
        return self._now() - self._began if self.begun else 0.0

    @property
    def refusing(self) -> bool:
        """Whether new requests are a 503."""
        return self._began < NEVER and self._now() >= self._began + self._window

    @property
    def over(self) -> bool:
        """The window has passed, and nothing is open or what was has been cut and had its last words."""
        return self.refusing and (not self.open or self._now() >= self._expired_at + LAST_WORDS)

    @property
    def phase(self) -> Phase:
        if not self.begun:
            return "serving"
        return "over" if self.over else "refusing" if self.refusing else "window"

    def begin(self, *, window: float | None = None, elapsed: float = 0.0) -> bool:
        """Whether this call began it. ``window`` shortens the configured one, also of a drain that has begun;
        ``elapsed``: how long ago it began, for a process that joins late."""
        if window is not None:
            self._window = min(self._window, window)
        if self.begun:
            return False
        self._began = self._now() - elapsed
        return True

    def hurry(self) -> None:
        """Begin if need be, and be over now."""
        self.begin(window=0.0)
        self._timeout = 0.0

    def enter(self, record: Record) -> OpenRequest:
        """A request has come in; its caller's task is the one to cancel."""
        found = OpenRequest(record, asyncio.current_task())
        self.open.add(found)
        return found

    def leave(self, found: OpenRequest) -> None:
        self.open.discard(found)

    def tick(self) -> int:
        """To be called a few times a second. Cuts what is open at the deadline, and tells how many that were."""
        if self._expired_at < NEVER or not self.refusing:
            return 0
        if self._now() < self._began + self._window + self._timeout:
            return 0
        self._expired_at = self._now()
        left = list(self.open)
        for found in left:
            if found.task is not None:
                found.cut = True
                found.record.error = "shutdown"
                found.task.cancel()
        return len(left)
