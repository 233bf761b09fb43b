"""An engine is lost in the middle of an answer: another gives the rest, where that is sound, and nobody notices."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.engines.base import GenerateRequest
from proxy.engines.http import EngineOptions
from proxy.engines.pool import Pool
from proxy.engines.resuming import LOSSES, RESUMES, Resuming, refusal
from proxy.engines.vllm import VLLMEngine
from proxy.errors import UpstreamError
from proxy.protocol.generate import GenerateEvent
from tests.e2e.wire import events as events_of
from tests.e2e.wire import until
from tests.engines.raw_server import DONE, RawServer, Step, event, plain, serving, sse
from tests.engines.test_pool import GENERATE, answering, asked_of
from tests.servers import DEMO_NAME, Process, Sidecar, Simulator, free_port

EOS = 9


@contextlib.asynccontextmanager
async def resuming(*servers: RawServer | str, **options: Any) -> Any:
    """A client of these engines, and what it tells of losses."""
    urls = [server if isinstance(server, str) else server.url for server in servers]
    engines = [(url, VLLMEngine(EngineOptions(url=url, connect_timeout=1, **options))) for url in urls]
    told: list[tuple[str, str]] = []
    engine = Resuming(
        Pool(engines, interval=60) if len(engines) > 1 else engines[0][1], {EOS}, lambda *what: told.append(what)
    )
    await engine.start()
    engine.losses = told  # type: ignore[attr-defined]
    try:
        yield engine
    finally:
        await engine.close()


async def answer(engine: Resuming, **params: Any) -> tuple[list[int], list[GenerateEvent]]:
    found: list[GenerateEvent] = []
    async with engine.generate(GenerateRequest("r", [5, 6], {"temperature": 0, **params})) as running:
        async for events in running:
            found += events
        assert running.ended
    return [token for one in found for choice in one.choices for token in choice.token_ids or ()], found


def lost(*ids: int, how: Step = "reset") -> list[Step]:
    return [*sse(*(event(i) for i in ids), end=False), 0.02, how]


LOST: dict[str, list[Step]] = {
    "reset": lost(1, 2),
    "closed": lost(1, 2, how="close"),
    "half an event": [*sse(event(1), event(2), event(3)[:30], end=False), 0.02, "reset"],
    "a clean end": sse(event(1), event(2)),
    "[DONE] too early": sse(event(1), event(2) + DONE),
    "silence": [*sse(event(1), event(2), end=False), 30.0],
}


@pytest.mark.parametrize("how", LOST)
async def test_the_rest_comes_from_another(how: str) -> None:
    rest = sse(event(3), event(4, finish="stop", usage={
        "prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}
    }) + DONE)  # fmt: skip
    async with serving(answering(*LOST[how])) as one, serving(answering(*rest)) as two:
        async with resuming(one, two, idle_timeout=0.3) as engine:
            engine._inner._turn = 1  # the first of them comes first
            ids, events = await answer(engine, max_tokens=10, min_tokens=3, stop_token_ids=[8])
            assert ids == [1, 2, 3, 4] and events[-1].choices[0].finish_reason == "stop"
            assert engine.losses == [("resumed", "timeout_idle" if how == "silence" else "eof")]
            assert events[-1].usage is not None and events[-1].usage.prompt_tokens_details is not None
            assert events[-1].usage.prompt_tokens_details.cached_tokens == 2  # of the client's prompt
            first, second = (
                next(asked.json for asked in server.asked if asked.path == GENERATE) for server in (one, two)
            )
            assert (first["token_ids"], second["token_ids"]) == ([5, 6], [5, 6, 1, 2])
            assert first["request_id"] != second["request_id"]
            params = {"temperature": 0, "max_tokens": 8, "min_tokens": 1, "stop_token_ids": [8]}
            assert params.items() <= second["sampling_params"].items()
            if how == "silence":  # it may have been at work still
                await one.wait_for("/inference/v1/abort_requests")


async def test_one_url_may_have_many_behind_it() -> None:
    """A Kubernetes service: the same address, another engine."""
    answers = [lost(1), lost(2), sse(event(3, finish="stop") + DONE)]

    def each(asked: Any) -> list[Step]:
        return answers.pop(0) if asked.path == GENERATE else plain(200, {"data": [{"id": "m"}]})

    async with serving(each) as one, resuming(one) as engine:
        assert (await answer(engine))[0] == [1, 2, 3]
        assert engine.losses == [("resumed", "eof")] * 2


@pytest.mark.parametrize(
    ("params", "last", "finish", "stop"),
    [
        ({"max_tokens": 2}, 2, "length", None),
        ({}, EOS, "stop", None),
        ({"stop_token_ids": [2]}, 2, "stop", 2),
    ],
)
async def test_an_answer_that_lacks_only_its_end_is_ended(params: Any, last: int, finish: str, stop: Any) -> None:
    async with serving(answering(*lost(1, last))) as one, resuming(one) as engine:
        ids, events = await answer(engine, **params)
        assert ids == [1, last]
        assert (events[-1].choices[0].finish_reason, events[-1].choices[0].stop_reason) == (finish, stop)
        assert asked_of(one) == 1 and engine.losses == [("resumed", "eof")]


async def test_a_stop_token_that_was_to_be_ignored_ends_nothing() -> None:
    for params in ({"ignore_eos": True}, {"min_tokens": 3}):
        rest = sse(event(3, finish="stop") + DONE)
        async with serving(answering(*lost(1, EOS))) as one, serving(answering(*rest)) as two:
            async with resuming(one, two) as engine:
                engine._inner._turn = 1
                assert (await answer(engine, **params))[0] == [1, EOS, 3]


async def test_it_does_not_go_on_for_ever() -> None:
    async with serving(answering(*lost(1))) as one, resuming(one) as engine:
        with pytest.raises(UpstreamError) as caught:
            await answer(engine)
        assert caught.value.kind == "eof" and asked_of(one) == 1 + RESUMES
        assert engine.losses == [("resumed", "eof")] * RESUMES + [("failed", "eof")]
    async with serving(answering(*lost())) as one, resuming(one) as engine:  # not a token in between
        with pytest.raises(UpstreamError):
            await answer(engine)
        assert asked_of(one) == 2


async def test_nobody_takes_the_rest() -> None:
    refused = plain(400, {"error": {"message": "too long", "type": "BadRequestError"}})
    answers = [lost(1), refused]

    def each(asked: Any) -> list[Step]:
        return answers.pop(0) if asked.path == GENERATE else plain(200, {"data": [{"id": "m"}]})

    async with serving(each) as one, resuming(one) as engine:
        with pytest.raises(UpstreamError) as caught:
            await answer(engine)
        assert caught.value.kind == "eof" and engine.losses == [("failed", "eof")]


async def test_what_an_engine_says_is_final() -> None:
    error = b'data: {"error": {"message": "x", "type": "InternalServerError", "code": 500}}\n\n' + DONE
    for ending in (error, event(2, finish="abort") + DONE, b"data: nonsense\n\n"):
        async with serving(answering(*sse(event(1), ending))) as one, resuming(one) as engine:
            with contextlib.suppress(UpstreamError):
                await answer(engine)
            assert asked_of(one) == 1 and engine.losses == []


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({}, None),
        ({"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2, "logit_bias": {"1": 2}, "logprobs": 3}, None),
        ({"presence_penalty": 0.0, "frequency_penalty": 0, "n": 1, "seed": None, "structured_outputs": None}, None),
        ({"seed": 1}, "seed"),
        ({"seed": 1, "temperature": 0.0}, None),
        ({"n": 2}, "n"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"extra_args": {"x": 1}}, "extra_args"),
        ({"a_parameter_of_tomorrow": 1}, "a_parameter_of_tomorrow"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_where_it_would_be_unsound_it_is_not_done(params: dict[str, Any], why: str | None) -> None:
    assert refusal(GenerateRequest("r", [1], params)) == why
    if why is not None and why != "n":
        async with serving(answering(*lost(1))) as one, resuming(one) as engine:
            with pytest.raises(UpstreamError):
                await answer(engine, **{"temperature": 1.0, **params})
            assert asked_of(one) == 1 and engine.losses == [("unsound", "eof")]
    assert refusal(GenerateRequest("r", [1], kv_transfer_params={"a": 1})) == "kv_transfer_params"


def test_losses_are_kinds_that_there_are() -> None:
    from proxy.engines import failures, stream

    source = Path(failures.__file__).read_text() + Path(stream.__file__).read_text()
    assert all(f'"{kind}"' in source for kind in LOSSES)


# -- the sidecar -------------------------------------------------------------------------------------------------------

TEXT = (
    "Let me see, step by step, what there is.</think>\n\nHere it is: 日本語 🙂 and a call.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Reykjavík", "days": [1, 2, 3]}}\n</tool_call>'
)
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
BODY = {"model": DEMO_NAME, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "stream": True,
        "logprobs": True, "stream_options": {"include_usage": True}}  # fmt: skip
PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "script.jsonl"
    path.write_text(json.dumps({"text": TEXT, "continues": True}) + "\n")
    return path


def normal(text: str) -> list[Any]:
    """The events without times and the numbers that the simulator makes of a token's position."""
    found = events_of(re.sub(r'"(created|logprob)":[-0-9.]+', r'"\1":0', text))
    assert any(isinstance(one, dict) and one["choices"] and one["choices"][0].get("logprobs") for one in found)
    return found


@pytest.fixture
def engines(script: Path) -> Iterator[list[Process]]:
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(engine_process(free_port(), script)) for _ in range(2)]
        yield started


def engine_process(port: int, script: Path) -> Process:
    process = Process(
        "simulate", "config/demo-model", "--port", str(port), "--served-model-name", DEMO_NAME,
        "--itl", "0.01", "--script", str(script),
    )  # fmt: skip
    process.url = f"http://127.0.0.1:{port}"  # type: ignore[attr-defined]
    return process


def test_a_killed_engine_costs_the_client_nothing(engines: list[Any], script: Path) -> None:
    """kill -9 at a random token, again and again: the same bytes as from an engine that lives."""
    rng = random.Random(4)
    for process in engines:
        process.wait_for_url(process.url + "/health")
    urls = [process.url for process in engines]
    with Sidecar(engine_url=urls, resume_on_engine_loss=True, **PARSERS) as sidecar:
        until(lambda: httpx.get(sidecar.url + "/ready").status_code == 200)
        headers = {"x-request-id": "same"}

        def ask() -> list[Any]:
            got = httpx.post(sidecar.url + "/v1/chat/completions", json=BODY, headers=headers, timeout=30)
            assert got.status_code == 200
            return normal(got.text)

        whole = ask()
        assert whole[-1] == "DONE" and whole[-2]["usage"]["completion_tokens"] > 60
        for _ in range(4):
            found: list[Any] = []
            client = threading.Thread(target=lambda: found.extend(ask()))  # noqa: B023 (joined below)
            client.start()
            time.sleep(rng.uniform(0.1, 0.6))
            busy = [process for process in engines if any(one["ended"] is None for one in requests(process.url))]
            victim = busy[0] if busy else engines[0]
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            client.join(20)
            assert found == whole
            at = engines.index(victim)
            with contextlib.suppress(Exception):
                victim.__exit__()
            engines[at] = engine_process(int(victim.url.rpartition(":")[2]), script)
            engines[at].wait_for_url(victim.url + "/health")
        series = httpx.get(sidecar.url + "/metrics").text
        resumed = next(line for line in series.splitlines() if 'losses_total{result="resumed"}' in line)
        assert float(resumed.split()[-1]) >= 2, resumed
        assert 'derender_engine_losses_total{result="failed"} 0.0' in series
    for process in engines:
        process.__exit__()


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "vllm-completions", "tensorrt-llm"])
@pytest.mark.parametrize("fault", ["reset", "eof", "half_frame"])
def test_every_dialect_goes_on(dialect: str, fault: str, tmp_path: Path) -> None:
    told = []
    for faulty in (False, True):
        entries: list[dict[str, Any]] = [{"text": TEXT, "continues": True}]
        if faulty:
            entries.insert(0, {**entries[0], "order": 0, "fault": fault, "fault_after": 20})
        path = tmp_path / f"{faulty}.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        engine = "vllm" if dialect == "vllm" else "sglang" if dialect == "sglang" else "completions"
        flags = {"engine": engine, "max_model_len": 4096, "resume_on_engine_loss": True, **PARSERS}
        with Simulator(dialect=dialect, script=str(path)) as simulator:
            with Sidecar(engine_url=simulator.url, **flags) as sidecar:
                body = {**BODY, "model": "demo-model", "logprobs": False}
                named = {"x-request-id": "r"}
                got = httpx.post(sidecar.url + "/v1/chat/completions", json=body, headers=named, timeout=30)
                told.append(re.sub(r'"created":\d+', "", got.text))
                series = httpx.get(sidecar.url + "/metrics").text
                assert f'derender_engine_losses_total{{result="resumed"}} {float(faulty)}' in series
    assert told[0] == told[1] and told[0].endswith("data: [DONE]\n\n") and '"finish_reason":"tool_calls"' in told[0]


def requests(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(url + "/simulator/requests").json()["requests"]
    return found


def test_without_the_flag_a_loss_is_told(script: Path) -> None:
    with Simulator(script=str(script)) as engine:
        body = {**BODY, "vllm_xargs": {"fault": "reset", "fault_after": 20}}
        for flag in (False, True):
            with Sidecar(engine_url=engine.url, resume_on_engine_loss=flag, **PARSERS) as sidecar:
                got = httpx.post(sidecar.url + "/v1/chat/completions", json={**body, "model": "demo-model"}, timeout=30)
                found = events_of(got.text)
                assert found[-2]["error"]["code"] == 502 and found[-1] == "DONE"
                series = httpx.get(sidecar.url + "/metrics").text
                # xargs may mean anything to an engine
                assert f'derender_engine_losses_total{{result="unsound"}} {float(flag)}' in series
