"""The table of derender-05: bodies of the stateless endpoints, and the status each is answered with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import cases, checks_derender  # noqa: F401
from tests.faults.cases import encode
from tests.faults.evidence import Evidence, judge
from tests.faults.exchange import CHAT, COMPLETIONS
from tests.faults.fleet import Fleet
from tests.faults.test_derender import TOOLS, WINDOW

HELLO = [9707, 1879]
SAID = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}


def chunk(*ids: int, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"request_id": "r", "choices": [{"index": 0, "token_ids": list(ids), "finish_reason": finish}], **more}


def streaming(generate_chunk: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"stream": True, "generate_chunk": generate_chunk, "chat_request": SAID, "prompt_token_ids": [13048], **more}


def whole(ids: list[int] | None, *, response: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]
    answer = {"request_id": "r", "choices": choices, **(response or {})}
    return {"generate_response": answer, "chat_request": SAID, "prompt_token_ids": [13048], **more}


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def state(**fields: Any) -> dict[str, Any]:
    return WINDOW | fields


def bodies(row: str) -> list[tuple[bool, str, dict[str, Any]]]:
    """What ``row`` describes: whether parsers are configured, the path, the body."""
    two = {"request_id": "r", "choices": [{"index": n, "token_ids": HELLO, "finish_reason": None} for n in (0, 1)]}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    long = HELLO * 30_000
    no_ids: tuple[list[int] | None, ...] = ([], None)
    response = {"request_id": "r", "choices": [{"index": 0, "token_ids": HELLO, "finish_reason": "stop"}]}
    first = chunk(*HELLO)
    table: dict[str, list[tuple[bool, str, dict[str, Any]]]] = {
        "stream true, two choices in generate_chunk": [(parsed, CHAT, streaming(two)) for parsed in (True, False)],
        "stream_state.output_chunk_lens [2], output_token_ids of 3": [
            (True, CHAT, streaming(first, stream_state=state(output_chunk_lens=[2], output_token_ids=[1, 2, 3])))
        ],
        "stream_state.prefix_offset -1": [(False, CHAT, streaming(first, stream_state=state(prefix_offset=-1)))],
        "stream_state.prev_tokens of 1025 entries": [
            (False, CHAT, streaming(first, stream_state=state(prev_tokens=["a"] * 1025)))
        ],
        'stream_state.prev_tokens ["\\u4e2d"] (string that is no byte-level piece)': [
            (False, CHAT, streaming(first, stream_state=state(prev_tokens=["\u4e2d"])))
        ],
        "stream_state.read_offset 99 with 2 prev_tokens": [
            (False, CHAT, streaming(first, stream_state=state(prev_tokens=["a", "b"], read_offset=99)))
        ],
        "stream_state null or absent on the first call": [
            (parsed, CHAT, body)
            for parsed in (True, False)
            for body in (streaming(first), streaming(first, stream_state=None))
        ],
        "non-streaming, choice.token_ids [] or null": [
            (parsed, CHAT, whole(ids)) for parsed in (True, False) for ids in no_ids
        ],
        "parser configured, chat_request missing": [
            (True, CHAT, without(body, "chat_request")) for body in (streaming(first), whole(HELLO))
        ],
        "parser configured, streaming, prompt_token_ids missing": [
            (True, CHAT, without(streaming(first), "prompt_token_ids"))
        ],
        'output_mode "text"': [
            (False, CHAT, streaming(chunk(*HELLO, output_mode="text"))),
            (False, CHAT, whole(HELLO, response={"output_mode": "text"})),
        ],
        "output_mode absent": [(False, CHAT, body) for body in (streaming(first), whole(HELLO))],
        "unknown model": [(False, CHAT, body) for body in (streaming(first, model="none"), whole(HELLO, model="none"))],
        "model absent": [(False, CHAT, body) for body in (streaming(first), whole(HELLO))],
        "token_ids longer than max_model_len": [(False, CHAT, body) for body in (streaming(chunk(*long)), whole(long))],
        "token_ids [-1]": [(parsed, CHAT, body)
                           for parsed in (True, False) for body in (streaming(chunk(-1)), whole([-1]))],
        "streaming, token_ids [] with finish_reason stop": [
            (parsed, CHAT, streaming(chunk(finish="stop"))) for parsed in (True, False)
        ],
        "choices [] with usage": [
            (parsed, CHAT, streaming({"request_id": "r", "choices": [], "usage": usage}, prompt_tokens=40))
            for parsed in (True, False)
        ],
        "completions: len(prompt_tokens) != len(generate_responses)": [
            (False, COMPLETIONS, {"generate_responses": [response], "prompt_tokens": [1, 2]})
        ],
    }  # fmt: skip
    return table[row]


CASES = tuple(name for name in ("derender-05",) if name not in cases.later())


@pytest.mark.parametrize("name", CASES)
def test_table(fleet: Fleet, name: str) -> None:
    case = cases.load()[name]
    engine = fleet.simulator("qwen3").url
    plain = fleet.client(fleet.sidecar("qwen3", engine))
    parsing = fleet.client(fleet.sidecar("qwen3", engine, reasoning_parser="qwen3", tool_call_parser="hermes"))
    statuses: list[tuple[str, int]] = []
    streamed: list[tuple[str, set[str]]] = []
    wrong: list[tuple[str, int, str]] = []
    for row, wanted in case.input["rows"]:
        key = row.replace("\u4e2d", "\\u4e2d")
        for parsed, path, body in bodies(key):
            client = parsing if parsed else plain
            answer = client.http.post(f"{client.url}{path}/derender", json=body)
            statuses.append((row, answer.status_code))
            expected = wanted if isinstance(wanted, int) else int(wanted[:3])
            if answer.status_code != expected:
                wrong.append((row, answer.status_code, answer.text[:300]))
            elif answer.status_code != 200:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            elif body.get("stream"):
                streamed.append((answer.headers["content-type"], set(answer.json())))
                if row.startswith("choices []"):
                    assert answer.json()["chunk"]["usage"]["prompt_tokens"] == body["prompt_tokens"]
                if row == "model absent":
                    assert answer.json()["chunk"]["model"] == "qwen3"
    assert wrong == []
    held_text_is_flushed(parsing)
    judge(Evidence(case, facts={"statuses": statuses, "streamed answers": streamed}))


def held_text_is_flushed(client: Any) -> None:
    """A finish without ids says what was held: here what could have become a marker, and open arguments."""
    url = f"{client.url}{CHAT}/derender"
    answering = encode("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    opened = '<tool_call>\n{"name": "get_time", "arguments": {'
    for text, channel, wanted in (("a <", "content", "a <"), (opened, "calls", "{")):
        said, told = None, ""
        for piece in (chunk(*encode("qwen3", text)), chunk(finish="stop")):
            body = streaming(piece, prompt_token_ids=answering, stream_state=said)
            answer = client.http.post(url, json=body)
            assert answer.status_code == 200, answer.text
            said = answer.json()["stream_state"]
            delta = answer.json()["chunk"]["choices"][0]["delta"]
            if channel == "content":
                told += delta.get("content") or ""
            for entry in delta.get("tool_calls") or ():
                told += entry["function"].get("arguments") or ""
        assert told == wanted
