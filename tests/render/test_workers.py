"""The bounded executor."""

from __future__ import annotations

import asyncio
import threading

import pytest

from proxy.errors import RequestError
from proxy.render.workers import Workers


async def test_more_than_the_queue_is_refused_and_room_comes_back() -> None:
    workers = Workers(threads=1, queue=1)
    gate = threading.Event()
    waiting = [asyncio.create_task(workers.run(gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as caught:
        await workers.run(lambda: None)
    assert caught.value.status == 429
    assert caught.value.headers == {"retry-after": "1"}
    gate.set()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await workers.run(lambda: 5) == 5
    workers.close()


async def test_a_client_that_goes_away_keeps_its_place_until_the_thread_is_done() -> None:
    workers = Workers(threads=1, queue=0)
    gate = threading.Event()
    task = asyncio.create_task(workers.run(gate.wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(RequestError):
        await workers.run(lambda: None)
    gate.set()
    for _ in range(200):
        try:
            assert await workers.run(lambda: 5) == 5
            break
        except RequestError:
            await asyncio.sleep(0.005)
    else:
        pytest.fail("the place was never given back")
    workers.close()


async def test_errors_come_through() -> None:
    workers = Workers(threads=1, queue=0)
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)
    workers.close()
