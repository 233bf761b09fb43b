"""``/v1/chat/completions`` over HTTP: streamed and not, against the simulator."""

import json

import httpx
import pytest

from tests.e2e.wire import WEATHER, call, chat_body, events, fold, message_of, post, stream, until

THOUGHT = "<think>\nThe user wants weather. 日本語 😀\n</think>\n\n"
TWO_CALLS = THOUGHT + "Let me look.\n" + call("Paris", days=2) + "\n" + call("Oslo")


@pytest.fixture
def plain(sidecars):
    """A sidecar without parsers: all that the model writes is content."""
    return sidecars()


def both(url, body, **options):
    """The folded stream and the whole answer, which must agree but for the ids of calls."""
    streamed = fold(stream(url, body, **options))
    answer = post(url, body, **options).json()
    for index, message in streamed.items():
        whole = message_of(answer, index)
        for one in (message, whole):
            for entry in one["tool_calls"]:
                assert entry.pop("id")
        assert message == whole
    return streamed, answer


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_reasoning_content_and_parallel_calls(sidecar, chunk):
    body = chat_body(TWO_CALLS, xargs={"chunk": chunk}, tools=[WEATHER])
    messages, answer = both(sidecar.url, body)
    message = messages[0]
    assert message["reasoning"].strip() == "The user wants weather. 日本語 😀"
    assert message["content"].strip() == "Let me look."
    assert [entry["name"] for entry in message["tool_calls"]] == ["get_weather", "get_weather"]
    assert [json.loads(entry["arguments"]) for entry in message["tool_calls"]] == [
        {"city": "Paris", "days": 2},
        {"city": "Oslo"},
    ]
    assert message["finish_reason"] == "tool_calls"


def test_shape_of_the_stream(sidecar):
    chunks = stream(sidecar.url, chat_body("Hi there"), headers={"x-request-id": "shape-1"})
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-shape-1"}
    assert len({chunk["created"] for chunk in chunks}) == 1
    assert {chunk["model"] for chunk in chunks} == {"demo"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert [c for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"]] == []


def test_shape_of_the_whole_answer(sidecar):
    """The keys of vLLM's answer (captures/coupled033_tool_chat_full.txt), less those of its internals."""
    body = chat_body(THOUGHT + call("Paris"), tools=[WEATHER])
    answer = post(sidecar.url, body, headers={"x-request-id": "shape-2"}).json()
    assert answer["id"] == "chatcmpl-shape-2" and answer["object"] == "chat.completion"
    assert set(answer) == {
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
        "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params",
    }  # fmt: skip
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    assert set(choice["message"]) == {
        "role", "content", "refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning",
    }  # fmt: skip
    assert choice["message"]["tool_calls"][0].keys() == {"id", "type", "function"}
    assert "tool_calls" not in post(sidecar.url, chat_body("plain")).json()["choices"][0]["message"]


def test_headers_of_a_stream(sidecar):
    body = chat_body("Hi") | {"stream": True}
    response = post(sidecar.url, body, headers={"x-request-id": "head-1", "accept-encoding": "gzip"})
    headers = response.headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"] == "head-1"
    assert "content-length" not in headers and "content-encoding" not in headers


def test_the_engine_gets_an_id_that_no_client_can_guess(sidecar, simulator):
    for _ in range(2):
        post(sidecar.url, chat_body("Hi"), headers={"x-request-id": "guess-1", "traceparent": "00-a-b-01"})
    first, second = simulator.requests("guess-1")
    assert first["request_id"] != second["request_id"]
    assert first["request_id"].startswith("generate-tokens-guess-1-")
    assert first["headers"]["traceparent"] == "00-a-b-01"


def test_usage(sidecar):
    body = chat_body(THOUGHT + "It is mild.", xargs={"cached_tokens": 4})
    chunks = stream(sidecar.url, body | {"stream_options": {"include_usage": True}})
    last = chunks[-1]
    assert last["choices"] == []
    assert not any("usage" in chunk for chunk in chunks[:-1])
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    assert post(sidecar.url, body).json()["usage"] == usage


def test_continuous_usage_counts_what_the_engine_has_sent(sidecar):
    body = chat_body(TWO_CALLS, tools=[WEATHER])
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(sidecar.url, body | {"stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == counts[-2]
    assert all(
        c["usage"]["total_tokens"] == c["usage"]["prompt_tokens"] + c["usage"]["completion_tokens"] for c in chunks
    )
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


def test_several_choices(sidecar):
    texts = [THOUGHT + "short", "<think>\nlonger\n</think>\n\n" + call("Rome"), "plain words, no thought"]
    body = chat_body(texts, n=3, temperature=1, tools=[WEATHER])
    messages, answer = both(sidecar.url, body)
    assert messages[0]["content"].strip() == "short"
    assert messages[1]["tool_calls"][0]["name"] == "get_weather"
    assert [messages[i]["finish_reason"] for i in range(3)] == ["stop", "tool_calls", "stop"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    alone = [post(sidecar.url, chat_body(text, tools=[WEATHER])).json()["usage"] for text in texts]
    assert answer["usage"]["completion_tokens"] == sum(usage["completion_tokens"] for usage in alone)
    assert answer["usage"]["prompt_tokens"] == alone[0]["prompt_tokens"]


def test_a_stop_string_cuts_and_aborts(plain, simulator):
    text = "one two three STOP four five " + "six " * 400
    body = chat_body(text, stop=["STOP"], xargs={"itl": 0.01})
    for streamed in (True, False):
        name = f"stop-{streamed}"
        if streamed:
            message = fold(stream(plain.url, body, headers={"x-request-id": name}))[0]
        else:
            message = message_of(post(plain.url, body, headers={"x-request-id": name}).json())
        assert (message["content"], message["finish_reason"], message["stop_reason"]) == (
            "one two three ", "stop", "STOP",
        )  # fmt: skip
        until(lambda name=name: simulator.only(name)["aborted"])
        assert "stop" not in simulator.only(name)["body"]["sampling_params"]


def test_the_first_of_two_choices_to_stop_does_not_end_the_other(plain, simulator):
    body = chat_body(["a STOP b c d e", "quite a long answer, STOP and more " * 30], n=2, temperature=1, stop="STOP")
    messages, _ = both(plain.url, body)
    assert [messages[index]["content"] for index in (0, 1)] == ["a ", "quite a long answer, "]
    assert [messages[index]["finish_reason"] for index in (0, 1)] == ["stop", "stop"]


def test_logprobs(sidecar):
    body = chat_body(THOUGHT + "It is 20°C 👍", logprobs=True, top_logprobs=2)
    messages, _ = both(sidecar.url, body)
    entries = messages[0]["logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode().endswith("20°C 👍<|im_end|>")
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries)


def test_token_ids_where_asked_for(sidecar, simulator):
    body = chat_body("<think>\na\n</think>\n\nb", return_token_ids=True)
    chunks = stream(sidecar.url, body, headers={"x-request-id": "ids-1"})
    sent = simulator.only("ids-1")["body"]
    assert chunks[0]["prompt_token_ids"] == sent["token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    answer = post(sidecar.url, body).json()
    assert answer["prompt_token_ids"] == sent["token_ids"]
    assert fold(chunks)[0]["token_ids"] == answer["choices"][0]["token_ids"]
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
    plain = stream(sidecar.url, chat_body("b"))
    assert not any("token_ids" in choice for chunk in plain for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("field", "names"),
    [("reasoning_content", {"reasoning_content"}), ("both", {"reasoning", "reasoning_content"})],
)
def test_reasoning_field(sidecars, field, names):
    url = sidecars(reasoning_parser="qwen3", reasoning_field=field).url
    body = chat_body("<think>hm</think>yes")
    keys = {key for chunk in stream(url, body) for c in chunk["choices"] for key in c["delta"]}
    assert keys - {"role", "content"} == names
    message = post(url, body).json()["choices"][0]["message"]
    assert {key for key in message if key.startswith("reasoning")} == names
    assert {message[name] for name in names} == {"hm"}


def test_transfer_parameters_need_an_answer_in_one_piece(plain, simulator):
    body = chat_body("Hi", kv_transfer_params={"do_remote_decode": True})
    response = post(plain.url, body, headers={"x-request-id": "kv-1"})
    assert response.status_code == 200
    sent = simulator.only("kv-1")["body"]
    assert not sent["stream"] and sent["kv_transfer_params"] == {"do_remote_decode": True}
    assert response.json()["choices"][0]["message"]["content"] == "Hi"


def test_prompt_logprobs_are_given_with_their_text(sidecar):
    answer = post(sidecar.url, chat_body("Hi", prompt_logprobs=1, return_token_ids=True)).json()
    positions = answer["prompt_logprobs"]
    assert positions[0] is None and len(positions) == len(answer["prompt_token_ids"])
    for token_id, position in zip(answer["prompt_token_ids"][1:], positions[1:], strict=True):
        assert isinstance(position[str(token_id)]["decoded_token"], str)


def test_a_message_that_goes_on_is_given_back_with_echo(plain):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    body = chat_body("hello", messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert both(plain.url, body)[0][0]["content"] == "hello"
    assert both(plain.url, body | {"echo": True})[0][0]["content"] == "Well, hello"


def test_the_prompt_as_text_where_asked_for(plain):
    body = chat_body("x", return_prompt_text=True)
    text = post(plain.url, body).json()["prompt_text"]
    assert text.endswith("assistant\n") and "Hi" in text
    assert stream(plain.url, body)[0]["prompt_text"] == text
    assert post(plain.url, chat_body("x")).json()["prompt_text"] is None


def test_an_id_in_the_body_counts_where_no_header_gives_one(plain):
    body = chat_body("x", request_id="from-body")
    response = post(plain.url, body)
    assert response.json()["id"] == "chatcmpl-from-body" and response.headers["x-request-id"] == "from-body"
    assert post(plain.url, body, headers={"x-request-id": "from-header"}).json()["id"] == "chatcmpl-from-header"


def test_length_stays_length(sidecar):
    body = chat_body(call("Paris"), tools=[WEATHER], max_tokens=8)
    messages, _ = both(sidecar.url, body)
    assert messages[0]["finish_reason"] == "length"


def test_text_with_unicode_line_ends_stays_in_one_event(plain):
    text = "a\u2028b\u2029c\x85d"
    response = post(plain.url, chat_body(text) | {"stream": True})
    assert not set(response.text) & {"\u2028", "\u2029", "\x85"}
    assert fold(events(response.text)[:-1])[0]["content"] == text


def test_keep_alive_comments_come_before_the_first_token_and_between_tokens(sidecars):
    url = sidecars(sse_keep_alive_interval=0.2, reasoning_parser="qwen3").url
    body = chat_body("<think>a</think>b", xargs={"ttft": 0.7}) | {"stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
        assert response.status_code == 200
        raw = "".join(response.iter_text())
    assert raw.startswith(": keep-alive\n\n: keep-alive\n\n")
    assert fold(events(raw)[:-1])[0]["content"] == "b"


def test_no_keep_alive_where_tokens_flow(sidecars):
    url = sidecars(sse_keep_alive_interval=0.2, reasoning_parser="qwen3").url
    raw = post(url, chat_body("word " * 20, xargs={"itl": 0.03}) | {"stream": True}).text
    assert ": keep-alive" not in raw
