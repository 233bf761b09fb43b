"""``/debug``: off unless asked for, behind the keys, and without a word of what anybody said."""

import base64
import json
import threading

import httpx
import pytest

from tests.e2e.wire import call, chat_body, post, stream, until
from tests.servers import Sidecar

PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
SECRET = "xyzzy"
TEXT = f"<think>\nplan {SECRET}\n</think>\n\nHello {call('Oslo')}"


@pytest.fixture(scope="module")
def debugged(simulator):
    with Sidecar(engine_url=simulator.url, debug=True, **PARSERS) as sidecar:
        yield sidecar


def test_off_by_default(sidecar):
    for method, path in (
        ("GET", "/debug"),
        ("GET", "/debug/ui"),
        ("GET", "/debug/inspect"),
        ("POST", "/debug/inspect"),
    ):
        assert httpx.request(method, sidecar.url + path).status_code == 404


def test_the_keys_protect_it_and_browsers_can_give_one(simulator):
    with Sidecar(engine_url=simulator.url, debug=True, api_key=["k1", "k2"]) as sidecar:
        for path in ("/debug", "/debug/ui", "/debug/shadow", "/debug/inspect"):
            url = sidecar.url + path
            refused = httpx.get(url)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
            assert httpx.get(url, auth=("anyone", "wrong")).status_code == 401
            assert httpx.get(url, headers={"authorization": "Basic !"}).status_code == 401
            assert httpx.get(url, auth=("anyone", "k2")).status_code == 200
            assert httpx.get(url, headers={"authorization": "Bearer k1"}).status_code == 200
        # Only there: an API client's key is a Bearer token.
        models = httpx.get(f"{sidecar.url}/v1/models", auth=("anyone", "k2"))
        assert (models.status_code, models.headers["www-authenticate"]) == (401, "Bearer")
        assert httpx.get(f"{sidecar.url}/v1/debug", auth=("anyone", "k2")).status_code == 401
        colon = base64.b64encode(b"k1").decode()  # no user, no password
        assert httpx.get(f"{sidecar.url}/debug", headers={"authorization": f"Basic {colon}"}).status_code == 401


def test_open_streams_and_the_cache_without_content(debugged):
    body = chat_body([f"<think>\nplan {SECRET} {SECRET}", "a b c d e f g h"], xargs={"itl": 0.1, "stall": 0})
    body |= {"messages": [{"role": "user", "content": SECRET}]}
    thread = threading.Thread(target=stream, args=(debugged.url, body), kwargs={"headers": {"x-request-id": "debug-1"}})
    thread.start()

    def found():
        (worker,) = httpx.get(f"{debugged.url}/debug").json()["workers"]
        return [one for one in worker["streams"] if one["id"] == "debug-1" and one.get("completion_tokens", 0) > 3]

    until(found)
    (one,) = found()
    text = httpx.get(f"{debugged.url}/debug").text
    thread.join()
    assert (one["route"], one["mode"], one["model"]) == ("/v1/chat/completions", "derender", "demo")
    assert 0 < one["ttft"] < one["age"] < 30 and one["prompt_tokens"] > 0 and one["streamed"] is True
    assert one["choices"][0]["state"] == "reasoning" and one["choices"][0]["tokens"] == one["completion_tokens"]
    assert SECRET not in text and "plan" not in text
    assert httpx.get(f"{debugged.url}/debug").json()["workers"][0]["phase"] == "serving"


def ids_of(debugged, text):
    return post(debugged.url, {"prompt": text, "add_special_tokens": False}, "/tokenize").json()["tokens"]


@pytest.mark.parametrize("chunk", [1, 4, 10_000])
def test_ids_are_taken_apart(debugged, chunk):
    ids = ids_of(debugged, TEXT)
    answer = post(debugged.url, {"ids": ids, "chunk": chunk}, "/debug/inspect").json()
    steps = answer["steps"]
    assert [i for step in steps for i, _ in step["tokens"]] == ids
    assert "".join(text for step in steps for _, text in step["tokens"]) == TEXT
    assert len(steps) == -(-len(ids) // chunk) and answer["finished"]

    def region(name):
        return "".join(item["text"] for step in steps for item in step["emitted"] if item["region"] == name)

    assert SECRET in region("reasoning") and "Hello" in region("content")
    assert region("name") == "get_weather" and json.loads(region("arguments")) == {"city": "Oslo"}
    assert region("finish") == "tool_calls"
    assert steps[0]["before"].startswith("reasoning") and steps[-1]["after"] != steps[0]["before"]
    if chunk == 1:
        assert any(step["held"] for step in steps)


def test_other_parsers_may_be_picked(debugged):
    ids = ids_of(debugged, TEXT)
    picked = {"reasoning_parser": "none", "tool_call_parser": "none"}
    steps = post(debugged.url, {"ids": ids, "chunk": 99_999} | picked, "/debug/inspect").json()["steps"]
    assert {item["region"] for step in steps for item in step["emitted"]} == {"content", "finish"}
    names = httpx.get(f"{debugged.url}/debug/inspect").json()
    assert {"hermes", "none", "auto"} <= set(names["tools"]) and "qwen3" in names["reasoning"]
    assert names["own"] == {"reasoning": "qwen3", "tools": "hermes"}


def test_a_capture_is_taken_apart(debugged, simulator):
    asked = post(debugged.url, chat_body(TEXT), "/v1/chat/completions/render").json()
    asked |= {"stream": True, "sampling_params": asked["sampling_params"] | {"extra_args": {"force_text": TEXT}}}
    captured = httpx.post(f"{simulator.url}/inference/v1/generate", json=asked, timeout=30).text
    answer = post(debugged.url, {"capture": captured}, "/debug/inspect").json()
    assert answer["finished"] and any(item["region"] == "name" for step in answer["steps"] for item in step["emitted"])


@pytest.mark.parametrize(
    "body",
    [
        {}, {"ids": [1], "capture": "x"}, {"capture": "nothing"}, {"capture": 'data: {"choices": 1}'}, {"ids": [-1]},
        {"ids": [2**31]}, {"ids": [1] * 20_001}, {"ids": [1], "chunk": 0}, {"ids": [1], "tool_call_parser": "vllm:x"},
        {"ids": [1], "reasoning_parser": "nope"}, {"ids": [1], "more": 1}, [],
    ],
)  # fmt: skip
def test_bad_questions(debugged, body):
    answer = post(debugged.url, body, "/debug/inspect")
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_ids_that_there_are_not(debugged):
    assert post(debugged.url, {"ids": [2**31 - 1]}, "/debug/inspect").status_code in (200, 400)
