"""The gateway on one core: events per second, CPU per event against a bare relay, added latency, memory per stream.

The server under test is pinned to one core, engine and clients to the other. Sidecar and relay take turns in one
run, so that what else the machine does hits both; what is reported is the median of the ratios of such pairs.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.bench import load
from tests.tokenizers import tokenizer_dir

PATH = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    },
}
BODY: dict[str, Any] = {
    "model": "bench",
    "stream": True,
    "messages": [{"role": "user", "content": "Write the file."}],
    "tools": [TOOL],
}


def answer_ids(tokens: int) -> list[int]:
    """Reasoning, content and a call, a third each, without the EOS."""
    from tests import derenders
    from tests.bench.core import PROSE

    tokenizer = derenders.tokenizer("qwen3")
    prose = tokenizer.encode(PROSE, add_special_tokens=False).ids

    def fill(count: int) -> str:
        return PROSE * (count // len(prose) + 1)

    third = tokens // 3
    argument = json.dumps(fill(third), ensure_ascii=False)
    text = (
        f"<think>\n{fill(third)}\n</think>\n\n{fill(third)}<tool_call>\n"
        f'{{"name": "write_file", "arguments": {{"path": "a", "content": {argument}}}}}\n</tool_call>'
    )
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def frames(tokens: int, per_event: int = 1) -> list[bytes]:
    ids = answer_ids(tokens)
    made = [load.frame(ids[at : at + per_event]) for at in range(0, len(ids), per_event)]
    return [*made, load.frame([151645], "stop")]


@dataclass
class Server:
    """A process pinned to one core."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    def cpu(self) -> float:
        """Seconds of CPU used so far, by all threads."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def rss(self) -> int:
        """Resident bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cores() -> tuple[int, int]:
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def pinned(core: int) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, {core})


def start(name: str, engine_port: int) -> Server:
    port, core = free_port(), cores()[0]
    engine = f"http://127.0.0.1:{engine_port}"
    if name == "relay":
        command = [sys.executable, "-m", "tests.bench.relay", engine, str(port)]
    else:
        command = [
            *(sys.executable, "-m", "proxy", "serve", str(tokenizer_dir("qwen3"))),
            *("--engine-url", engine, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"),
            *("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--served-model-name", "bench"),
            *("--shutdown-window", "0"),
        ]
    process = subprocess.Popen(command, preexec_fn=pinned(core), stdout=subprocess.DEVNULL)
    server = Server(name, process, port)
    for _ in range(300):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=0.2):
                break
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"{name} did not start") from None
            time.sleep(0.1)
    time.sleep(1.0)
    return server


@dataclass
class Sample:
    events: int
    wall: float
    cpu: float

    @property
    def cpu_us(self) -> float:
        return self.cpu / self.events * 1e6

    @property
    def rate(self) -> float:
        return self.events / self.wall


async def sample(server: Server, engine: load.Engine, streams: int, window: float = 0.0) -> Sample:
    """All streams to their end; or, with ``window`` seconds, what happens in that time once all are flowing."""
    cpu, begin = server.cpu(), time.perf_counter()
    made = await load.opened(server.port, PATH, BODY, streams)
    if window:
        await asyncio.sleep(0.5 + streams / 250)
        cpu, begin, events = server.cpu(), time.perf_counter(), sum(client.events for client in made)
        await asyncio.sleep(window)
        events = sum(client.events for client in made) - events
    else:
        await asyncio.gather(*(client.done for client in made))
        events = streams * len(engine.plan.frames)
    wall, cpu = time.perf_counter() - begin, server.cpu() - cpu
    for client in made:
        if b" 200" not in client.status:
            raise RuntimeError(f"{server.name}: {client.status!r}")
        assert client.transport is not None
        client.transport.abort()
    if window:
        await asyncio.sleep(0.3)
    return Sample(events, wall, cpu)


async def compare(streams: int, plan: load.Plan, pairs: int, servers: Sequence[Server], engine: load.Engine) -> None:
    engine.plan = plan
    results: dict[str, list[Sample]] = {server.name: [] for server in servers}
    for server in servers:  # warm
        await sample(server, engine, min(streams, 8), 0.5 if plan.interval else 0.0)
    for _ in range(pairs):
        for server in servers:
            results[server.name].append(await sample(server, engine, streams, 2.0 if plan.interval else 0.0))
    ours, relay = results["sidecar"], results["relay"]
    ratio = statistics.median(a.cpu_us / b.cpu_us for a, b in zip(ours, relay, strict=True))
    pace = "as fast as possible" if not plan.interval else f"{1 / plan.interval:.0f} events/s each"
    rate = statistics.median(item.rate for item in ours)
    cpu, bare = (statistics.median(item.cpu_us for item in kind) for kind in (ours, relay))
    print(
        f"{streams:4} streams, {pace:22} {rate:10,.0f} events/s   CPU/event {cpu:6.2f} us, relay {bare:6.2f} us,"
        f" ratio {ratio:5.2f}",
        flush=True,
    )


async def latency(servers: Sequence[Server], engine: load.Engine, background: int) -> None:
    """Added latency of single events, with ``background`` paced streams beside the measured one."""
    # plain words, so that each id of the engine is one event of the answer
    words = [load.frame([13]) for _ in range(200)]
    engine.plan = load.Plan([*words, load.frame([151645], "stop")], interval=0.02)
    for server in servers:
        engine.sent.clear()
        engine.watched = b"424242"  # a seed, which the sidecar and the relay pass on
        beside = await load.opened(server.port, PATH, BODY, background)
        await asyncio.sleep(0.5)
        client = (await load.opened(server.port, PATH, {**BODY, "seed": 424242}, 1, True))[0]
        await client.done
        arrivals = [at for at, count in client.arrivals for _ in range(count)]
        first = 1 if server.name == "sidecar" else 0  # the sidecar's answer begins with the role
        values = sorted(at - sent for sent, at in zip(engine.sent, arrivals[first:], strict=False))
        p50, p99 = values[len(values) // 2] * 1e3, values[int(len(values) * 0.99)] * 1e3
        print(f"added latency, {background:3} streams beside: {server.name:8} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms")
        for other in (client, *beside):
            assert other.transport is not None
            other.transport.abort()
        await asyncio.sleep(0.3)
    engine.watched = None


async def memory(server: Server, engine: load.Engine, streams: int) -> None:
    engine.plan = load.Plan(frames(60), hold_after=40, interval=0.0001)
    before = server.rss()
    made = await load.opened(server.port, PATH, BODY, streams)
    await asyncio.sleep(4.0)
    grown = server.rss() - before
    for client in made:
        assert client.transport is not None
        client.transport.abort()
    print(f"memory: {grown / streams / 1024:6.1f} KiB per open stream of {server.name} ({streams} streams)")
    await asyncio.sleep(1.0)


async def run(quick: bool) -> None:
    engine = load.Engine(load.Plan(frames(60)))
    await engine.start()
    servers = await asyncio.gather(*(asyncio.to_thread(start, name, engine.port) for name in ("sidecar", "relay")))
    os.sched_setaffinity(0, {cores()[1]})
    try:
        pairs = 3 if quick else 7
        for streams in (1, 64, 256):
            await compare(streams, load.Plan(frames(3000 if streams == 1 else 300)), pairs, servers, engine)
        for streams, rate in ((1, 100), (64, 50), (256, 25)):
            await compare(streams, load.Plan(frames(1000), interval=1 / rate), pairs, servers, engine)
        for background in (0, 64, 256):
            await latency(servers, engine, background)
        await memory(servers[0], engine, 500 if quick else 1000)
    finally:
        for server in servers:
            server.stop()
        await engine.stop()


def main(quick: bool = False) -> None:
    uvloop.run(run(quick))


if __name__ == "__main__":
    main("--quick" in sys.argv)
