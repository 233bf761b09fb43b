"""A headless Chromium, driven over its DevTools protocol: enough to open a page, use it and look at it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-port=0",
)  # fmt: skip


def find() -> str:
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise RuntimeError("there is no Chromium: `make test` installs it on Debian, as root")


class Page:
    """``async with Page() as page``. ``problems``: what its console and its network had to complain about."""

    def __init__(self, width: int = 1240, height: int = 900) -> None:
        self._size = (width, height)
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._stack = contextlib.AsyncExitStack()
        self.problems: list[str] = []
        self.requested: list[str] = []

    async def __aenter__(self) -> Page:
        home = tempfile.mkdtemp(prefix="chromium-")
        self._stack.callback(shutil.rmtree, home, ignore_errors=True)
        process = await asyncio.create_subprocess_exec(
            *(find(), *FLAGS, f"--window-size={self._size[0]},{self._size[1]}", f"--user-data-dir={home}"),
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._stack.push_async_callback(self._end, process)
        port = await self._port(Path(home) / "DevToolsActivePort")
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
            (target,) = [one for one in await response.json() if one["type"] == "page"]
        self._socket = await self._stack.enter_async_context(
            session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        )
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await self._stack.aclose()

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        process.kill()
        await process.wait()

    @staticmethod
    async def _port(file: Path) -> str:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(OSError, IndexError):
                    return (await asyncio.to_thread(file.read_text)).splitlines()[0]
                await asyncio.sleep(0.05)

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.problems.append(told["params"]["exceptionDetails"]["exception"]["description"])
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.problems.append(told["params"]["entry"]["text"])
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(self._answers[number], 30)
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']}")
        result: dict[str, Any] = told["result"]
        return result

    async def evaluate(self, script: str) -> Any:
        """The value of an expression of the page's own language."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"]["exception"]["description"])
        return told["result"].get("value")

    async def until(self, script: str, seconds: float = 15.0) -> Any:
        """Wait until an expression is true; its value."""
        async with asyncio.timeout(seconds):
            while True:
                if value := await self.evaluate(script):
                    return value
                await asyncio.sleep(0.05)

    async def open(self, url: str, **headers: str) -> None:
        await self.call("Network.setExtraHTTPHeaders", headers=headers)
        await self.call("Page.navigate", url=url)
        await self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def screenshot(self) -> bytes:
        """A PNG of what is to be seen."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])
