"""``/v1/completions`` over HTTP: prompts of every kind, echo, n, logprobs."""

import pytest

from tests.e2e.wire import completion_body, events, post, stream

PATH = "/v1/completions"


def texts(chunks):
    found: dict[int, str] = {}
    for chunk in chunks:
        assert chunk["object"] == "text_completion"
        for choice in chunk["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return [found[index] for index in sorted(found)]


def both(url, body):
    """The texts by choice, streamed and not."""
    streamed = texts(stream(url, body, PATH))
    answer = post(url, body, PATH)
    assert answer.status_code == 200, answer.text
    assert [choice["text"] for choice in answer.json()["choices"]] == streamed
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(len(streamed)))
    return streamed


def ids_of(sidecar, text):
    return post(sidecar.url, {"prompt": text, "add_special_tokens": False}, "/tokenize").json()["tokens"]


def test_text(sidecar):
    assert both(sidecar.url, completion_body("there was a <think>tag</think> 😀")) == [
        "there was a <think>tag</think> 😀"
    ]


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_chunks_do_not_matter(sidecar, chunk):
    assert both(sidecar.url, completion_body("日本語 😀 und so", xargs={"chunk": chunk})) == ["日本語 😀 und so"]


def test_prompts_of_every_kind(sidecar):
    ids = ids_of(sidecar, "Hello there")
    for prompt, count in (("Hello", 1), (["Hello", "there"], 2), (ids, 1), ([ids, ids[:1]], 2)):
        assert both(sidecar.url, completion_body("ok", prompt=prompt)) == ["ok"] * count


def test_n_and_prompts_number_flat(sidecar):
    body = completion_body(["a", "b"], prompt=["x", "y"], n=2, temperature=1)
    assert both(sidecar.url, body) == ["a", "b", "a", "b"]
    usage = post(sidecar.url, body, PATH).json()["usage"]
    chunks = stream(sidecar.url, body | {"stream_options": {"include_usage": True}}, PATH)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"].items() <= usage.items()


def test_echo_gives_the_prompt_back(sidecar):
    ids = ids_of(sidecar, "Hello there")
    assert both(sidecar.url, completion_body(" friend", prompt="Hello there", echo=True)) == ["Hello there friend"]
    assert both(sidecar.url, completion_body(" friend", prompt=ids, echo=True)) == ["Hello there friend"]


def test_echo_without_a_token_more(sidecar, simulator):
    body = completion_body("never", prompt="Hello", echo=True, max_tokens=0)
    assert both(sidecar.url, body) == ["Hello"]
    answer = post(sidecar.url, body, PATH).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


def test_logprobs(sidecar):
    body = completion_body("there was", logprobs=2)
    whole = post(sidecar.url, body, PATH).json()["choices"][0]["logprobs"]
    assert "".join(whole["tokens"]).startswith("there was")
    assert whole["text_offset"][0] == 0
    for offset, token, following in zip(whole["text_offset"], whole["tokens"], whole["text_offset"][1:], strict=False):
        assert following == offset + len(token)
    assert all(token in top for token, top in zip(whole["tokens"], whole["top_logprobs"], strict=True))
    streamed = {"text_offset": [], "tokens": [], "token_logprobs": [], "top_logprobs": []}
    for chunk in stream(sidecar.url, body, PATH):
        for choice in chunk["choices"]:
            for key, values in (choice["logprobs"] or {}).items():
                streamed[key] += values
    assert streamed == whole


def test_echo_with_logprobs_covers_the_prompt(sidecar):
    body = completion_body(" friend", prompt="Hello there", echo=True, logprobs=1)
    choice = post(sidecar.url, body, PATH).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Hello there friend"
    assert "".join(logprobs["tokens"]).startswith("Hello there friend")
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    prompt_only = post(sidecar.url, body | {"max_tokens": 0}, PATH).json()["choices"][0]
    assert prompt_only["text"] == "Hello there"
    assert "".join(prompt_only["logprobs"]["tokens"]) == "Hello there"
    assert post(sidecar.url, body | {"stream": True}, PATH).status_code == 400


def test_stop_strings(sidecar):
    body = completion_body("one two STOP three", stop=["STOP"])
    assert both(sidecar.url, body) == ["one two "]
    choice = post(sidecar.url, body, PATH).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")


def test_ids_and_names(sidecar):
    raw = post(sidecar.url, completion_body("x") | {"stream": True}, PATH, headers={"x-request-id": "c-1"}).text
    assert {chunk["id"] for chunk in events(raw)[:-1]} == {"cmpl-c-1"}


def test_suffix_is_refused_plainly(sidecar):
    response = post(sidecar.url, completion_body("x", suffix="y"), PATH)
    assert response.status_code == 400 and response.json()["error"]["param"] == "suffix"


def test_token_ids(sidecar):
    body = completion_body("there was", return_token_ids=True)
    whole = post(sidecar.url, body, PATH).json()["choices"][0]
    streamed = [c for chunk in stream(sidecar.url, body, PATH) for c in chunk["choices"]]
    assert streamed[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for choice in streamed for token in choice["token_ids"] or []] == whole["token_ids"]
