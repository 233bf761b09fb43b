"""Real servers for tests: the simulator and the sidecar, in threads of this process or as processes.

    with Simulator() as engine, Sidecar(engine_url=engine.url, tool_call_parser="hermes") as sidecar:
        httpx.post(f"{sidecar.url}/v1/chat/completions", json=...)

Threads start in milliseconds and can be looked into (``sidecar.parts``); processes are for signals, exit codes and
output.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import uvicorn

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "config" / "demo-model"
DEMO_NAME = "demo"


class ThreadServer:
    """A uvicorn server in a thread, on a free port of 127.0.0.1; ``url`` has no slash at its end."""

    def __init__(self, server: uvicorn.Server, *listeners: socket.socket) -> None:
        self.server = server
        self.listeners = list(listeners) or [listening_socket()]
        self.url = f"http://127.0.0.1:{self.listeners[0].getsockname()[1]}"
        self.thread = threading.Thread(target=server.run, kwargs={"sockets": self.listeners}, daemon=True)

    def start(self) -> None:
        self.thread.start()
        deadline = time.monotonic() + 30
        while not self.server.started:
            if not self.thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the server at {self.url} did not start")
            time.sleep(0.005)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(15)
        if self.thread.is_alive():
            raise RuntimeError(f"the server at {self.url} did not stop")
        for listener in self.listeners:
            listener.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Simulator(ThreadServer):
    """The scripted token-only engine in a thread. ``options``: fields of ``proxy.simulator.options.Options``."""

    def __init__(self, model: str | Path | None = DEMO_MODEL, *, port: int = 0, **options: Any) -> None:
        from proxy.simulator.app import create_app
        from proxy.simulator.options import Options

        self.app = create_app(Options(model=None if model is None else str(model), **options))
        config = uvicorn.Config(self.app, log_config=None, access_log=False, lifespan="off")
        super().__init__(uvicorn.Server(config), listening_socket(port))

    def requests(self, request_id: str = "") -> list[dict[str, Any]]:
        """What was asked and became of it, oldest first: ``body``, ``aborted``, ``headers`` ..."""
        with urllib.request.urlopen(f"{self.url}/simulator/requests?request_id={request_id}", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["requests"]
        return found

    def only(self, request_id: str) -> dict[str, Any]:
        """The one request whose engine id holds ``request_id``."""
        (found,) = self.requests(request_id)
        return found


class Sidecar(ThreadServer):
    """The sidecar in a thread. ``flags`` are settings by their Python names (``tool_call_parser="hermes"``).

    ``ready``: wait until the engine has told its models. ``admin_url``: of the admin port, with ``admin_port=0``.
    """

    admin_url = ""

    def __init__(self, model: str | Path = DEMO_MODEL, *, ready: bool = True, **flags: Any) -> None:
        from proxy import app, config

        flags = {"model": str(model), "host": "127.0.0.1", "port": 0, "shutdown_timeout": 2, **flags}
        self.settings = config.load({name: value for name, value in flags.items() if value is not None})
        self.parts = app.load(self.settings)
        self._wait = ready
        admin = self.settings.admin_port is not None
        super().__init__(app.server(self.parts), *(listening_socket() for _ in range(1 + admin)))
        if self.parts.tls is not None:
            self.url = self.url.replace("http:", "https:")
        if admin:
            self.admin_url = f"http://127.0.0.1:{self.listeners[1].getsockname()[1]}"

    def start(self) -> None:
        super().start()
        deadline = time.monotonic() + 30
        while self._wait and not self.parts.models.known:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the sidecar at {self.url} did not find its engine")
            time.sleep(0.005)


def listening_socket(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def free_port() -> int:
    with contextlib.closing(listening_socket()) as listener:
        return int(listener.getsockname()[1])


class Process:
    """``python -m proxy ARGUMENTS`` as a process of its own; its output is kept in ``lines``."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proxy", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            # No gateway has to hear of the end, unless a test says so.
            env={**os.environ, "PYTHONUNBUFFERED": "1", "DERENDER_SHUTDOWN_WINDOW": "0", **(env or {})},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, text: str, seconds: float = 60) -> str:
        """The first line of output with ``text`` in it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if text in line:
                    return line
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.02)
        raise RuntimeError(f"no line with {text!r}; exit code {self.process.poll()}; output:\n{self.output}")

    def wait_for_url(self, url: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"ended with {self.process.returncode}:\n{self.output}")
            with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{url} did not answer; output:\n{self.output}")

    def wait(self, seconds: float = 60) -> int:
        """The exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
