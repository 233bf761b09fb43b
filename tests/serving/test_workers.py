"""Several workers behind one port, with real processes: one /metrics, one drain, and nobody missed when one dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.wire import chat_body, post
from tests.servers import DEMO_MODEL, ROOT, Process
from tests.serving.conftest import engine_process, sidecar_process
from tests.serving.load import clients, one, until, until_open


def samples(url):
    """Every sample, once; own connections, so that any worker may answer."""
    text = httpx.get(f"{url}/metrics").text
    found = {}
    names = []
    for family in text_string_to_metric_families(text):
        names.append(family.name)
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    assert len(names) == len(set(names))
    return found


def pids_of(sidecar):
    """The workers, by index."""
    started = [json.loads(line) for line in list(sidecar.lines) if '"worker started"' in line]
    return {line["worker"]: line["pid"] for line in started}


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.fixture
def sidecar(engine, tmp):
    with sidecar_process(engine.url, "--workers", "3", tmp=tmp) as process:
        assert len(pids_of(process)) == 3
        yield process


async def test_workers_count_together_and_a_dead_one_is_replaced(sidecar):
    def serve(count):
        for _ in range(count):
            assert post(sidecar.url, chat_body()).status_code == 200

    serve(30)  # each on its own connection, so on some worker or other
    before = samples(sidecar.url)
    key = ("derender_requests_total", (("code", "200"), ("mode", "derender"), ("route", "/v1/chat/completions")))
    for _ in range(5):
        found = samples(sidecar.url)
        assert found[key] == 30
        assert found["derender_build_info", (("version", "0.1.0"),)] == 1
        assert any(name.startswith("vllm:") for name, _ in found)
        assert found["derender_time_to_first_token_seconds_count", ()] == 30
        assert not any(name.startswith(("process_", "python_")) for name, _ in found)
    await asyncio.sleep(2.5)  # what they have counted is in their files
    for index, pid in pids_of(sidecar).items():
        os.kill(pid, signal.SIGKILL)
        await until(lambda index=index, pid=pid: replaced(sidecar, index, pid))
    serve(10)
    await until(lambda: counted(sidecar.url, key, 40))
    assert before.keys() <= samples(sidecar.url).keys()
    assert any('"worker died"' in line for line in sidecar.lines)


async def counted(url, key, value):
    return samples(url)[key] == value


async def replaced(sidecar, index, pid):
    new = pids_of(sidecar)[index]
    return new != pid and not alive(pid) and alive(new) and (Path(sidecar.home) / f"{index}.sock").exists()


async def test_drain_reaches_all(sidecar, tmp):
    async with clients() as session:
        streams = [asyncio.create_task(one(session, sidecar.url, words=25, itl=0.08)) for _ in range(60)]
        await until_open(sidecar.url, 60)
        hook = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "drain"),
            cwd=ROOT,
            env={"TMPDIR": tmp, "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
        )
        await until(lambda: all_not_ready(sidecar.url))
        output, _ = await asyncio.wait_for(hook.communicate(), 20)
        assert hook.returncode == 0 and b"60 open" in output
        for _ in range(10):
            assert (await one(session, sidecar.url)).status == 503
        # A worker that dies now is replaced by one that drains as well.
        victim = pids_of(sidecar)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: replaced(sidecar, 0, victim))
        for _ in range(10):
            assert (await one(session, sidecar.url)).status == 503
        assert all(outcome.complete for outcome in await asyncio.gather(*streams))
    sidecar.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(sidecar.wait, 20) == 0
    assert not any(alive(pid) for pid in pids_of(sidecar).values())
    assert not await asyncio.to_thread(Path(sidecar.home).exists)


async def all_not_ready(url):
    return {(await asyncio.to_thread(httpx.get, f"{url}/ready")).status_code for _ in range(8)} == {503}


async def test_a_signal_reaches_all_and_waits_for_streams(sidecar):
    async with clients() as session:
        streams = [asyncio.create_task(one(session, sidecar.url, words=25, itl=0.08)) for _ in range(60)]
        await until_open(sidecar.url, 60)
        sidecar.process.send_signal(signal.SIGTERM)
        assert all(outcome.complete for outcome in await asyncio.gather(*streams))
        assert await asyncio.to_thread(sidecar.wait, 20) == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{sidecar.url}/live")


def test_the_shadow_ring_is_that_of_all(tmp):
    with engine_process("--coupled") as engine:
        flags = ("--workers", "2", "--mode", "shadow", "--tool-call-parser", "hermes")
        with sidecar_process(engine.url, *flags, tmp=tmp) as sidecar:
            for _ in range(12):  # the engine's own parser takes reasoning for itself, ours has been told of none
                post(sidecar.url, chat_body("<think>\na\n</think>\n\nb"))
            deadline = time.monotonic() + 15
            while (found := httpx.get(f"{sidecar.url}/debug/shadow").json())["compared"] < 12:
                assert time.monotonic() < deadline, found
                time.sleep(0.05)
    times = [sample["time"] for sample in found["samples"]]
    assert len(times) >= 12 and times == sorted(times) and found["mismatch"]["content"] == 12


def test_debug_shows_all(engine, tmp):
    with sidecar_process(engine.url, "--workers", "2", "--debug", tmp=tmp) as sidecar:
        workers = httpx.get(f"{sidecar.url}/debug").json()["workers"]
        assert {worker["pid"] for worker in workers} == set(pids_of(sidecar).values())
        assert {worker["phase"] for worker in workers} == {"serving"}


def test_reload_reaches_all(engine, tmp):
    file = Path(tmp) / "config.yaml"
    file.write_text("canary-percent: 100\n")
    with sidecar_process(engine.url, "--workers", "2", "--config", str(file), tmp=tmp) as sidecar:
        file.write_text("canary-percent: 50\n")
        deadline = time.monotonic() + 15
        while sum('"configuration changed"' in line for line in sidecar.lines) < 2:
            assert time.monotonic() < deadline, sidecar.output
            time.sleep(0.05)
        count = samples(sidecar.url)["derender_config_reloads_total", (("result", "applied"),)]
        sidecar.process.send_signal(signal.SIGHUP)  # the same to all, at once
        while samples(sidecar.url).get(("derender_config_reloads_total", (("result", "unchanged"),)), 0) < 2:
            assert time.monotonic() < deadline, sidecar.output
            time.sleep(0.05)
        assert count == 2


def test_workers_end_with_their_parent(engine, tmp):
    with sidecar_process(engine.url, "--workers", "2", tmp=tmp, window=0.0) as sidecar:
        workers = pids_of(sidecar).values()
        sidecar.process.kill()
        sidecar.process.wait()
        left = Path(sidecar.home)
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert left.exists()
    with sidecar_process(engine.url, tmp=tmp):
        assert not left.exists()  # the next one tidies up


def test_one_port_in_use_is_told_before_anything_starts(tmp):
    from tests.servers import listening_socket

    with listening_socket() as taken:
        taken.listen()
        flags = ("--host", "127.0.0.1", "--port", str(taken.getsockname()[1]), "--workers", "2")
        with Process("serve", str(DEMO_MODEL), *flags, env={"TMPDIR": tmp}) as process:
            assert process.wait() == 64
        assert "cannot listen" in process.output and "worker started" not in process.output
