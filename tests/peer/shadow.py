"""By hand: scripted answers of a real coupled vLLM server, passed through a sidecar in shadow mode and compared.

Needs a coupled server that takes scripted answers (``vllm_xargs.force_ids``) and its model's directory. Usage::

    python -m tests.peer.shadow --engine http://127.0.0.1:8202 --model DIR --served qwen3 \
        [--family hermes] [--reasoning-parser qwen3] [--tool-call-parser hermes] [--answers 200]

Answers are those of ``tests.generators``, valid, cut and damaged ones; requests vary: streamed or not, usage, logprobs,
a forced or no tool choice, n, stop strings, completions. Every fourth is also sent to the engine directly and both
answers compared byte for byte (but for ids and times). Prints how many differ in which field, and each difference.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from tests.generators import base
from tests.servers import Sidecar

_VARYING = re.compile(r'"(?:chatcmpl|cmpl)-[^"]*"|"created":\d+')  # tool call ids included


def made(seed: int, family: str, tokenizer: Tokenizer, eos: int, served: str) -> tuple[str, str, dict[str, Any]]:
    """Kind of answer, path and body of request number ``seed``."""
    rng = random.Random(seed)
    generator = next(item for item in base.generators() if item.family == family)
    tools = base.tools(rng)
    written = generator.write(rng, tools)
    kind = rng.choice(("valid", "valid", "valid", "cut", "damaged"))
    if kind == "cut":
        written = base.truncated(written, rng)
    elif kind == "damaged":
        written = base.damaged(written, rng, generator.markers)
    text, closed = "".join(written.pieces), "</think>" in "".join(written.prompt)
    if written.prompt and not closed:
        text = "".join(written.prompt) + text  # the model's own template does not open it
    ids = [*tokenizer.encode(text, add_special_tokens=False).ids, eos]
    shared = {
        "model": served,
        "max_tokens": rng.choice((len(ids), len(ids), 3000, max(1, len(ids) // 2))),
        "stream": rng.random() < 0.7,
        "vllm_xargs": {"force_ids": ids},
        "temperature": 0,
    }
    if shared["max_tokens"] < len(ids) and kind == "valid":
        kind = "cut"
    if shared["stream"] and rng.random() < 0.7:
        shared["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.3}
    if rng.random() < 0.1:
        shared |= {"n": 2, "temperature": 1.0}
    if rng.random() < 0.1:
        shared["stop"] = [rng.choice(("Rio", "x <", "e"))]
        kind = "stop"
    if rng.random() < 0.15:
        return kind, "/v1/completions", {**shared, "prompt": "Once"}
    body = {**shared, "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    if closed:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    if rng.random() < 0.15:
        body |= {"logprobs": True, "top_logprobs": rng.choice((0, 2))}
    if rng.random() < 0.1:
        body["parallel_tool_calls"] = False
    if rng.random() < 0.1:
        body["tool_choice"] = "none"
    return kind, "/v1/chat/completions", body


def said(text: str) -> tuple[set[str], str]:
    """The forms that the events of an answer have, and all that they say: an engine under load joins steps."""
    texts: list[str] = []

    def shape(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key == "delta":
                for name in ("reasoning", "content"):
                    texts.append(value.get(name) or "")
                for call in value.get("tool_calls") or ():  # their ids are random
                    texts.extend(str(item) for item in call.get("function", {}).values())
                return sorted(value)
            return {name: shape(item, name) for name, item in value.items() if name not in ("usage", "logprobs")}
        if isinstance(value, list) and key != "token_ids":
            return [shape(item) for item in value]
        if key == "text":
            texts.append(value)
        return None if key in ("id", "created", "text") else value

    shapes = set()
    for frame in text.split("\n\n"):
        data = frame.removeprefix("data: ")
        shapes.add(json.dumps(shape(json.loads(data))) if data.startswith("{") else data)
    return shapes, "".join(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--served", required=True)
    parser.add_argument("--family", default="hermes")
    parser.add_argument("--reasoning-parser", default="qwen3")
    parser.add_argument("--tool-call-parser", default="hermes")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    eos = json.loads((options.model / "generation_config.json").read_text())["eos_token_id"]
    eos = eos[0] if isinstance(eos, list) else eos
    flags = {"reasoning_parser": options.reasoning_parser, "tool_call_parser": options.tool_call_parser}
    rollout = {"shadow-content": True, "shadow-samples": 10_000, "shadow-queue": 10_000}
    with Sidecar(options.model, engine_url=options.engine, mode="shadow", rollout=rollout, **flags) as sidecar:
        bytes_differ = refused = exact = asked = 0
        with httpx.Client(timeout=120) as client:
            for seed in range(options.seed, options.seed + options.answers):
                kind, path, body = made(seed, options.family, tokenizer, eos, options.served)
                answer = client.post(sidecar.url + path, json=body, headers={"x-request-id": f"{kind}-{seed}"})
                if answer.status_code != 200:
                    refused += 1
                    print(f"{kind}-{seed}: HTTP {answer.status_code} {answer.text[:200]}")
                elif seed % 4 == 0 and body["temperature"] == 0:
                    asked += 1
                    direct = client.post(options.engine + path, json=body)
                    same = _VARYING.sub("", direct.text) == _VARYING.sub("", answer.text)
                    exact += same
                    if not same and (not body["stream"] or said(direct.text) != said(answer.text)):
                        bytes_differ += 1
                        print(f"{kind}-{seed}: passed through otherwise than asked directly")
        while sidecar.parts.rollout.shadow._waiting:
            time.sleep(0.05)
        time.sleep(0.5)
        told = httpx.get(f"{sidecar.url}/debug/shadow").json()
    for sample in told["samples"]:
        shown = {key: sample.get(key) for key in ("field", "choice", "call", "offset", "token", "ours", "theirs")}
        print(f"{sample['request_id']:6} {sample['path']} stream={sample['stream']} {shown}")
        print(f"       ours   {sample.get('our_text')!r}\n       theirs {sample.get('their_text')!r}")
    print(f"\n{options.answers} answers, {told['compared']} compared, {refused} refused")
    print(f"{asked} asked directly too: {exact} equal to the byte, {bytes_differ} not equal")
    print(f"{asked - exact - bytes_differ} equal but for where the engine cut its steps")
    print("skipped", told["skipped"], "dropped", told["dropped"])
    kinds = ("valid", "cut", "damaged", "stop")
    print(f"{'answers that differ in':24}" + "".join(f"{kind:>10}" for kind in kinds))
    for name in told["mismatch"]:
        found = {sample["request_id"] for sample in told["samples"] if sample.get("field") == name}
        print(f"{name:24}" + "".join(f"{sum(item.startswith(kind) for item in found):10}" for kind in kinds))
    return 1 if any(told["mismatch"].values()) or bytes_differ else 0


if __name__ == "__main__":
    sys.exit(main())
