"""The local sockets by which processes of one sidecar, and the commands of its pod, speak to one another.

One directory per sidecar, ``<temporary directory>/derender-proxy-<uid>/<port>.<pid>/``, with a socket for each worker.
A question is one line; the answer is lines, or whatever the question asks for, until the end of the connection:

    drain    begin the drain; a line ``open N`` whenever N changes, ``over`` at its end
    state    one line of JSON: {"phase", "elapsed", "open"}
    NAME     what the server's ``answers`` have under that name
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from proxy.serving.drain import Drain

log = logging.getLogger("derender")

ASK_SECONDS = 3.0  # for a sibling's answer
POLL = 0.1
MAX_ANSWER = 64 * 1024 * 1024


def home() -> Path:
    """Where the sidecars of this user have their directories. Raises OSError where it is somebody else's."""
    path = Path(tempfile.gettempdir()) / f"derender-proxy-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    # In a directory that everyone may write to, somebody may have been there first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory of this user alone")
    return path


def make_directory(port: int) -> Path | None:
    """The directory of the sidecar that this process is; None, with a warning, where there can be none."""
    try:
        for other in home().iterdir():
            if not _alive(other):
                remove_directory(other)  # of one that was killed
        path = home() / f"{port}.{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)  # of one that had the same pid, as in a container that was restarted
        path.mkdir(mode=0o700)
    except OSError as error:
        log.warning("no local socket: `derender-proxy drain` will not work", extra={"fields": {"why": str(error)}})
        return None
    return path


def remove_directory(path: Path | None) -> None:
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)


def sockets_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.sock"))


class Control:
    """Answers at ``path``."""

    def __init__(self, path: Path, drain: Drain, answers: Mapping[str, Callable[[], bytes]]) -> None:
        self.path = path
        self._drain = drain
        self._answers = dict(answers)
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Where it cannot be had (a path of more than 100 characters, say), the server does without."""
        try:
            self.path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=256)
        except OSError as error:
            log.warning("no local socket: `derender-proxy drain` will not work", extra={"fields": {"why": str(error)}})

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Who asks may be gone at any time, and the line be any line.
        with contextlib.suppress(ConnectionError, ValueError, asyncio.IncompleteReadError):
            question = (await reader.readline()).decode("ascii", "replace").strip()
            if question == "drain":
                await self._drained(writer)
            elif question == "state":
                drain = self._drain
                state = {"phase": drain.phase, "elapsed": drain.elapsed, "open": len(drain.open)}
                writer.write(json.dumps(state).encode() + b"\n")
            elif (answer := self._answers.get(question)) is not None:
                writer.write(answer())
            await writer.drain()
        writer.close()

    async def _drained(self, writer: asyncio.StreamWriter) -> None:
        drain, told = self._drain, -1
        drain.begin()
        while not drain.over:
            if len(drain.open) != told:
                told = len(drain.open)
                writer.write(b"open %d\n" % told)
                await writer.drain()
            await asyncio.sleep(POLL)
        writer.write(b"over\n")


async def ask(path: Path, question: str) -> bytes | None:
    """The answer of the process at ``path``; None where there is none."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(question.encode() + b"\n")
                return await _rest(reader)
            finally:
                writer.close()
    except OSError:  # asyncio's TimeoutError is one
        return None


async def _rest(reader: asyncio.StreamReader) -> bytes:
    parts = bytearray()
    while part := await reader.read(65536):
        parts += part
        if len(parts) > MAX_ANSWER:
            raise ConnectionError
    return bytes(parts)


def running(port: int | None = None) -> dict[Path, list[socket.socket]]:
    """The sidecars that run here, of those at ``port`` if one is given: a connection to each worker.

    Directories of those that are gone are removed. Raises OSError.
    """
    found: dict[Path, list[socket.socket]] = {}
    for path in sorted(home().iterdir()):
        if port is not None and path.name.partition(".")[0] != str(port):
            continue
        connections = []
        for name in sockets_of(path):
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(name))
            except OSError:
                connection.close()
            else:
                connections.append(connection)
        if connections:
            found[path] = connections
        elif not _alive(path):
            remove_directory(path)
    return found


def _alive(path: Path) -> bool:
    """Whether the process that ``path`` is named after exists; one that has just begun has no socket yet."""
    try:
        os.kill(int(path.name.rpartition(".")[2]), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:
        pass
    return True
