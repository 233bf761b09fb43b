"""The stateless derender endpoints: server CPU, wall time and bytes of a stream, one token per chunk (hermes + qwen3).

    python -m tests.bench.derender [--n 128 512 1024 2048] [--reps 3] [--quick]

Our servers run as processes of their own: ``full``, ``compact``, ``session`` (one request for the stream), and ``miss``
(every call carries a state as vLLM makes it, so that every chunk is a replay). vLLM's own render server is measured in
the same run where it is: started by the reference scripts (``run.sh render-hermes-qwen3 start``), found by the process
id that they leave in ``$PEER_DIR``. CPU time is what counts; wall time depends on who else is using the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from tests import derenders
from tests.servers import Process, free_port
from tests.tokenizers import tokenizer_dir

CHAT = "/v1/chat/completions/derender"
WORDS = "alpha beta gamma delta weather Paris the of and to in is that for it with as be on".split()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "note": {"type": "string"}}},
        },
    }
]
ASKED = {
    "model": "qwen3",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": TOOLS,
    "stream": True,
}
PEER_URL = os.environ.get("PEER_URL", "http://127.0.0.1:8100")
PEER_PID = (
    Path(os.environ.get("PEER_DIR", os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")) + "/derender-peer"))
    / "run" / "render-hermes-qwen3" / "pid"
)  # fmt: skip


def encode(text: str) -> list[int]:
    return list(derenders.tokenizer("qwen3").encode(text, add_special_tokens=False).ids)


def output_ids(n: int) -> list[int]:
    """``n`` ids: reasoning, then a tool call."""
    end = encode('\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>')
    begin = encode("<think>\n")
    rng = random.Random(1)
    words = encode("".join(" " + rng.choice(WORDS) for _ in range(n)))
    return begin + words[: n - len(begin) - len(end) - 1] + end + encode("<|im_end|>")


PROMPT = "<|im_start|>user\n" + "Use tools when needed. " * 25 + "<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Target:
    """A server under test."""

    name: str
    url: str
    pid: int

    def cpu(self) -> float:
        """CPU seconds of the process and its children so far."""
        children = " ".join(f.read_text() for f in Path(f"/proc/{self.pid}/task").glob("*/children")).split()
        ticks = 0
        for pid in (self.pid, *map(int, children)):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def connect(self) -> http.client.HTTPConnection:
        address = urlparse(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


@dataclass
class Run:
    """One stream: seconds, CPU seconds of the server, bytes each way."""

    wall: float
    cpu: float
    sent: int
    received: int
    said: str


def event(ids: list[int], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "stop_reason": None, "token_ids": ids, "routed_experts": None,
              "sampling_mask": None, "weight_versions": None, "logprobs": None}  # fmt: skip
    return {"request_id": "generate-tokens-1", "usage": None, "output_mode": "tokens", "choices": [choice]}


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def stream(target: Target, ids: list[int], *, miss: bool = False) -> Run:
    """One POST per token, the state echoed; ``miss``: without our fields, so that nothing is found."""
    connection, state, said = target.connect(), None, ""
    prompt = encode(PROMPT)
    sent = received = 0
    cpu, began = target.cpu(), time.perf_counter()
    for n, token_id in enumerate(ids):
        chunk = event([token_id], "stop" if n == len(ids) - 1 else None)
        body = compact(
            {"stream": True, "model": "qwen3", "generate_chunk": chunk, "stream_state": state, "chat_request": ASKED,
             "prompt_tokens": len(prompt), "prompt_token_ids": prompt}
        )  # fmt: skip
        connection.request("POST", CHAT, body, {"content-type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data[:300]
        sent, received = sent + len(body), received + len(data)
        answer = json.loads(data)
        state = answer["stream_state"]
        if miss:
            state = {key: value for key, value in state.items() if key not in ("derender", "created")}
        for choice in answer["chunk"]["choices"]:
            said += _said(choice["delta"])
    return Run(time.perf_counter() - began, target.cpu() - cpu, sent, received, said)


def _said(delta: dict[str, Any]) -> str:
    calls = "".join(call["function"].get("arguments") or "" for call in delta.get("tool_calls") or ())
    return (delta.get("reasoning") or "") + (delta.get("content") or "") + calls


def session(target: Target, ids: list[int]) -> Run:
    """One request; an event is sent when the one before has left, and answers are read beside it."""
    connection = target.connect()
    prompt = encode(PROMPT)
    cpu, began = target.cpu(), time.perf_counter()
    connection.putrequest("POST", CHAT)
    connection.putheader("content-type", "text/event-stream")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    sent = 0
    gone = threading.Event()

    def send() -> None:
        nonlocal sent
        opening = {"chat_request": ASKED, "prompt_token_ids": prompt, "model": "qwen3"}
        for n in range(-1, len(ids)):
            item = opening if n < 0 else event([ids[n]], "stop" if n == len(ids) - 1 else None)
            data = b"data: " + compact(item) + b"\n\n"
            connection.send(b"%x\r\n%b\r\n" % (len(data), data))
            sent += len(data)
            time.sleep(0.0002)  # each event by itself, as an engine sends them
        connection.send(b"0\r\n\r\n")
        gone.set()

    sender = threading.Thread(target=send)
    sender.start()
    response = connection.getresponse()
    data = response.read()
    sender.join()
    run = Run(time.perf_counter() - began, target.cpu() - cpu, sent, len(data), "")
    for line in data.decode().split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                run.said += _said(choice["delta"])
    return run


def requests_per_second(target: Target, connections: int, seconds: float) -> tuple[float, float]:
    """Closed loop of one small call: requests a second, server CPU seconds each."""
    prompt = encode(PROMPT)[-16:]
    body = compact({"stream": True, "model": "qwen3", "generate_chunk": event([785], None), "stream_state": None,
                    "chat_request": {"messages": ASKED["messages"]}, "prompt_token_ids": prompt})  # fmt: skip
    stop, counts = threading.Event(), [0] * connections

    def work(n: int) -> None:
        connection = target.connect()
        while not stop.is_set():
            connection.request("POST", CHAT, body, {"content-type": "application/json"})
            connection.getresponse().read()
            counts[n] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(connections)]
    cpu, began = target.cpu(), time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began), (target.cpu() - cpu) / max(1, sum(counts))


def replay(target: Target, tokens: int, rounds: int = 7) -> float:
    """The shortest time of a call that replays so many tokens, less that of one that replays none."""
    prompt = encode(PROMPT)
    ids = output_ids(tokens + 1)[:tokens]
    best = {}
    for count in (0, tokens):
        connection = target.connect()
        state = {"role_sent": True, "output_token_ids": ids[:count], "output_chunk_lens": [1] * count}
        body = compact({"stream": True, "model": "qwen3", "generate_chunk": event([785], None), "stream_state": state,
                        "chat_request": ASKED, "prompt_token_ids": prompt})  # fmt: skip
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            connection.request("POST", CHAT, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            times.append(time.perf_counter() - began)
            assert answer.status == 200, data[:200]
        best[count] = min(times)
    return best[tokens] - best[0]


@contextlib.contextmanager
def serve(*flags: str) -> Iterator[Target]:
    port = free_port()
    with Process(
        "serve", str(tokenizer_dir("qwen3")), "--engine-url", "none", "--max-model-len", "40960", "--host", "127.0.0.1",
        "--port", str(port), "--served-model-name", "qwen3", "--tool-call-parser", "hermes", "--reasoning-parser",
        "qwen3", *flags,
    ) as process:  # fmt: skip
        process.wait_for_url(f"http://127.0.0.1:{port}/ready", 120)
        yield Target("ours", f"http://127.0.0.1:{port}", process.process.pid)


def peer() -> Target | None:
    """vLLM's render server, if it runs."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(PEER_PID.read_text())
        target = Target("vLLM", PEER_URL, pid)
        connection = target.connect()
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            return target
    return None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", nargs="+", type=int, default=[128, 512, 1024, 2048])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 128 and 512 tokens, without the misses")
    options = parser.parse_args(argv)
    if options.quick:
        options.n, options.reps = [128, 512], 1
    theirs = peer()
    if theirs is None:
        print("vLLM's render server does not run here: its rows are left out (see tests/bench/derender.py)")
    with serve() as full, serve("--derender-state", "compact", "--state-key", "bench") as short:
        ways: list[tuple[str, Callable[[list[int]], Run]]] = [
            ("full", lambda ids: stream(full, ids)),
            ("compact", lambda ids: stream(short, ids)),
            ("session", lambda ids: session(full, ids)),
        ]
        if not options.quick:
            ways.append(("miss", lambda ids: stream(full, ids, miss=True)))
        for _, way in ways:
            way(output_ids(96))  # warm
        print(f"{'n':>6} {'way':8} {'wall s':>8} {'server CPU s':>13} {'us/token':>9} {'sent MB':>8} {'recv MB':>8}")
        for n in options.n:
            ids = output_ids(n)
            rows = [(name, way, options.reps) for name, way in ways]
            if theirs is not None:
                rows.append(("vLLM", lambda ids: stream(theirs, ids), 1))
            measured: dict[str, list[Run]] = {name: [way(ids) for _ in range(reps)] for name, way, reps in rows}
            for name, runs in measured.items():
                cpu = sum(run.cpu for run in runs) / len(runs)
                assert runs[0].said == measured["full"][0].said, f"{name} says something else"
                line = (
                    f"{n:6} {name:8} {min(run.wall for run in runs):8.3f} {cpu:13.3f} {cpu / n * 1e6:9.0f} "
                    f"{runs[0].sent / 1e6:8.2f} {runs[0].received / 1e6:8.2f}"
                )
                if theirs is not None and name != "vLLM" and cpu:
                    line += f"   {measured['vLLM'][0].cpu / cpu:6.0f} times less CPU than vLLM"
                print(line, flush=True)
        print(f"\n4000 tokens replayed on a miss: {replay(full, 4000) * 1e3:.1f} ms")
        print("\nrequests a second (server CPU each), first chunks of small requests")
        for connections in (1, 4, 16):
            for target in (full, *([theirs] if theirs is not None else [])):
                rate, cpu = requests_per_second(target, connections, 1 if options.quick else 3)
                print(f"{connections:3} connections {target.name:5} {rate:7.0f}/s   {cpu * 1e6:6.0f} us")


if __name__ == "__main__":
    main()
