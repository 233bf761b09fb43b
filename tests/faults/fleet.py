"""Running servers: one simulator a tokenizer, one sidecar a configuration, and an engine that plays raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx

from tests.engines.raw_server import Asked, RawServer, Step, plain
from tests.faults.cases import Case, model_dir
from tests.faults.exchange import PROMPT_TEMPLATE, Client
from tests.servers import Sidecar, Simulator

GENERATE = "/inference/v1/generate"
Play = Callable[[Asked], Iterable[Step]]
DEFAULTS = (("reasoning_parser", None), ("tool_call_parser", None), ("framing_whitespace", "keep"))


def playing(steps: Iterable[Step]) -> Play:
    """The same for every request."""
    played = list(steps)
    return lambda asked: played


class Fleet:
    """Starts what is asked for at its first use; ``close`` stops everything."""

    def __init__(self) -> None:
        self.running = contextlib.ExitStack()
        self.http = self.running.enter_context(httpx.Client(timeout=60, trust_env=False))
        self.simulators: dict[Any, Simulator] = {}
        self.sidecars: dict[Any, Sidecar] = {}

    def close(self) -> None:
        for started in [*self.sidecars.values(), *self.simulators.values()]:
            started.server.should_exit = True  # all at once, then one after the other is waited for
        self.running.close()

    def simulator(self, model: str | Path, **options: Any) -> Simulator:
        """``model``: a name for ``model_dir``, or a directory."""
        key = (str(model), repr(sorted(options.items())))
        if key not in self.simulators:
            started = Simulator(model_dir(model) if isinstance(model, str) else model, **options)
            self.simulators[key] = self.running.enter_context(started)
        return self.simulators[key]

    def sidecar(self, model: str | Path, engine_url: str, **flags: Any) -> Sidecar:
        flags = {"chat_template": PROMPT_TEMPLATE} | {
            name: value for name, value in flags.items() if (name, value) not in DEFAULTS
        }
        key = (str(model), engine_url, repr(sorted(flags.items())))
        if key not in self.sidecars:
            directory = model_dir(model) if isinstance(model, str) else model
            started = Sidecar(directory, engine_url=engine_url, **flags)
            self.sidecars[key] = self.running.enter_context(started)
        return self.sidecars[key]

    def client(self, sidecar: Sidecar) -> Client:
        return Client(sidecar.url, self.http)

    def for_case(self, case: Case, engine_url: str | None = None) -> Client:
        """A client of a sidecar as ``case`` wants it, before the simulator unless another engine is given."""
        reasoning, tool = case.parsers
        return self.client(
            self.sidecar(
                case.tokenizer,
                engine_url or self.simulator(case.tokenizer).url,
                reasoning_parser=reasoning,
                tool_call_parser=tool,
                framing_whitespace="trim" if case.trims else "keep",
            )
        )


class RawEngine:
    """An engine in a thread that answers generate requests with the bytes that the test says."""

    def __init__(self, model: str = "raw", max_model_len: int = 32_768) -> None:
        self.play: Play = lambda asked: plain(500, {"error": {"message": "no play"}})
        self.aborts: list[Asked] = []
        self._card = {"object": "list", "data": [{"id": model, "root": model, "max_model_len": max_model_len}]}
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.server = RawServer(self._answer)

    @property
    def url(self) -> str:
        return self.server.url

    def asked(self) -> list[Asked]:
        """The generate requests so far."""
        return [asked for asked in list(self.server.asked) if asked.path == GENERATE]

    def _answer(self, asked: Asked) -> Any:
        if asked.path == "/v1/models":
            return plain(200, self._card)
        if asked.path == GENERATE:
            return self.play(asked)
        return plain(200, {})

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self.server.handle, "127.0.0.1", 0, limit=64 * 1024 * 1024)
        self.server.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in list(self.server.tasks):
            task.cancel()
        await asyncio.gather(*self.server.tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def __enter__(self) -> RawEngine:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> float:
    """How long it took until ``true``; fails after ``seconds``."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds, "it did not become true"
        time.sleep(0.005)
    return time.monotonic() - start
