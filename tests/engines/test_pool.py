"""Asking an engine what it speaks; several engines behind one door: the least loaded, the dead, the returned."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from proxy.engines.base import GenerateRequest
from proxy.engines.completions import CompletionsEngine
from proxy.engines.detect import AutoEngine
from proxy.engines.exposition import merged
from proxy.engines.http import EngineOptions
from proxy.engines.pool import Pool
from proxy.engines.sglang import SGLangEngine
from proxy.engines.vllm import VLLMEngine
from proxy.errors import RequestError, UpstreamError
from tests.e2e.wire import chat_body, fold, post, stream, until
from tests.engines.raw_server import DONE, SSE_HEAD, Asked, RawServer, Step, event, http_chunk, plain, serving, sse
from tests.servers import DEMO_NAME, Process, Sidecar, Simulator, free_port

GENERATE = "/inference/v1/generate"


# -- what an engine speaks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "wanted"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("vllm-completions", "completions"),
        ("tensorrt-llm", "completions"),
    ],
)
def test_auto_asks_the_engine(dialect: str, wanted: str) -> None:
    with Simulator(dialect=dialect, served_model_name=(DEMO_NAME,)) as engine:
        with Sidecar(engine_url=engine.url, engine="auto", max_model_len=4096) as sidecar:
            assert sidecar.parts.engine is not None and sidecar.parts.engine.dialect == wanted
            answer = post(sidecar.url, {"model": DEMO_NAME, "messages": [{"role": "user", "content": "Hi"}]})
            assert "You said: Hi" in answer.json()["choices"][0]["message"]["content"]
            assert "You said" in "".join(
                choice["content"]
                for choice in fold(
                    stream(sidecar.url, {"model": DEMO_NAME, "messages": [{"role": "user", "content": "Hi"}]})
                ).values()
            )


@pytest.mark.parametrize(
    ("owner", "statuses", "wanted"),
    [
        ("vllm", {GENERATE: 400}, "vllm"),
        ("vllm", {GENERATE: 422}, "vllm"),
        ("vllm", {GENERATE: 403}, "completions"),
        ("vllm", {GENERATE: 404, "/generate": 400}, "completions"),
        ("somebody", {GENERATE: 404, "/generate": 400}, "sglang"),
        ("somebody", {GENERATE: 405, "/generate": 404}, "completions"),
        ("sglang", {}, "sglang"),
        ("tensorrt_llm", {}, "completions"),
        (None, {GENERATE: 400}, "vllm"),
    ],
)
async def test_by_its_name_and_its_routes(owner: str | None, statuses: dict[str, int], wanted: str) -> None:
    def answer(asked: Asked) -> list[Step]:
        if asked.path == "/v1/models":
            return plain(200, {"data": [{"id": "m", "owned_by": owner} if owner else {"id": "m"}]})
        return plain(statuses[asked.path], {})

    async with serving(answer) as server, started(AutoEngine(EngineOptions(url=server.url))) as engine:
        assert engine.dialect == ""
        with pytest.raises(UpstreamError):
            engine.generate(GenerateRequest("r", [1]))
        assert [card.id for card in await engine.models()] == ["m"]
        assert engine.dialect == wanted
        asked = len(server.asked)
        await engine.models()
        assert len(server.asked) == asked + 1  # found out once


async def test_an_engine_that_is_still_loading_is_asked_again() -> None:
    status = 503

    def answer(asked: Asked) -> list[Step]:
        return plain(200, {"data": [{"id": "m"}]}) if asked.path == "/v1/models" else plain(status, {})

    async with serving(answer) as server, started(AutoEngine(EngineOptions(url=server.url))) as engine:
        assert not await engine.healthy()
        with pytest.raises(UpstreamError):
            await engine.models()
        status = 400
        await engine.models()
        assert engine.dialect == "vllm"


# -- several engines -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def started(engine: Any) -> AsyncIterator[Any]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def pool_of(*servers: RawServer | str, interval: float = 60.0) -> Pool:
    urls = [server if isinstance(server, str) else server.url for server in servers]
    return Pool([(url, VLLMEngine(EngineOptions(url=url, connect_timeout=1))) for url in urls], interval=interval)


def answering(*steps: Step) -> Any:
    return lambda asked: list(steps) if asked.path == GENERATE else plain(200, {"data": [{"id": "m"}]})


def asked_of(server: RawServer) -> int:
    return sum(asked.path == GENERATE for asked in server.asked)


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")


ANSWER = sse(event(7, finish="stop") + DONE)
HELD: list[Step] = [SSE_HEAD, http_chunk(event(1)), 30.0]


async def ids_of(pool: Pool, **params: Any) -> list[int]:
    async with pool.generate(GenerateRequest("r", [1], params)) as running:
        found = [token async for events in running for one in events for token in one.choices[0].token_ids or ()]
        assert running.ended and running.read_at > 0 and running.received_at > 0
    return found


async def test_equals_take_turns_and_the_busy_one_rests() -> None:
    async with serving(answering(*ANSWER)) as one, serving(answering(*ANSWER)) as two:
        async with started(pool_of(one, two)) as pool:
            await pool.check()
            for _ in range(6):
                assert await ids_of(pool) == [7]
            assert (asked_of(one), asked_of(two)) == (3, 3)
            one.answer = answering(*HELD)
            async with contextlib.AsyncExitStack() as held:
                while not pool.members[0].running:
                    running = pool.generate(GenerateRequest("r", [1]))
                    await running.__aenter__()
                    if pool.members[0].running:
                        await held.enter_async_context(contextlib.aclosing(_Closing(running)))
                    else:
                        await running.__aexit__(None, None, None)
                before = asked_of(one)
                for _ in range(4):
                    await ids_of(pool)
                assert asked_of(one) == before
            assert [member.running for member in pool.members] == [0, 0]


class _Closing:
    def __init__(self, running: Any) -> None:
        self.running = running

    async def aclose(self) -> None:
        await self.running.__aexit__(None, None, None)


async def test_load_is_counted_down_however_a_request_ends() -> None:
    steps: dict[str, list[Step]] = {
        "refused": plain(400, {"error": {"message": "no", "code": 400}}),
        "failed": plain(500, {}),
        "cut": [*sse(event(1), end=False), "close"],
        "silent": [30.0],
    }
    for name, play in steps.items():
        async with serving(answering(*play)) as one, started(pool_of(one)) as pool:
            for work in (ids_of(pool), pool.generate_full(GenerateRequest("r", [1]))):
                with pytest.raises((UpstreamError, TimeoutError)):
                    async with asyncio.timeout(0.2 if name == "silent" else 5):
                        await work
            assert [member.running for member in pool.members] == [0], name


async def test_a_dead_engine_costs_no_request_and_comes_back() -> None:
    async with serving(answering(*ANSWER)) as two:
        async with serving(answering(*ANSWER)) as one:
            dead = one.url
        async with started(pool_of(dead, two, interval=0.05)) as pool:
            for member in pool.members:
                member.up = True  # as if it had just died
            assert [await ids_of(pool) for _ in range(4)] == [[7]] * 4
            assert [member.up for member in pool.members] == [False, True]
            server = await asyncio.start_server(RawServer(answering(*ANSWER)).handle, *dead[7:].split(":"))
            await eventually(lambda: pool.members[0].up)
            server.close()


async def test_one_bad_answer_of_a_health_check_is_forgiven() -> None:
    health = [200, 500, 200, 500, 500]

    def answer(asked: Asked) -> list[Step]:
        return plain(health.pop(0), b"") if asked.path == "/health" else plain(200, {"data": []})

    async with serving(answer) as one, started(pool_of(one)) as pool:
        await eventually(lambda: len(health) == 4)
        seen = []
        while health:
            await pool.check()
            seen.append(pool.members[0].up)
    assert seen == [True, True, True, False]


async def test_a_refusal_before_it_began_goes_elsewhere_and_an_error_does_not() -> None:
    for status, elsewhere in ((503, True), (400, False), (500, False), (429, False)):
        async with serving(answering(*plain(status, {}))) as one, serving(answering(*ANSWER)) as two:
            async with started(pool_of(one, two)) as pool:
                await pool.check()
                for _ in range(2):
                    if elsewhere:
                        assert await ids_of(pool) == [7]
                    else:
                        with contextlib.suppress(UpstreamError):
                            await ids_of(pool)
                assert (asked_of(one), asked_of(two)) == (1, 2 if elsewhere else 1)
                assert pool.members[0].up


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_what_has_begun_to_answer_is_never_asked_twice(ending: str) -> None:
    cut: list[Step] = [*sse(event(1), end=False), 0.02, ending]
    async with serving(answering(*cut)) as one, serving(answering(*cut)) as two, started(pool_of(one, two)) as pool:
        await pool.check()
        with pytest.raises(UpstreamError) as caught:
            await ids_of(pool)
        assert caught.value.kind == "eof"
        assert asked_of(one) + asked_of(two) == 1


async def test_what_no_dialect_can_take_is_the_clients_affair() -> None:
    async with serving(answering(*ANSWER)) as one:
        engine = SGLangEngine(EngineOptions(url=one.url))
        async with started(Pool([(one.url, engine), (one.url, engine)], interval=60)) as pool:
            for call in (
                ids_of(pool, bad_words=["x"]),
                pool.generate_full(GenerateRequest("r", [1], {"bad_words": "x"})),
            ):
                with pytest.raises(RequestError):
                    await call
            assert [member.running for member in pool.members] == [0, 0] and asked_of(one) == 0


async def test_an_engine_that_hangs_up_is_left_for_one_other_only() -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(answering("close"))) for _ in range(4)]
        pool = await stack.enter_async_context(started(pool_of(*servers)))
        await pool.check()
        with pytest.raises(UpstreamError) as caught:
            await ids_of(pool)
        assert (caught.value.kind, caught.value.status) == ("connect", 502)
        assert sum(asked_of(server) > 0 for server in servers) == 2


async def test_every_engine_is_known_by_its_own_list_of_models() -> None:
    """Not by that of the first to answer."""

    def listing(owner: str) -> Any:
        return lambda asked: plain(200, {"data": [{"id": "m", "owned_by": owner}]})

    async with serving(listing("sglang")) as one, serving(listing("tensorrt_llm")) as two:
        engines = [CompletionsEngine(EngineOptions(url=server.url)) for server in (one, two)]
        async with started(Pool([(engine.options.url, engine) for engine in engines], interval=60)) as pool:
            assert [card.id for card in await pool.models()] == ["m"]
            assert [engine.flavour.name for engine in engines] == ["sglang", "tensorrt_llm"]


async def test_an_engine_that_lists_no_models_yet_has_not_joined() -> None:
    status = 503

    def answer(asked: Asked) -> list[Step]:
        return plain(200 if asked.path == "/health" else status, {"data": []})

    async with serving(answer) as one, started(pool_of(one)) as pool:
        await pool.check()
        assert not pool.members[0].up
        status = 200
        await pool.check()
        assert pool.members[0].up


async def test_nobody_left() -> None:
    async with started(pool_of("http://127.0.0.1:1", "http://127.0.0.1:2")) as pool:
        for call in (ids_of(pool), pool.generate_full(GenerateRequest("r", [1])), pool.models(), pool.metrics()):
            with pytest.raises(UpstreamError) as caught:
                await call
            assert caught.value.kind == "connect"
        assert not await pool.healthy()
        assert pool.dialect == "vllm"


def test_expositions_become_one() -> None:
    one = b'# HELP a A.\n# TYPE a gauge\na{x="1"} 1.0\n# HELP b B.\n# TYPE b counter\nb_total 2.0\n'
    two = b'# HELP b B.\n# TYPE b counter\nb_total{} 3.0\n# HELP a A.\n# TYPE a gauge\na{x="2"} 4.0 17\n# EOF\n'
    assert merged([("e1:1", one), ("e2:2", two)]).decode().splitlines() == [
        "# HELP a A.",
        "# TYPE a gauge",
        'a{upstream="e1:1",x="1"} 1.0',
        'a{upstream="e2:2",x="2"} 4.0 17',
        "# HELP b B.",
        "# TYPE b counter",
        'b_total{upstream="e1:1"} 2.0',
        'b_total{upstream="e2:2"} 3.0',
    ]


# -- the sidecar before two engines --------------------------------------------------------------------------


@pytest.fixture
def two_engines() -> Iterator[tuple[list[int], list[Process]]]:
    """Two engines as processes, so that one can be killed; ports and processes."""
    ports = [free_port(), free_port()]
    with contextlib.ExitStack() as stack:
        yield ports, [stack.enter_context(engine_process(port)) for port in ports]


def engine_process(port: int) -> Process:
    model = "config/demo-model"
    return Process("simulate", model, "--port", str(port), "--served-model-name", DEMO_NAME, "--itl", "0.002")


def test_no_request_is_lost_when_one_of_two_is_killed(two_engines: tuple[list[int], list[Process]]) -> None:
    ports, processes = two_engines
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for process, url in zip(processes, urls, strict=True):
        process.wait_for_url(url + "/health")
    with Sidecar(engine_url=urls, engine="auto") as sidecar, ThreadPoolExecutor(4) as clients:
        pool = sidecar.parts.engine
        assert isinstance(pool, Pool)
        until(lambda: all(member.up for member in pool.members))
        assert pool.dialect == "vllm"

        def one(number: int) -> tuple[int, str]:
            answer = post(sidecar.url, chat_body(f"number {number}"))
            return answer.status_code, answer.json()["choices"][0]["message"]["content"]

        wanted = [(200, f"number {number}") for number in range(20)]
        assert list(clients.map(one, range(20))) == wanted
        processes[0].process.kill()
        processes[0].process.wait()
        assert list(clients.map(one, range(20))) == wanted
        assert [member.up for member in pool.members] == [False, True]
        assert httpx.get(sidecar.url + "/ready").status_code == 200
        series = httpx.get(sidecar.url + "/metrics").text
        for port, up in zip(ports, ("0.0", "1.0"), strict=True):
            assert f'derender_engine_up{{upstream="127.0.0.1:{port}"}} {up}\n' in series
            assert f'derender_engine_requests_running{{upstream="127.0.0.1:{port}"}} 0.0\n' in series
        assert f'vllm:num_requests_running{{upstream="127.0.0.1:{ports[1]}"' in series
        with engine_process(ports[0]) as back:
            back.wait_for_url(urls[0] + "/health")
            until(lambda: all(member.up for member in pool.members), 10)
            assert list(clients.map(one, range(20))) == wanted
            shares = collections.Counter(
                len(httpx.get(url + "/simulator/requests").json()["requests"]) > 0 for url in urls
            )
            assert shares == {True: 2}
