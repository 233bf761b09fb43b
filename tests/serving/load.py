"""Many streams at once, each read to its end, and what became of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import aiohttp

from tests.e2e.wire import chat_body


@dataclass
class Outcome:
    """``status`` 0: refused. ``cut``: the connection ended in the middle of an answer."""

    status: int = 0
    events: list = field(default_factory=list)
    cut: bool = False
    closes: bool = False  # the answer said that the connection would be closed
    retry_after: str | None = None

    @property
    def complete(self):
        return (
            self.status == 200 and not self.cut and self.events[-1] == "DONE"
            and any(choice["finish_reason"] for event in self.events[:-1] for choice in event.get("choices", []))
        )  # fmt: skip

    @property
    def told(self):
        """It ended with an error event and ``[DONE]``."""
        return self.status == 200 and not self.cut and self.events[-1] == "DONE" and "error" in self.events[-2]


async def one(session, url, *, words=20, itl=0.1, path="/v1/chat/completions", **more):
    """One streamed chat."""
    outcome = Outcome()
    body = chat_body("word " * words, xargs={"itl": itl}) | {"stream": True} | more
    try:
        async with session.post(url + path, json=body) as response:
            outcome.status = response.status
            outcome.closes = response.headers.get("connection") == "close"
            outcome.retry_after = response.headers.get("retry-after")
            text = await response.text()
    except aiohttp.ClientConnectorError:
        return outcome
    except aiohttp.ClientError:
        outcome.cut = True
        return outcome
    if outcome.status == 200 and body["stream"]:
        assert text.endswith("\n\n")
        for frame in text[:-2].split("\n\n"):
            if frame.startswith("data: "):
                outcome.events.append("DONE" if frame == "data: [DONE]" else json.loads(frame[6:]))
    return outcome


def clients():
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60, sock_connect=20)
    )


async def open_streams(url):
    """What the gauge says, of all workers together."""
    async with clients() as session, session.get(f"{url}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("derender_streams_active "):
                return int(float(line.split()[1]))
    raise AssertionError("no gauge")


async def until(condition, seconds=20.0):
    """Ask ``condition``, a coroutine function, again and again."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def until_open(url, count):
    async def reached():
        return await open_streams(url) == count

    await until(reached)


async def until_refused(session, url):
    """The first answer that is not one."""
    refused = []

    async def happened():
        outcome = await one(session, url, words=2, itl=0.0)
        refused.append(outcome)
        return not outcome.complete

    await until(happened)
    return refused[-1]


async def until_not_ready(url):
    async def happened():
        return await status_of(f"{url}/ready") == 503

    await until(happened)


async def status_of(url):
    """0 where nobody listens."""
    try:
        async with clients() as session, session.get(url) as response:
            return response.status
    except aiohttp.ClientError:
        return 0
