"""``derender-proxy drain``: what a preStop hook runs."""

from __future__ import annotations

import selectors
import socket
import sys

from proxy.serving.control import running


def drain(port: int | None, *, quiet: bool = False) -> int:
    """Begin the drain of the sidecar that runs here and wait for its end, which the server's own deadline bounds.

    0 when it is over, which a sidecar that has ended is too; 1 where none runs, or several and no ``port`` says which.
    """
    try:
        found = running(port)
    except OSError as error:
        return _fail(f"cannot look for the sidecar: {error.strerror or error}")
    if not found:
        return _fail("no sidecar runs here" + (f" at port {port}" if port is not None else ""))
    if len(found) > 1:
        ports = ", ".join(sorted({path.name.partition(".")[0] for path in found}))
        return _fail(f"several sidecars run here, at ports {ports}: say which with --port")
    (workers,) = found.values()
    _wait(workers, quiet=quiet)
    return 0


def _wait(workers: list[socket.socket], *, quiet: bool) -> None:
    open_at = dict.fromkeys(range(len(workers)), 0)
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(workers):
            connection.sendall(b"drain\n")
            selector.register(connection, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select():
                told = _read(workers[key.data])
                if told is None:
                    selector.unregister(key.fileobj)
                    told = [0]
                before = sum(open_at.values())
                for count in told:
                    open_at[key.data] = count
                if not quiet and sum(open_at.values()) != before:
                    print(f"{sum(open_at.values())} open", flush=True)


def _read(connection: socket.socket) -> list[int] | None:
    """What it has counted since; None at its end."""
    try:
        data = connection.recv(4096)
    except ConnectionError:
        data = b""
    if not data:
        return None
    # Lines are far shorter than what a local socket may tear apart.
    return [int(line[5:]) for line in data.decode().splitlines() if line.startswith("open ")]


def _fail(text: str) -> int:
    print(f"derender-proxy drain: {text}", file=sys.stderr)
    return 1
