"""``--workers N``: processes that share a port, and their parent, which does nothing but watch over them.

The parent loads everything once and forks: the workers share its memory and its key for ``stream_state``, and a new one
is there in milliseconds. Each has a SO_REUSEPORT socket of its own, which the parent keeps open as well, so that
connections wait for the successor of a worker that died. Signals go to all; when they have been told to stop, the
parent ends with the last of them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from proxy.observe import logs

log = logging.getLogger("derender")

STOPPING = (signal.SIGTERM, signal.SIGINT)
FORWARDED = (*STOPPING, signal.SIGHUP)
# A worker that dies young is started again after a pause; so many in a row, and something is wrong with all of them.
YOUNG = 5.0  # seconds
PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)


class Supervisor:
    """Runs ``work(index, sockets)`` in a process for each of ``listeners``; ``work`` serves until a signal."""

    def __init__(
        self, listeners: Sequence[list[socket.socket]], work: Callable[[int, list[socket.socket]], None]
    ) -> None:
        self._listeners = list(listeners)
        self._work = work
        self._workers: dict[int, int] = {}  # pid to index
        self._since: dict[int, float] = {}  # index to when its process began
        self._young_deaths = 0
        self._stopping = False
        self._failed = False

    def run(self) -> int:
        """The exit code: 0 when every worker has ended well after a signal."""
        for number in FORWARDED:
            signal.signal(number, self._forward)
        for index in range(len(self._listeners)):
            self._start(index)
        while self._workers:
            pid, status = os.wait()
            if pid in self._workers:  # as the first process of a container it inherits strangers
                self._ended(self._workers.pop(pid), pid, os.waitstatus_to_exitcode(status))
        return 1 if self._failed else 0

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if number in STOPPING:
            self._stopping = True
        for pid in list(self._workers):
            os.kill(pid, number)  # not waited for yet, so the pid is still its

    def _start(self, index: int) -> None:
        # Held back until the worker has handlers of its own, and until we know whom to forward to.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            if self._stopping:
                return
            pid = os.fork()
            if pid == 0:
                self._become(index)
            self._workers[pid] = index
            self._since[index] = time.monotonic()
            log.info("worker started", extra={"fields": {"worker": index, "pid": pid}})
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def _become(self, index: int) -> NoReturn:
        """In the new process: serve, and leave without what the parent would do at its end."""
        code = 1
        try:
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            for other, sockets in enumerate(self._listeners):
                if other != index:
                    _close(sockets)
            self._work(index, self._listeners[index])
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException as error:
            logs.failure(error)
        finally:
            logging.shutdown()
            sys.stdout.flush()
            os._exit(code)

    def _ended(self, index: int, pid: int, code: int) -> None:
        """``code``: negative for the signal that ended it."""
        fields = {"worker": index, "pid": pid, "code": code}
        if self._stopping:
            # Nobody will take what comes in here.
            _close(self._listeners[index])
            self._failed = self._failed or code != 0
            log.log(logging.WARNING if code else logging.INFO, "worker ended", extra={"fields": fields})
            return
        log.error("worker died", extra={"fields": fields})
        young = time.monotonic() - self._since[index] < YOUNG
        self._young_deaths = self._young_deaths + 1 if young else 0
        if self._young_deaths >= len(PAUSES) * len(self._listeners):
            log.error("workers die as soon as they start, giving up")
            self._failed = True
            self._forward(signal.SIGTERM, None)
            return
        if young:
            time.sleep(PAUSES[min(self._young_deaths - 1, len(PAUSES) - 1)])
        self._start(index)


def _close(sockets: Sequence[socket.socket]) -> None:
    for listener in sockets:
        listener.close()
