"""The end of a sidecar under load, with real processes: no stream is cut, whichever comes first."""

import asyncio
import contextlib
import json
import signal
import sys
import time

import pytest

from proxy.observe.logs import Record
from proxy.serving.drain import LAST_WORDS, Drain
from tests.e2e.wire import chat_body
from tests.servers import DEMO_MODEL, ROOT, Process, free_port
from tests.serving.conftest import engine_process, sidecar_process
from tests.serving.load import clients, one, open_streams, status_of, until_not_ready, until_open, until_refused


def drain_command(tmp, *flags):
    """``derender-proxy drain``, under way."""
    return asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "drain", *flags),
        cwd=ROOT,
        env={"TMPDIR": str(tmp), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def exit_code(process, seconds=30):
    return await asyncio.to_thread(process.wait, seconds)


@pytest.mark.parametrize("order", ["SIGTERM alone", "preStop, then SIGTERM"])
async def test_200_open_streams_end_well(engine, tmp, order):
    with sidecar_process(engine.url, tmp=tmp, window=1.5) as sidecar:
        async with clients() as session:
            early = [asyncio.create_task(one(session, sidecar.url, words=45, itl=0.1)) for _ in range(200)]
            await until_open(sidecar.url, 200)
            hook = None
            if order == "SIGTERM alone":
                sidecar.process.send_signal(signal.SIGTERM)
            else:
                hook = await drain_command(tmp)
            await until_not_ready(sidecar.url)
            # Not ready, and still there: for a stream that a gateway sends all the same, and for probes.
            late = await one(session, sidecar.url, words=2, itl=0.0)
            assert late.complete and late.closes
            assert await status_of(f"{sidecar.url}/live") == 200
            refused = await until_refused(session, sidecar.url)
            assert (refused.status, refused.closes, refused.retry_after) == (503, True, "1")
            assert await status_of(f"{sidecar.url}/live") == 200
            assert await open_streams(sidecar.url) == 200
            outcomes = await asyncio.gather(*early)
            assert all(outcome.complete for outcome in outcomes)
            if hook is not None:
                output, _ = await asyncio.wait_for(hook.communicate(), 20)
                assert hook.returncode == 0 and b"200 open" in output and output.endswith(b"0 open\n")
                assert sidecar.process.poll() is None  # the hook does not end it
                sidecar.process.send_signal(signal.SIGTERM)
            assert await exit_code(sidecar) == 0
            assert (await one(session, sidecar.url)).status == 0


async def test_the_engine_goes_first(tmp):
    """A native sidecar gets its signal when the engine is gone, which has waited for the streams to end."""
    with engine_process() as engine, sidecar_process(engine.url, tmp=tmp, window=0.5) as sidecar:
        async with clients() as session:
            streams = [asyncio.create_task(one(session, sidecar.url, words=20, itl=0.1)) for _ in range(20)]
            await until_open(sidecar.url, 20)
            hook = await drain_command(tmp, "--quiet", "--port", str(sidecar.port))
            output, _ = await asyncio.wait_for(hook.communicate(), 20)
            assert (hook.returncode, output) == (0, b"")
            engine.process.send_signal(signal.SIGTERM)
            await exit_code(engine)
            assert all(outcome.complete for outcome in await asyncio.gather(*streams))
            sidecar.process.send_signal(signal.SIGTERM)
            assert await exit_code(sidecar) == 0


async def test_an_engine_that_dies_under_open_streams_is_told_to_clients(tmp):
    with engine_process() as engine, sidecar_process(engine.url, tmp=tmp) as sidecar:
        async with clients() as session:
            streams = [asyncio.create_task(one(session, sidecar.url, words=100, itl=0.1)) for _ in range(20)]
            await until_open(sidecar.url, 20)
            await asyncio.sleep(0.5)
            engine.process.kill()
            assert all(outcome.told for outcome in await asyncio.gather(*streams))
            sidecar.process.send_signal(signal.SIGTERM)
            assert await exit_code(sidecar) == 0


async def test_what_is_left_at_the_deadline_is_told_so(engine, tmp):
    with sidecar_process(engine.url, tmp=tmp, window=0.2, timeout=0.8) as sidecar:
        async with clients() as session:
            streams = [asyncio.create_task(one(session, sidecar.url, words=400, itl=0.2)) for _ in range(20)]
            silent = asyncio.create_task(one(session, sidecar.url, itl=60))
            whole = asyncio.create_task(one(session, sidecar.url, words=400, itl=0.2, stream=False))
            await until_open(sidecar.url, 22)
            await asyncio.sleep(0.5)
            began = time.monotonic()
            sidecar.process.send_signal(signal.SIGTERM)
            assert await exit_code(sidecar) == 0
            assert time.monotonic() - began < 6
            for outcome in await asyncio.gather(*streams, silent):
                assert outcome.told and outcome.events[-2]["error"]["code"] == 503
            assert (await whole).status == 503
            codes = [line for line in sidecar.lines if '"request"' in line and '"error":"shutdown"' in line]
            assert len(codes) == 22 and all('"code":503' in line for line in codes)


async def test_what_is_passed_through_is_told_at_the_deadline_too(tmp):
    flags = ("--mode", "passthrough")
    with (
        engine_process("--coupled") as engine,
        sidecar_process(engine.url, *flags, tmp=tmp, window=0.0, timeout=0.5) as p,
    ):
        async with clients() as session:
            streams = [asyncio.create_task(one(session, p.url, words=400, itl=0.2)) for _ in range(10)]
            await until_open(p.url, 10)
            await asyncio.sleep(0.5)
            p.process.send_signal(signal.SIGTERM)
            assert all(outcome.told for outcome in await asyncio.gather(*streams))
            assert await exit_code(p) == 0


async def test_a_client_that_takes_nothing_does_not_hold_up_the_end(engine, tmp):
    with sidecar_process(engine.url, tmp=tmp, window=0.0, timeout=0.5) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port, limit=1024)
        body = json.dumps(chat_body("word " * 200_000, xargs={"tokens_per_event": 2000}) | {"stream": True}).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await until_open(sidecar.url, 1)
        await asyncio.sleep(1.0)
        assert await open_streams(sidecar.url) == 1  # it does not fit into the sockets' buffers
        began = time.monotonic()
        sidecar.process.send_signal(signal.SIGTERM)
        assert await exit_code(sidecar) == 0
        assert time.monotonic() - began < 8
        writer.close()


async def test_up_and_down_without_an_engine(tmp):
    """The start-up probe is answered before there is an engine, or the pod would wait for itself."""
    flags = ("--host", "127.0.0.1", "--port", "0", "--engine-url", f"http://127.0.0.1:{free_port()}")
    with Process("serve", str(DEMO_MODEL), *flags, "--log-format", "json", env={"TMPDIR": tmp}) as sidecar:
        port = json.loads(sidecar.wait_for_line('"listening"'))["port"]
        url = f"http://127.0.0.1:{port}"
        sidecar.wait_for_url(f"{url}/live", 10)
        assert await status_of(f"{url}/ready") == 503
        hook = await drain_command(tmp)
        assert await asyncio.wait_for(hook.wait(), 10) == 0
        sidecar.process.send_signal(signal.SIGTERM)
        assert await exit_code(sidecar) == 0


async def test_a_second_interrupt_ends_at_once(engine, tmp):
    with sidecar_process(engine.url, tmp=tmp, window=30.0) as sidecar:
        async with clients() as session:
            stream = asyncio.create_task(one(session, sidecar.url, words=400, itl=0.2))
            await until_open(sidecar.url, 1)
            await asyncio.sleep(0.5)
            sidecar.process.send_signal(signal.SIGINT)
            assert (await until_refused(session, sidecar.url)).status == 503
            sidecar.process.send_signal(signal.SIGINT)
            assert (await stream).told
            assert await exit_code(sidecar) == 0


async def test_a_rolling_restart_of_two_replicas_loses_no_stream(engine, tmp):
    """Clients go where /ready is 200, as a gateway sends them, which looks only every half a second."""
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(sidecar_process(engine.url, tmp=tmp, window=1.0)) for _ in range(2))
        ready, outcomes, going = [first.url, second.url], [], True

        async def probe(urls):
            while going:
                found = [url for url in urls if await status_of(f"{url}/ready") == 200]
                ready[:] = found
                await asyncio.sleep(0.5)

        async def client(session, number):
            turn = number
            while going:
                turn += 1
                outcomes.append(await one(session, ready[turn % len(ready)], words=10, itl=0.05))

        urls = [first.url, second.url]
        probing = asyncio.create_task(probe(urls))
        async with clients() as session:
            load = [asyncio.create_task(client(session, number)) for number in range(20)]
            await asyncio.sleep(0.5)
            for replica in (first, second):
                replica.process.send_signal(signal.SIGTERM)
                successor = sidecar_process(engine.url, tmp=tmp, window=1.0)
                urls.append((await asyncio.to_thread(stack.enter_context, successor)).url)
                assert await exit_code(replica) == 0
                await asyncio.sleep(0.5)
            going = False
            await asyncio.gather(*load, probing)
    assert len(outcomes) > 60
    assert all(outcome.complete for outcome in outcomes)


async def test_drain_without_a_sidecar(tmp):
    hook = await drain_command(tmp)
    output, _ = await hook.communicate()
    assert hook.returncode == 1 and b"no sidecar runs here" in output


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_phases():
    clock = Clock()
    drain = Drain(window=5.0, timeout=10.0, now=clock)
    assert (drain.phase, drain.refusing) == ("serving", False)
    assert drain.begin() and not drain.begin()
    assert (drain.phase, drain.refusing, drain.over) == ("window", False, False)
    clock.now += 5.0
    assert (drain.phase, drain.over) == ("over", True)


async def test_the_deadline_cuts_once():
    clock = Clock()
    drain = Drain(window=5.0, timeout=10.0, now=clock)
    cancelled = asyncio.Event()

    async def request():
        found = drain.enter(Record())
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            assert found.cut
            cancelled.set()
            await asyncio.Event().wait()  # will not leave

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    drain.begin()
    clock.now += 14.9
    assert drain.tick() == 0 and drain.phase == "refusing"
    clock.now += 0.2
    assert drain.tick() == 1 and drain.tick() == 0
    await cancelled.wait()
    assert not drain.over
    clock.now += LAST_WORDS
    assert drain.over
    task.cancel()
    await asyncio.wait([task])


def test_a_signal_of_a_terminal_takes_the_window_away_and_a_late_joiner_has_less_of_it():
    clock = Clock()
    drain = Drain(window=5.0, now=clock)
    drain.begin()
    drain.begin(window=0.0)
    assert drain.over
    late = Drain(window=5.0, now=clock)
    late.begin(elapsed=4.0)
    assert not late.refusing
    clock.now += 1.0
    assert late.refusing
