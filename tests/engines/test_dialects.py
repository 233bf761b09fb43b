"""One conversation over every engine dialect: the client gets the same bytes, whoever is behind."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.wire import WEATHER, call, events, fold, post, until
from tests.servers import DEMO_NAME, Sidecar, Simulator

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# What plays the engine, and what the sidecar is told of it.
ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {"dialect": "vllm"},
    "sglang-cumulative": {"dialect": "sglang"},
    "sglang-incremental": {"dialect": "sglang", "incremental": True},
    "vllm-completions": {"dialect": "vllm-completions"},
    "sglang-completions": {"dialect": "sglang-completions"},
    "tensorrt-llm": {"dialect": "tensorrt-llm"},
}
OTHERS = [name for name in ENGINES if name != "vllm"]
CLOSING_ONLY = ("vllm-completions", "tensorrt-llm")  # take no abort by id
ANSWERS = [
    {"match": "the weather", "text": "<think>\nÜber 😀 it.\n</think>\n\nLet me see. " + call("Zürich", days=3)},
    {
        "match": "two answers",
        "text": ["<think>\nOne.\n</think>\n\nerste 日本", "<think>\nTwo.\n</think>\n\n" + call("Rom")],
    },
    {"match": "in bursts", "text": "<think>\nSlowly.\n</think>\n\n" + call("Oslo"), "chunk": [7, 1, 4, 2, 9, 1, 30]},
    {"match": "stop words", "text": "<think>\nSo.\n</think>\n\none two STOP three " + "four " * 40, "itl": 0.003},
    {"match": "no end", "text": "word " * 400, "itl": 0.01},
    {"match": "Once upon", "text": " a time 日本語 there was"},
]
THINKING = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes", "max_model_len": 32768}


def engine_flag(name: str) -> str:
    return "vllm" if name == "vllm" else "completions" if "completions" in name or "tensorrt" in name else "sglang"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "answers.jsonl"
    path.write_text("\n".join(json.dumps(answer) for answer in ANSWERS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(script: Path) -> Iterator[dict[str, tuple[Simulator, Sidecar]]]:
    """Simulator and sidecar of each kind."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, options in ENGINES.items():
            engine = stack.enter_context(Simulator(served_model_name=(DEMO_NAME,), script=str(script), **options))
            flags = {"engine_url": engine.url, "engine": engine_flag(name), **THINKING}
            if name == "tensorrt-llm":
                flags["engine_has_tokenizer"] = "false"  # as the others say of themselves, for the same requests
            if "completions" in name:
                flags["engine_has_tokenizer"] = "false"
            found[name] = (engine, stack.enter_context(Sidecar(**flags)))
        yield found


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": DEMO_NAME, "messages": [{"role": "user", "content": text}], "tools": [WEATHER], **fields}


def asked(sidecar: Sidecar, body: dict[str, Any], path: str) -> tuple[int, str]:
    """Status and body, the time of creation apart."""
    answer = post(sidecar.url, body, path, headers={"x-request-id": "the-same"})
    return answer.status_code, re.sub(r'"created":\d+', '"created":0', answer.text)


CONVERSATIONS = {
    "reasoning and a call": (CHAT, chat("the weather?")),
    "usage": (CHAT, chat("the weather?", stream_options={"include_usage": True, "continuous_usage_stats": True})),
    "chunks of many lengths": (CHAT, chat("in bursts")),
    "two choices": (CHAT, chat("two answers", n=2, temperature=1)),
    "logprobs": (CHAT, chat("the weather?", logprobs=True)),
    "logprobs in chunks": (CHAT, chat("in bursts", logprobs=True)),
    "ids": (CHAT, chat("the weather?", return_token_ids=True)),
    "length": (CHAT, chat("the weather?", max_tokens=9)),
    "stop id": (CHAT, chat("the weather?", stop_token_ids=[6003])),
    "stop string": (CHAT, chat("stop words", stop=["STOP"])),
    "named tool": (CHAT, chat("the weather?", tool_choice={"type": "function", "function": {"name": "get_weather"}})),
    "seed and penalties": (
        CHAT,
        chat("the weather?", seed=7, presence_penalty=0.5, top_k=3, min_p=0.1, logit_bias={"5": -1}, top_p=0.5),
    ),
    "text": (TEXT, {"model": DEMO_NAME, "prompt": "Once upon", "max_tokens": 60}),
    "text, two prompts, two choices": (
        TEXT,
        {"model": DEMO_NAME, "prompt": ["Once upon", "Once upon a"], "n": 2, "temperature": 1, "max_tokens": 60},
    ),
    "text, echo and ids": (
        TEXT,
        {"model": DEMO_NAME, "prompt": "Once upon", "echo": True, "return_token_ids": True, "max_tokens": 60},
    ),
    "text, logprobs": (TEXT, {"model": DEMO_NAME, "prompt": "Once upon", "logprobs": 0, "max_tokens": 60}),
    "refused": (CHAT, chat("the weather?", n=0)),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("streamed", [True, False])
def test_the_same_bytes(pairs: dict[str, tuple[Simulator, Sidecar]], name: str, streamed: bool) -> None:
    path, body = CONVERSATIONS[name]
    body = body | {"stream": streamed}
    if not streamed:
        body.pop("stream_options", None)
    wanted = asked(pairs["vllm"][1], body, path)
    assert wanted[0] == (400 if name == "refused" else 200)
    if "two prompts" in name and streamed:  # as their events happen to arrive
        wanted = (200, "\n\n".join(sorted(wanted[1].split("\n\n"))))
    for other in OTHERS:
        got = asked(pairs[other][1], body, path)
        if "two prompts" in name and streamed:
            got = (got[0], "\n\n".join(sorted(got[1].split("\n\n"))))
        assert got == wanted, other


@pytest.mark.parametrize("mode", ["text", "tokens"])
@pytest.mark.parametrize("streamed", [True, False])
def test_generate_is_spoken_before_every_engine(
    pairs: dict[str, tuple[Simulator, Sidecar]], mode: str, streamed: bool
) -> None:
    """vLLM's own tokens are relayed, with what only it says in them; what the others' are made into is compared."""
    prompt = post(pairs["vllm"][1].url, {"prompt": "Once upon"}, "/tokenize").json()["tokens"]
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 60}, "output_mode": mode, "stream": streamed}
    names = list(ENGINES) if mode == "text" else OTHERS
    answers = {name: asked(pairs[name][1], body, "/inference/v1/generate") for name in names}
    status, text = answers[names[0]]
    assert status == 200 and f'"output_mode":"{mode}"' in text
    for name in names:
        assert answers[name] == answers[names[0]], name
    ids = asked(pairs["vllm"][1], body | {"output_mode": "tokens", "stream": False}, "/inference/v1/generate")[1]
    wanted = json.loads(ids)["choices"][0]["token_ids"]
    if not streamed and mode == "tokens":
        assert json.loads(text)["choices"][0]["token_ids"] == wanted
    elif not streamed:
        assert json.loads(text)["choices"][0]["text"] == " a time 日本語 there was"


@pytest.mark.parametrize("name", ["sglang-cumulative", "sglang-incremental", "vllm-completions"])
@pytest.mark.parametrize("streamed", [True, False])
def test_candidates_of_logprobs(pairs: dict[str, tuple[Simulator, Sidecar]], name: str, streamed: bool) -> None:
    for path, body in (
        (CHAT, chat("in bursts", logprobs=True, top_logprobs=3, stream=streamed)),
        (TEXT, {"model": DEMO_NAME, "prompt": "Once upon", "logprobs": 2, "max_tokens": 60, "stream": streamed}),
    ):
        wanted = asked(pairs["vllm"][1], body, path)
        assert wanted[0] == 200 and asked(pairs[name][1], body, path) == wanted


@pytest.mark.parametrize("name", ["sglang-cumulative", "sglang-incremental", "vllm-completions"])
def test_logprobs_of_the_prompt(pairs: dict[str, tuple[Simulator, Sidecar]], name: str) -> None:
    body = {"model": DEMO_NAME, "prompt": "Once upon", "logprobs": 1, "echo": True, "max_tokens": 60}
    wanted = asked(pairs["vllm"][1], body, TEXT)
    assert wanted[0] == 200 and asked(pairs[name][1], body, TEXT) == wanted
    assert asked(pairs[name][1], chat("the weather?", prompt_logprobs=1), CHAT)[0] == 200


@pytest.mark.parametrize("name", ["sglang-completions", "tensorrt-llm"])
@pytest.mark.parametrize("streamed", [True, False])
def test_candidates_that_have_no_id_are_refused(
    pairs: dict[str, tuple[Simulator, Sidecar]], name: str, streamed: bool
) -> None:
    answer = post(pairs[name][1].url, chat("the weather?", logprobs=True, top_logprobs=2, stream=streamed))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "logprobs"


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("sglang-cumulative", {"allowed_token_ids": [5]}, "allowed_token_ids"),
        ("sglang-cumulative", {"logprob_token_ids": [5], "logprobs": True}, "logprob_token_ids"),
        ("sglang-cumulative", {"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ("sglang-completions", {"allowed_token_ids": [5]}, "allowed_token_ids"),
        ("tensorrt-llm", {"vllm_xargs": {"x": 1}}, "vllm_xargs"),
        ("tensorrt-llm", {"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_what_a_dialect_cannot_is_named(
    pairs: dict[str, tuple[Simulator, Sidecar]], name: str, fields: dict[str, Any], param: str
) -> None:
    engine, sidecar = pairs[name]
    before = len(engine.requests())
    answer = post(sidecar.url, chat("the weather?", **fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(engine.requests()) == before


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_is_an_abort(pairs: dict[str, tuple[Simulator, Sidecar]], name: str, n: int) -> None:
    engine, sidecar = pairs[name]
    with httpx.stream(
        "POST", sidecar.url + CHAT, json=chat("no end", stream=True, n=n, temperature=1), timeout=10
    ) as answer:
        lines = answer.iter_lines()
        while '"reasoning":"' not in next(lines):
            pass
    record = engine.app.requests[-1]
    until(lambda: record["aborted"] and record["ended"])
    if name not in CLOSING_ONLY and not (name == "sglang-completions" and n > 1):
        until(lambda: record.get("abort_asked"))
    assert 0 < record["tokens"] < 400 * n


@pytest.mark.parametrize("name", ENGINES)
def test_a_stop_string_ends_it_at_the_engine_too(pairs: dict[str, tuple[Simulator, Sidecar]], name: str) -> None:
    engine, sidecar = pairs[name]
    answer = post(sidecar.url, chat("stop words", stop=["STOP"])).json()
    assert answer["choices"][0]["message"]["content"] == "\n\none two "
    record = engine.app.requests[-1]
    until(lambda: record["aborted"] and record["ended"])


FAULTS = {
    # the simulator's fault: status before a stream, or kind of the error event, or what a client sees of an ended one
    "http 400": ({"fault": "http", "fault_status": 400, "fault_message": "no such thing"}, 400),
    "http 500": ({"fault": "http", "fault_status": 500, "fault_message": "secret"}, 502),
    "http 503": ({"fault": "http", "fault_status": 503, "fault_message": "secret"}, 503),
    "http 404": ({"fault": "http", "fault_status": 404, "fault_body": '{"detail":"Not Found"}'}, 502),
    "http 401": ({"fault": "http", "fault_status": 401, "fault_body": '{"error":"Unauthorized"}'}, 502),
    "first event 400": ({"fault": "first_event", "fault_status": 400, "fault_message": "no such thing"}, 400),
    "first event 500": ({"fault": "first_event", "fault_status": 500, "fault_message": "secret"}, 502),
    "first event 503": ({"fault": "first_event", "fault_status": 503, "fault_message": "secret"}, 503),
    "error event": ({"fault": "error_event", "fault_after": 3, "fault_status": 500, "fault_message": "secret"}, 502),
    "reset": ({"fault": "reset", "fault_after": 3}, 502),
    "close": ({"fault": "close", "fault_after": 3}, 502),
    "end without a finish": ({"fault": "eof", "fault_after": 3}, 502),
    "done without a finish": ({"fault": "done_early", "fault_after": 3}, 502),
    "half an event": ({"fault": "half_frame", "fault_after": 3}, 502),
    "garbage": ({"fault": "garbage", "fault_after": 3}, 502),
    "aborted": ({"fault": "abort", "fault_after": 3}, 200),
    "no usage": ({"fault": "no_usage"}, 200),
    "no done": ({"fault": "no_done"}, 200),
    "crlf": ({"newline": "crlf", "comment_every": 2, "comments": 2}, 200),
    "finish alone": ({"finish_alone": True}, 200),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Simulator, Sidecar]]]:
    path = tmp_path_factory.mktemp("faults") / "faults.jsonl"
    entries = [{"match": f"[{name}]", "text": "one two three four", **how} for name, (how, _) in FAULTS.items()]
    path.write_text("\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        found = {}
        for name, options in ENGINES.items():
            engine = stack.enter_context(Simulator(served_model_name=(DEMO_NAME,), script=str(path), **options))
            flags = {"engine_url": engine.url, "engine": engine_flag(name), "max_model_len": 32768}
            found[name] = (engine, stack.enter_context(Sidecar(**flags)))
        yield found


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_error_of_its_table(faulty: dict[str, tuple[Simulator, Sidecar]], name: str, fault: str) -> None:
    _, sidecar = faulty[name]
    how, status = FAULTS[fault]
    body = {"model": DEMO_NAME, "messages": [{"role": "user", "content": f"[{fault}]"}]}
    whole = post(sidecar.url, body)
    assert whole.status_code == status, whole.text
    assert "secret" not in whole.text
    streamed = post(sidecar.url, body | {"stream": True})
    late = "fault_after" in how and status != 200
    assert streamed.status_code == (200 if late else status), streamed.text
    assert "secret" not in streamed.text
    if status == 400:
        assert whole.json()["error"]["message"] == streamed.json()["error"]["message"] == "no such thing"
        assert whole.json()["error"]["type"] == "BadRequestError"
    elif status >= 500 and not late:
        assert set(streamed.json()["error"]) == {"message", "type", "param", "code"}
    else:
        told = events(streamed.text)
        assert told[-1] == "DONE"
        if late:
            assert set(told[-2]["error"]) == {"message", "type", "param", "code"}
            assert "".join(choice["delta"].get("content", "") for chunk in told[:-2] for choice in chunk["choices"])
        else:
            folded = fold(told[:-1])[0]
            assert folded["finish_reason"] == ("abort" if fault == "aborted" else "stop")
            assert folded["content"] == whole.json()["choices"][0]["message"]["content"]
