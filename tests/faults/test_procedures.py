"""Cases that are procedures: a client that leaves, a parser that fails, arguments without end."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from proxy.derender.derenderer import ChatSettings, Derenderer
from proxy.derender.parsing.model import Calls, Sink, State
from proxy.derender.parsing.registry import Registry, ToolFormat
from proxy.derender.vocabulary import Vocabulary
from tests.faults import cases, checks, checks_service  # noqa: F401
from tests.faults.cases import encode, model_dir, tokenizer
from tests.faults.evidence import Evidence, judge
from tests.faults.exchange import CHAT, COMPLETIONS, script
from tests.faults.fleet import Fleet, wait_until
from tests.faults.shape import check_stream
from tests.servers import DEMO_MODEL, Sidecar, Simulator

CASES = ("errors-06", "errors-08", "performance-01")
SIZES = (8192, 32768, 131072)
PIECES = {"plain": ("A", 1), "escapes": ('x" \\ ', 5), "characters": ("é🫠", 6)}


def test_client_leaves(fleet: Fleet) -> None:
    case = cases.load()["errors-06"]
    simulator = fleet.simulator(DEMO_MODEL)
    sidecar = fleet.sidecar(DEMO_MODEL, simulator.url)
    client = fleet.client(sidecar)
    long = script([40] * 200, itl=0.05, chunk=1)
    said = {"messages": [{"role": "user", "content": "Hi"}], "vllm_xargs": long}
    prompts = {"prompt": ["a", "b", "c"], "max_tokens": 200, "vllm_xargs": long}
    ordinary = {"messages": [{"role": "user", "content": "Hi"}], "vllm_xargs": script([40] * 4)}
    client.ask(ordinary)
    before = tasks_of(sidecar)
    seconds: dict[str, float] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    for name, path, body in (
        ("streamed", CHAT, said | {"stream": True}),
        ("n", CHAT, said | {"stream": True, "n": 2}),
        ("prompts", COMPLETIONS, prompts | {"stream": True}),
        ("whole", CHAT, said),
        ("whole n", CHAT, said | {"n": 2}),
    ):
        request_id = f"leaves-{name.replace(' ', '-')}"
        leave(client.url + path, body, request_id)
        closed = time.time()
        wait_until(partial(all_aborted, simulator, request_id))
        found[name] = simulator.requests(request_id)
        seconds[name] = max(one["aborted_at"] for one in found[name]) - closed
    answer = client.ask(ordinary)
    facts = {
        "seconds to abort": seconds,
        "engine requests": found,
        "ordinary": answer,
        "tasks left": left(sidecar, before),
        "active streams": active(client.http, client.url),
        "running at the engine": running(client.http, simulator),
    }
    judge(Evidence(case, facts=facts))


def all_aborted(simulator: Simulator, request_id: str) -> bool:
    return all(one["aborted"] for one in simulator.requests(request_id))


def leave(url: str, body: dict[str, Any], request_id: str) -> None:
    """Ask, and close the connection after three chunks, or after 200 ms if nothing is streamed."""
    headers = {"x-request-id": request_id}
    with httpx.Client(trust_env=False) as own:
        if body.get("stream"):
            with own.stream("POST", url, json=body, headers=headers, timeout=10) as response:
                chunks = response.iter_raw()
                for _ in range(3):
                    next(chunks)
        else:
            with pytest.raises(httpx.ReadTimeout):
                own.post(url, json=body, headers=headers, timeout=0.2)


def tasks_of(sidecar: Sidecar) -> set[str]:
    loop = sidecar.server.servers[0].get_loop()
    return {f"{task.get_coro()!r:.120}".split(" at 0x")[0] for task in asyncio.all_tasks(loop) if not task.done()}


def left(sidecar: Sidecar, before: set[str]) -> set[str]:
    """Kinds of tasks that were not there before, once everything has had a second to end."""
    deadline = time.monotonic() + 2
    while (more := tasks_of(sidecar) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return more


def active(http: httpx.Client, url: str) -> int:
    lines = http.get(url + "/metrics").text.splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith("derender_streams_active")]
    return int(float(value))


def running(http: httpx.Client, simulator: Simulator) -> list[str]:
    found: list[str] = http.get(simulator.url + "/simulator/requests").json()["running"]
    return found


class Raising:
    """A reader of calls that fails at the third piece of text."""

    done = False
    failed = False

    def __init__(self) -> None:
        self.pieces = 0

    def text(self, text: str, calls: Calls) -> int:
        self.pieces += 1
        if self.pieces == 3:
            raise ValueError("<tool_call> the parser's own words")
        return len(text)

    def marker(self, marker: str, calls: Calls) -> bool:
        return True

    def finish(self, calls: Calls) -> None:
        self.done = True

    def save(self) -> Any:
        return self.pieces

    def load(self, state: Any) -> None:
        self.pieces = state


def test_parser_fails(fleet: Fleet) -> None:
    """A parser that raises in mid-stream ends its choice with an error, and no other choice."""
    case = cases.load()["errors-08"]
    simulator = fleet.simulator(DEMO_MODEL)
    registry = Registry()
    states = {
        "content": State(Sink.CONTENT, on={"<tool_call>": "call"}),
        "call": State(Sink.CALL, reader=Raising, then="content"),
    }
    registry.add(ToolFormat(names=("raising",), states=states))
    sidecar = fleet.sidecar(DEMO_MODEL, simulator.url, served_model_name=["raising"])
    parts = sidecar.parts
    parts.derenderer = Derenderer(
        parts.derenderer.vocabulary,
        tool_parser="raising",
        eos_token_ids=parts.renderer.eos_token_ids,
        registry=registry,
    )
    client = fleet.client(sidecar)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    def ids_of(text: str) -> list[int]:
        found: list[int] = client.http.post(
            client.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}
        ).json()["tokens"]
        return found

    broken = ids_of("<tool_call>") + ids_of(" one two three four five six seven")
    fine = ids_of("All of this is content.")
    body = {"model": "raising", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    alone = client.ask(body | {"vllm_xargs": script(fine)})
    evidence = Evidence(case, facts={"alone": alone.only})
    for chunk in (1, 2):
        xargs = script([broken, fine], chunk=chunk, finish_reason="stop")
        streamed = client.ask(body | {"n": 2, "stream": True, "vllm_xargs": xargs})
        check_stream(streamed, failed=True)
        evidence.streamed.append((None, streamed))
        evidence.whole.append((None, client.ask(body | {"n": 2, "vllm_xargs": xargs})))
    judge(evidence)
    checks_service.error_text_clean(evidence)


def call_texts(content: str) -> dict[str, tuple[str, str, Any]]:
    """Name of the form: parser, text, tool_choice."""
    arguments = json.dumps({"path": "a.txt", "content": content}, ensure_ascii=False)
    hermes = f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>'
    xml = (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=content>\n"
        f"{content}\n</parameter>\n</function>\n</tool_call>"
    )
    array = f'[{{"name": "write_file", "parameters": {arguments}}}]'
    return {
        "hermes": ("hermes", hermes, "auto"),
        "xml": ("qwen3_coder", xml, "auto"),
        "required": ("hermes", array, "required"),
    }


def test_long_arguments() -> None:
    """The core alone, one token per chunk: linear time, no long step, arguments exact."""
    case = cases.load()["performance-01"]
    vocabulary = Vocabulary.load(tokenizer("qwen3"), 151936)
    derenderers = {name: Derenderer(vocabulary, tool_parser=name) for name in ("hermes", "qwen3_coder")}
    seconds: dict[str, dict[int, float]] = {}
    steps: list[float] = []
    arguments: list[str] = []
    wanted: list[dict[str, str]] = []
    for kind, (piece, divisor) in PIECES.items():
        for form in ("hermes", "xml", "required"):
            runs: list[Run] = []
            for size in SIZES:
                content = piece * (size // divisor)
                parser, text, choice = call_texts(content)[form]
                runs.append(partial(measure, derenderers[parser], case.tools or [], choice, encode("qwen3", text)))
                wanted.append({"path": "a.txt", "content": content})
            best, longest, told = best_of(runs)
            arguments += told
            seconds[f"{form} {kind}"] = dict(zip(SIZES, best, strict=True))
            steps.append(longest)
    pairs = list(zip(arguments, wanted, strict=True))
    judge(Evidence(case, facts={"seconds by size": seconds, "longest steps": steps, "arguments": pairs}))


Run = Callable[[], tuple[float, float, str]]


def best_of(runs: list[Run], most: int = 6) -> tuple[list[float], float, list[str]]:
    """The least seconds of each run and of the longest step, measured again while the machine seems to disturb;
    and what each run told."""
    best, longest = [float("inf")] * len(runs), float("inf")
    for _ in range(most):
        measured = [run() for run in runs]
        best = [min(old, new[0]) for old, new in zip(best, measured, strict=True)]
        longest = min(longest, max(step for _, step, _ in measured))
        if longest < 0.03 and all(large <= 5 * small for small, large in zip(best, best[1:], strict=False)):
            break
    return best, longest, [told for _, _, told in measured]


def measure(
    derenderer: Derenderer, tools: list[dict[str, Any]], choice: str, ids: list[int]
) -> tuple[float, float, str]:
    """CPU seconds of the whole, of its longest step, and the arguments. The collector is the process's business."""
    clock = time.thread_time
    stream = derenderer.chat(ChatSettings(tools=tuple(tools), tool_choice=choice), request_id="r")
    parts: list[str] = []
    worst = 0.0
    last = len(ids) - 1
    gc.disable()
    try:
        started = now = clock()
        for number, token in enumerate(ids):
            deltas = stream.feed([token], "stop" if number == last else None)
            before, now = now, clock()
            worst = max(worst, now - before)
            for delta in deltas:
                parts += [call.arguments for call in delta.tool_calls or () if call.arguments]
    finally:
        gc.enable()
    return now - started, worst, "".join(parts)


@pytest.mark.parametrize("form", ["hermes", "xml", "required"])
def test_long_arguments_over_http(fleet: Fleet, form: str) -> None:
    """The same through the public surface, both modes, while the sidecar goes on answering others."""
    case = cases.load()["performance-01"]
    content = "é🫠" * (SIZES[0] // 6)
    parser, text, choice = call_texts(content)[form]
    simulator = fleet.simulator("qwen3")
    reasoning = "qwen3" if parser == "qwen3_coder" else None  # the configurations that the other cases use
    client = fleet.client(
        fleet.sidecar("qwen3", simulator.url, tool_call_parser=parser, reasoning_parser=reasoning)
    )
    prompt = "<|im_start|>assistant\n<think>\n\n</think>\n\n" if reasoning else "Hi"
    ids = encode("qwen3", text)
    for stream in (True, False):
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "tools": case.tools,
            "tool_choice": choice,
            "vllm_xargs": script(ids, chunk=1, burst=8),
            "stream": stream,
        }
        answer = client.ask(body)
        if stream:
            check_stream(answer)
        (call,) = answer.only.calls
        assert json.loads(call.arguments) == {"path": "a.txt", "content": content}


def test_sizes_are_those_of_the_case() -> None:
    spec = cases.load()["performance-01"].input["spec"]
    assert all(str(size) in spec for size in SIZES)
    assert model_dir("qwen3").is_dir()
