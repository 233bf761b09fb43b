"""``/inference/v1/generate`` through the sidecar: every mode, streamed and not, with parsers and without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.wire import WEATHER, call, events, until
from tests.servers import DEMO_NAME, Sidecar, Simulator
from tests.tokenizers import tokenizer_dir

PATH = "/inference/v1/generate"
CAPTURES = Path(__file__).resolve().parent.parent / "data" / "captures"
SAID = "<think>\nThe user wants weather. 日本語 😀\n</think>\n\nLet me check.\n" + call("Paris", days=2)
PROMPT = [5, 6, 7]
CONTEXT = {
    "tools": [WEATHER],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "include_reasoning": True,
    "chat_template_kwargs": {},
    "history_tool_call_cnt": 0,
}


def body(mode: str | None = None, text: str | list[str] = SAID, **fields: Any) -> dict[str, Any]:
    params = {"max_tokens": 400, "temperature": 1.0, "extra_args": {"force_text": text}, **fields.pop("params", {})}
    asked = {"token_ids": PROMPT, "sampling_params": params, **fields}
    return asked if mode is None else asked | {"output_mode": mode}


def post(url: str, asked: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(url + PATH, json=asked, headers=headers, timeout=30)


def stream(url: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    answer = post(url, asked | {"stream": True})
    assert answer.status_code == 200, answer.text
    found = events(answer.text)
    assert found.pop() == "DONE"
    return found


def folded(found: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Streamed events added up to what the whole answer's choices have."""
    choices: dict[int, dict[str, Any]] = {}
    for event in found:
        for choice in event["choices"]:
            into = choices.setdefault(
                choice["index"],
                {"ids": [], "text": "", "reasoning": "", "content": "", "calls": [], "finish": None, "logprobs": []},
            )
            assert into["finish"] is None
            into["ids"] += choice["token_ids"] or []
            into["text"] += choice.get("text", "")
            into["logprobs"] += (choice["logprobs"] or {}).get("content", [])
            delta = choice.get("delta", {})
            assert ("role" in delta) == (not into.get("begun")) or "delta" not in choice
            into["begun"] = True
            into["reasoning"] += delta.get("reasoning", "")
            into["content"] += delta.get("content", "")
            for entry in delta.get("tool_calls", []):
                if entry["index"] == len(into["calls"]):
                    assert entry["type"] == "function"
                    into["calls"].append({"id": entry["id"], "name": entry["function"]["name"], "arguments": ""})
                into["calls"][entry["index"]]["arguments"] += entry["function"]["arguments"]
            into["finish"] = choice["finish_reason"]
    for choice in choices.values():
        choice.pop("begun")
    return choices


def whole(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The choices of an answer in one piece, in the same form."""
    return {
        choice["index"]: {
            "ids": choice["token_ids"] or [],
            "text": choice.get("text", ""),
            "reasoning": (message := choice.get("message", {})).get("reasoning") or "",
            "content": message.get("content") or "",
            "calls": [
                {"id": entry["id"], **{key: entry["function"][key] for key in ("name", "arguments")}}
                for entry in message.get("tool_calls", [])
            ],
            "finish": choice["finish_reason"],
            "logprobs": (choice["logprobs"] or {}).get("content", []),
        }
        for choice in answer["choices"]
    }


@pytest.fixture(scope="module")
def parsing(sidecars) -> Sidecar:
    return sidecars(reasoning_parser="qwen3", tool_call_parser="hermes")


@pytest.fixture(scope="module")
def plain(sidecars) -> Sidecar:
    return sidecars()


# -- tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
def test_tokens_are_the_engines_own_bytes(simulator, parsing, streamed):
    """All but the ids of requests, which are ours; the engine got the client's parameters and no more."""
    asked = body(params={"logprobs": 2, "n": 2}, stream=streamed, return_token_ids=True, priority=3, unknown={"a": 1})
    if streamed:
        asked["stream_options"] = {"include_usage": True}
    varying = re.compile(rb'"request_id":"[^"]*"|"created":\d+')
    answer = post(parsing.url, asked, **{"x-request-id": f"tokens-relayed-{streamed}"})
    direct = httpx.post(simulator.url + PATH, json=asked)
    assert varying.sub(b"", answer.content) == varying.sub(b"", direct.content)
    assert answer.headers["content-type"] == direct.headers["content-type"]
    assert answer.headers["x-derender-mode"] == "passthrough"
    seen = simulator.only(f"tokens-relayed-{streamed}")
    assert seen["request_id"].startswith(f"generate-tokens-tokens-relayed-{streamed}-")
    assert {key: value for key, value in seen["body"].items() if key not in ("request_id", "model")} == asked


def test_a_tokens_client_that_leaves_aborts(simulator, parsing):
    asked = body(text="word " * 100, params={"extra_args": {"force_text": "word " * 100, "itl": 0.02}}, stream=True)
    with httpx.stream("POST", parsing.url + PATH, json=asked, headers={"x-request-id": "relayed-leaver"}) as answer:
        next(answer.iter_bytes())
    until(lambda: simulator.only("relayed-leaver")["aborted"] == "close")


# -- text and derender -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 50])
@pytest.mark.parametrize("parsers", ["parsing", "plain"])
@pytest.mark.parametrize("mode", ["text", "derender"])
def test_streamed_and_whole_say_the_same(request, simulator, mode, parsers, chunk):
    """The matrix: mode, streamed or not, with a parser or without."""
    sidecar = request.getfixturevalue(parsers)
    asked = body(mode, params={"extra_args": {"force_text": SAID, "chunk": chunk}}, parse_context=CONTEXT)
    streamed = folded(stream(sidecar.url, asked))
    answer = post(sidecar.url, asked).json()
    one, other = streamed[0], whole(answer)[0]
    for entry in (*one["calls"], *other["calls"]):
        assert entry.pop("id")
    assert one == other
    assert answer["output_mode"] == mode and answer["request_id"].startswith("generate-tokens-")
    ids = simulator.app.model.encode(SAID)
    assert one["ids"][:-1] == ids and len(one["ids"]) == len(ids) + 1  # the EOS id too
    assert answer["usage"]["completion_tokens"] == len(one["ids"])
    if mode == "text":
        assert one["text"] == SAID and one["finish"] == "stop"
    elif parsers == "plain":
        assert (one["content"], one["calls"], one["finish"]) == (SAID, [], "stop")
    else:
        assert one["reasoning"] == "\nThe user wants weather. 日本語 😀\n"
        assert one["content"] == "\n\nLet me check.\n"
        assert one["calls"] == [{"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'}]
        assert one["finish"] == "tool_calls"


def test_events_have_the_shape_of_the_route(parsing):
    """Keys and their order as vLLM's other modes have them; usage at the end, and in every event if asked for."""
    asked = body("derender", parse_context=CONTEXT, return_token_ids=True)
    found = stream(parsing.url, asked | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    first, last = found[0], found[-1]
    assert list(first) == ["request_id", "usage", "prompt_token_ids", "output_mode", "choices"]
    assert list(first["choices"][0]) == [
        *("index", "finish_reason", "stop_reason", "token_ids", "routed_experts", "sampling_mask"),
        *("weight_versions", "delta", "logprobs"),
    ]
    assert first["prompt_token_ids"] == PROMPT and "prompt_token_ids" not in found[1]
    assert list(last) == ["request_id", "usage", "output_mode", "choices"] and last["choices"] == []
    counts = [event["usage"]["completion_tokens"] for event in found[:-1]]
    assert counts == sorted(counts) and counts[-1] == last["usage"]["completion_tokens"]
    assert stream(parsing.url, asked)[0]["usage"] is None


def test_choices(parsing):
    asked = body("derender", [SAID, "<think>\nno\n</think>\n\nB"], params={"n": 2}, parse_context=CONTEXT)
    streamed, other = folded(stream(parsing.url, asked)), whole(post(parsing.url, asked).json())
    assert streamed.keys() == other.keys() == {0, 1}
    assert streamed[1] == other[1] and streamed[1]["content"] == "\n\nB"
    assert [choice["finish"] for choice in streamed.values()] == ["tool_calls", "stop"]


def test_stop_strings_are_matched_here(simulator, parsing):
    """The engine, which takes none, never sees them; the text ends before, the ids where the string was complete."""
    for mode in ("text", "derender"):
        asked = body(mode, "<think>\n</think>\n\nOne two three", params={"stop": ["two"]}, parse_context=CONTEXT)
        for one in (folded(stream(parsing.url, asked))[0], whole(post(parsing.url, asked).json())[0]):
            assert (one["text"] or one["content"]).endswith("One ") and one["finish"] == "stop"
        assert "stop" not in simulator.requests()[-1]["body"]["sampling_params"]


def test_logprobs_have_text(parsing):
    for mode in ("text", "derender"):
        asked = body(mode, params={"logprobs": 2}, parse_context=CONTEXT)
        one, other = folded(stream(parsing.url, asked))[0], whole(post(parsing.url, asked).json())[0]
        assert one["logprobs"] == other["logprobs"] and len(one["logprobs"]) == len(one["ids"])
        assert all(entry["token"] and entry["top_logprobs"] for entry in one["logprobs"])


def test_hidden_reasoning_hides_its_ids(parsing):
    context = CONTEXT | {"include_reasoning": False}
    asked = body("derender", params={"logprobs": 1}, parse_context=context)
    streamed, answer = stream(parsing.url, asked), post(parsing.url, asked).json()
    for one in (folded(streamed)[0], whole(answer)[0]):
        assert (one["reasoning"], one["content"], one["ids"], one["logprobs"]) == ("", "\n\nLet me check.\n", [], [])
    for choice in [choice for event in (*streamed, answer) for choice in event["choices"]]:
        assert choice["token_ids"] is None and choice["logprobs"] is None


def test_a_chat_request_in_place_of_the_context(parsing):
    chat = {"messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER]}
    one = whole(post(parsing.url, body("derender", chat_request=chat)).json())[0]
    assert one["calls"] and one["finish"] == "tool_calls"
    without = whole(post(parsing.url, body("derender", chat_request=chat | {"tool_choice": "none"})).json())[0]
    assert not without["calls"] and "<tool_call>" in without["content"]


def test_what_render_answers_can_be_sent_here(parsing):
    """Our own render's answer, with the mode set, is a valid request and derenders as the chat would."""
    chat = {"model": DEMO_NAME, "messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER], "max_tokens": 400}
    chat["vllm_xargs"] = {"force_text": SAID}
    rendered = httpx.post(parsing.url + "/v1/chat/completions/render", json=chat).json()
    one = whole(post(parsing.url, rendered | {"output_mode": "derender"}).json())[0]
    told = httpx.post(parsing.url + "/v1/chat/completions", json=chat).json()["choices"][0]
    message = told["message"]
    assert (one["reasoning"], one["content"], one["finish"]) == (
        message["reasoning"],
        message["content"],
        told["finish_reason"],
    )
    assert one["calls"][0]["arguments"] == message["tool_calls"][0]["function"]["arguments"]


# -- against the coupled server --------------------------------------------------------------------------------


def recorded(name: str) -> tuple[dict[str, Any], Any]:
    raw = (CAPTURES / name).read_bytes().replace(b"\r\n", b"\n")
    asked, _, answer = raw.partition(b"\n\nHTTP/1.1 ")
    text = answer.partition(b"\n\n")[2].decode()
    told = events(text)[:-1] if name.endswith("stream.txt") else json.loads(text)
    return json.loads(asked.split(b"\n>>> ", 1)[1]), told


@pytest.fixture(scope="module")
def qwen3() -> Iterator[Sidecar]:
    """A sidecar with the model of the captures, before a token-only engine of the same vocabulary."""
    directory = tokenizer_dir("qwen3")
    with (
        Simulator(directory, served_model_name=("qwen3",)) as engine,
        Sidecar(directory, engine_url=engine.url, reasoning_parser="qwen3", tool_call_parser="hermes") as running,
    ):
        yield running


CASES = ("content", "tool", "two_tools", "no_think", "unclosed_think")


@pytest.mark.parametrize("case", CASES)
def test_the_coupled_servers_derender_answers(qwen3, case):
    """Its recorded request gives its recorded message; streamed, which it refuses, gives the same."""
    asked, told = recorded(f"coupled033_{case}_generate_derender_full.txt")
    expected = whole(told)[0]
    streamed, other = folded(stream(qwen3.url, asked))[0], whole(post(qwen3.url, asked).json())[0]
    for one in (expected, streamed, other):
        for entry in one["calls"]:
            entry.pop("id")
    assert streamed == other
    if case == "two_tools":  # a listed difference: white space between calls is content here, as in vLLM's streams
        expected["content"], other["content"] = expected["content"].strip(), other["content"].strip()
    assert other == expected


@pytest.mark.parametrize("case", CASES)
def test_the_coupled_servers_text_streams(qwen3, case):
    asked, told = recorded(f"coupled033_{case}_generate_text_stream.txt")
    found = stream(qwen3.url, asked)
    assert folded(found)[0] == folded(told)[0]
    for ours, theirs in zip(found, told, strict=False):
        assert list(ours) == list(theirs) and list(ours["choices"][0]) == list(theirs["choices"][0])


@pytest.mark.parametrize("case", CASES)
def test_the_coupled_servers_token_streams(qwen3, case):
    asked, told = recorded(f"coupled033_{case}_generate_tokens_stream.txt")
    assert folded(stream(qwen3.url, asked))[0] == folded(told)[0]


# -- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["tokens", "text", "derender"])
@pytest.mark.parametrize(
    ("change", "param", "status"),
    [
        ({"token_ids": []}, "token_ids", 400),
        ({"token_ids": [5, -1]}, "token_ids[1]", 400),
        ({"token_ids": [5, 99_999_999]}, "token_ids[1]", 400),
        ({"token_ids": [5, 1.5]}, "token_ids[1]", 400),
        ({"token_ids": [5] * 100_000}, "token_ids", 400),
        ({"sampling_params": None}, "sampling_params", 400),
        ({"sampling_params": {"n": 0}}, "sampling_params.n", 400),
        ({"sampling_params": {"stop_token_ids": [99_999_999]}}, "sampling_params.stop_token_ids[0]", 400),
        ({"sampling_params": {"logprobs": 1000}}, "sampling_params.logprobs", 400),
        ({"sampling_params": {"temperature": 9}}, "sampling_params.temperature", 400),
        ({"sampling_params": {"logit_bias": {"99999999": 1}}}, "sampling_params.logit_bias", 400),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens", 400),
        ({"sampling_params": {"structured_outputs": {"regex": "a"}}}, "sampling_params.structured_outputs", 400),
        ({"stream_options": {"include_usage": True}}, "stream_options", 400),
        ({"cache_salt": ""}, "cache_salt", 400),
        ({"model": "nobody"}, "model", 404),
        ({"output_mode": "speech"}, "output_mode", 400),
    ],
)
def test_validation_holds_in_every_mode(parsing, mode, change, param, status):
    asked = body(mode, parse_context=CONTEXT)
    if isinstance(change.get("sampling_params"), dict):
        change = {"sampling_params": {**asked["sampling_params"], **change["sampling_params"]}}
    answer = post(parsing.url, asked | change)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "parse_context"),
        ({"parse_context": CONTEXT | {"new": 1}}, None),
        ({"parse_context": CONTEXT | {"tools": [{"type": "function"}]}}, "parse_context.tools[0].function"),
        ({"parse_context": CONTEXT | {"tool_choice": "maybe"}}, "parse_context.tool_choice"),
        ({"parse_context": CONTEXT | {"history_tool_call_cnt": -1}}, "parse_context.history_tool_call_cnt"),
        ({"parse_context": CONTEXT, "chat_request": {}}, "chat_request"),
        ({"chat_request": {"messages": []}}, "chat_request.messages"),
        ({"parse_context": CONTEXT, "params": {"detokenize": False}}, "sampling_params.detokenize"),
    ],
)
def test_contexts_that_make_no_sense(parsing, fields, param):
    answer = post(parsing.url, body("derender", **fields))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_without_a_parser_no_context_is_needed(plain):
    assert whole(post(plain.url, body("derender", "hello")).json())[0]["content"] == "hello"


def test_other_modes_take_a_rendered_request_as_it_is(parsing):
    """A context that they do not read is not looked at, unknown fields included, as in vLLM."""
    for mode in ("tokens", "text"):
        assert post(parsing.url, body(mode, parse_context=CONTEXT | {"new": 1})).status_code == 200


def test_what_only_whole_answers_have(parsing):
    answer = post(parsing.url, body("text", "hello", params={"prompt_logprobs": 1})).json()
    assert len(answer["prompt_logprobs"]) == len(PROMPT)


def test_a_failure_in_the_stream_is_an_event(parsing):
    asked = body("derender", params={"extra_args": {"force_text": SAID, "fault": "reset", "fault_after": 5}})
    answer = post(parsing.url, asked | {"stream": True, "parse_context": CONTEXT})
    found = events(answer.text)
    assert found[-1] == "DONE" and found[-2]["error"]["code"] == 502


def test_ids_of_requests(simulator, parsing):
    """The answer has the client's; the engine's is another's to guess."""
    for fields, headers, shown in (
        ({"request_id": "from-body"}, {}, "generate-tokens-from-body"),
        ({"request_id": "from-body"}, {"x-request-id": "from-the-header"}, "generate-tokens-from-the-header"),
    ):
        answer = post(parsing.url, body("text", "a", **fields), **headers)
        assert answer.json()["request_id"] == shown
    (seen,) = simulator.requests("from-the-header")
    assert re.fullmatch("generate-tokens-from-the-header-[0-9a-f]{16}", seen["request_id"])
