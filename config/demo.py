"""The demo: a scripted token-only engine, the sidecar in front of it, and the official OpenAI client.

    python config/demo.py          one streamed chat that reasons and calls a tool, then everything stops
    python config/demo.py --serve  engine and sidecar, left running until Ctrl-C
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "demo-model"
NAME = "demo"
QUESTION = "What is the weather in Paris?"
ANSWER = (
    "<think>\nThe user asks for the weather in Paris. I have a tool for that.\n</think>\n\n"
    "Let me look that up.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of the coming days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A derender-proxy process, ended at the end of the block."""
    process = subprocess.Popen([sys.executable, "-m", "proxy", *arguments])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the process for {url} ended with exit code {process.returncode}")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.1)
    sys.exit(f"{url} did not answer within {seconds:.0f} s")


def ask(url: str) -> None:
    """One streamed request; every delta is printed as it arrives, the message at the end."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    stream = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[TOOL],  # type: ignore[list-item]
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"vllm_xargs": {"force_text": ANSWER, "itl": 0.015}},
    )
    reasoning, content, finish, usage = "", "", None, None
    calls: dict[int, dict[str, str]] = {}
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta.to_dict()
            print(json.dumps(delta, ensure_ascii=False), flush=True)
            reasoning += str(delta.get("reasoning") or "")
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                entry = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                entry["id"] += call.id or ""
                if call.function is not None:
                    entry["name"] += call.function.name or ""
                    entry["arguments"] += call.function.arguments or ""
            finish = choice.finish_reason or finish
    message = {"reasoning": reasoning, "content": content, "tool_calls": list(calls.values()), "finish_reason": finish}
    print(json.dumps(message, indent=2, ensure_ascii=False))
    if usage is not None:
        print(f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} completion tokens")
    if not reasoning or not calls or finish != "tool_calls":
        sys.exit("the demo's answer is not what its script says")


def main() -> None:
    engine_port, port = free_port(), free_port()
    engine_url, url = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{port}"
    quiet = [] if "--serve" in sys.argv[1:] else ["--log-level", "error"]
    with (
        running("simulate", str(MODEL), "--port", str(engine_port), "--served-model-name", NAME) as engine,
        running(
            "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port), "--engine-url", engine_url,
            "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--shutdown-window", "0", *quiet,
        ) as sidecar,
    ):  # fmt: skip
        wait_for(f"{engine_url}/health", engine)
        wait_for(f"{url}/ready", sidecar)
        if quiet:
            ask(url)
            return
        print(f"engine {engine_url}   sidecar {url}/v1   model {NAME}   (Ctrl-C ends both)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sidecar.wait()


if __name__ == "__main__":
    main()
