"""The simulated engine answers as the recorded one: same requests, same bytes, but for ids, times and random tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_captures import Capture, read_capture
from tests.simulator.serving import simulator

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
QWEN3 = {"model": None, "served_model_name": ("qwen3",), "max_model_len": 4096, "max_num_seqs": 8}
# Where the real engine was started differently or its body is cut short in the file.
LEFT_OUT = re.compile(
    r"raw_chunked|timed_recv|aborted|interval4|GET_|too_long_length|prompt_max_len_minus|x_request_id"
)
LONG = {
    "tok033_err_prompt_exactly_max_len": (4096, True),
    "tok033_err_prompt_too_long": (4097, False),
    "tok033_err_prompt_too_long_stream": (4097, True),
}
NAMES = [path.stem for path in sorted(CAPTURES.glob("tok033_*.txt")) if not LEFT_OUT.search(path.stem)]


def same_but_made_up(body: bytes) -> Any:
    """``body`` without what differs between two runs of a real engine: ids of requests, times, tokens, logprobs."""
    text = re.sub(rb'"generate-tokens-[^"]*"', b'"ID"', body)
    text = re.sub(rb'"created":\d+', b'"created":0', text)
    text = re.sub(rb'"(logprob|rank)":[-\d.]+', rb'"\1":0', text)
    text = re.sub(rb'"token_ids":\[[\d,]*\]', lambda m: b'"token_ids":%d' % m[0].count(b","), text)
    text = re.sub(rb'"token_id":\d+', b'"token_id":0', text)
    # The sampled token with or without the best one beside it depends on its rank.
    return re.sub(rb'("top_logprobs":\[)(\{[^}]*\},?)+', rb"\1", text)


def scripts_of(request: Any) -> list[list[int]]:
    args = (request.get("sampling_params") or {}).get("extra_args") or {}
    return args.get("force_scripts") or ([args["force_ids"]] if "force_ids" in args else [])


@pytest.mark.parametrize("name", NAMES)
async def test_answers_like_the_recorded_engine(name: str) -> None:
    path = CAPTURES / f"{name}.txt"
    capture: Capture = read_capture(path)
    head, _, _ = path.read_bytes().partition(b"\n\n")
    body = head.split(b">>> ")[2].strip(b"\n")
    if name in LONG:  # the file holds the beginning of the prompt
        length, stream = LONG[name]
        body = json.dumps({"token_ids": [1] * length, "sampling_params": {"max_tokens": 6}, "stream": stream}).encode()
    elif (
        capture.request
        and capture.path.endswith("generate")
        and capture.status == 200
        and not scripts_of(capture.request or {})
        and b"error" not in capture.body[:20]
    ):
        # The engine went on at random; give the simulator as many tokens to say, and no end before that.
        request = json.loads(body)
        request["sampling_params"]["extra_args"] = {"force_ids": [7] * 5_000}
        body = json.dumps(request).encode()
    async with simulator(**QWEN3) as client:
        response = await client.post(capture.path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == capture.status
    got, want = response.content, capture.body
    if capture.streamed and "n2" in name:  # how choices take turns is up to the scheduler
        assert sorted(same_but_made_up(got).split(b"\n\n")) == sorted(same_but_made_up(want).split(b"\n\n"))
    elif capture.streamed and scripts_of(capture.request or {}):
        assert ids_of(got) == ids_of(want)
        lengths = re.compile(rb'"token_ids":\d+')  # the recorded one put two ids into some events
        for mine, real in zip(got.split(b"\n\n")[-4:], want.split(b"\n\n")[-4:], strict=True):
            assert lengths.sub(b"", same_but_made_up(mine)) == lengths.sub(b"", same_but_made_up(real))
    else:
        assert same_but_made_up(got) == same_but_made_up(want)
    assert response.headers.get("content-type", "") == recorded_type(path)


def ids_of(body: bytes) -> list[int]:
    """All ids but those after a script's end."""
    found = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    return [token for event in found for choice in event["choices"] for token in choice["token_ids"]][:44]


def recorded_type(path: Path) -> str:
    found = re.search(r"content-type: (.*?)\r?\n", path.read_text())
    return found[1] if found else ""


@pytest.mark.parametrize("name", ["GET_health", "GET_v1_models", "GET_version"])
async def test_other_routes(name: str) -> None:
    capture = read_capture(CAPTURES / f"tok033_{name}.txt") if name != "GET_health" else None
    path = {"GET_health": "/health", "GET_v1_models": "/v1/models", "GET_version": "/version"}[name]
    async with simulator(**QWEN3) as client:
        response = await client.get(path)
    assert response.status_code == 200
    if capture is None:
        assert response.content == b""
    elif name == "GET_version":
        assert response.json() == json.loads(capture.body)
    else:
        (got,), (want,) = response.json()["data"], json.loads(capture.body)["data"]
        assert got.keys() == want.keys()
        assert (got["id"], got["max_model_len"]) == ("qwen3", 4096)


async def test_routes_it_has_not() -> None:
    async with simulator() as client:
        for path in ("/nope", "/v1/embeddings"):
            response = await client.post(path, json={})
            assert (response.status_code, response.json()["error"]["message"]) == (404, "Not Found")


async def test_keys() -> None:
    async with simulator(api_key=("a", "b")) as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"authorization": "Bearer b"})).status_code == 200
        assert (await client.get("/health")).status_code == 200


async def test_metrics_count() -> None:
    async with simulator() as client:
        args = {"force_ids": [5, 6, 7]}
        body = {"token_ids": [1, 2], "sampling_params": {"extra_args": args}}
        await client.post("/inference/v1/generate", json=body)
        text = (await client.get("/metrics")).text
    assert 'vllm:generation_tokens_total{engine="0",model_name="demo-model"} 3.0\n' in text
    assert 'vllm:prompt_tokens_total{engine="0",model_name="demo-model"} 2.0\n' in text
    assert 'vllm:request_success_total{engine="0",model_name="demo-model",finished_reason="stop"} 1.0\n' in text
    assert "# TYPE vllm:num_requests_running gauge\n" in text


@pytest.mark.parametrize(
    ("change", "message", "param"),
    [
        ({"token_ids": [True]}, "valid integer", "body.token_ids.0"),
        ({"token_ids": [1, 1.5]}, "fractional part", "body.token_ids.1"),
        ({"token_ids": 5}, "valid list", "body.token_ids"),
        ({"sampling_params": 5}, "instance of SamplingParams", "body.sampling_params"),
        ({"stream": "yes"}, "valid boolean", "body.stream"),
        ({"priority": True}, "valid integer", "body.priority"),
        ({"sampling_params": {"max_tokens": "9"}}, "Expected `int`", "body.sampling_params.max_tokens"),
        ({"sampling_params": {"max_tokens": True}}, "Expected `int`", "body.sampling_params.max_tokens"),
        ({"sampling_params": {"top_p": 0}}, "top_p must be in (0, 1], got 0.0.", "top_p"),
        ({"sampling_params": {"temperature": 2.5}}, "temperature must be in [0, 2], got 2.5.", "temperature"),
        ({"sampling_params": {"min_tokens": 5, "max_tokens": 4}}, "less than or equal to max_tokens=4", None),
        ({"sampling_params": {"min_p": 2}}, "min_p must be in [0, 1]", None),
        ({"sampling_params": {"top_k": -2}}, "top_k must be 0", None),
        ({"sampling_params": {"presence_penalty": 3}}, "presence_penalty must be in [-2, 2]", None),
        ({"sampling_params": {"repetition_penalty": 0}}, "must be greater than zero", None),
        ({"sampling_params": {"stop_token_ids": ["x"]}}, "must contain only integers", None),
        ({"sampling_params": {"stop_token_ids": [6080]}}, "out of vocabulary", "stop_token_ids"),
        ({"token_ids": [6080]}, "Token id 6080 is out of vocabulary", None),
        ({"sampling_params": {"prompt_logprobs": 21}}, "Requested prompt logprobs of 21", "prompt_logprobs"),
        ({"sampling_params": {"extra_args": {"fault": "nope"}}}, "unknown fault", "extra_args"),
        ({"sampling_params": {"extra_args": {"chunk": "x"}}}, "extra_args", "extra_args"),
        ([], "valid dictionary", "body"),
    ],
)
async def test_bad_input(change: Any, message: str, param: str | None) -> None:
    body = change if isinstance(change, list) else {"token_ids": [1], "sampling_params": {}, **change}
    async with simulator() as client:
        response = await client.post("/inference/v1/generate", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] == param
