"""The official clients against the running sidecar: a conversation of two turns with reasoning and parallel calls.

What the model says is scripted by what it is asked, in a file of the simulator; the clients send nothing special.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from tests.e2e.wire import WEATHER, call, chat_body
from tests.servers import DEMO_NAME, Sidecar, Simulator

JS = Path(__file__).resolve().parent / "js"
QUESTION = "What is the weather in Paris and Oslo?"
THOUGHT = "The user wants two cities. 日本語 😀"
INTRO = "Let me look."
ANSWER = "Paris: mild. Oslo: cold."
FIRST = f"<think>\n{THOUGHT}\n</think>\n\n{INTRO}\n" + call("Paris", days=2) + "\n" + call("Oslo")
SECOND = f"<think>\nBoth are known.\n</think>\n\n{ANSWER}"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """A sidecar whose engine answers the first turn with two calls and the turn with their results with text."""
    script = tmp_path_factory.mktemp("script") / "script.jsonl"
    # The second turn's prompt has the tools' results in it, and is looked for first.
    entries = [{"match": "mild in Paris", "text": SECOND}, {"match": QUESTION, "text": FIRST, "itl": 0.001}]
    script.write_text("\n".join(json.dumps(entry) for entry in entries))
    with (
        Simulator(served_model_name=(DEMO_NAME,), script=str(script)) as engine,
        Sidecar(engine_url=engine.url, reasoning_parser="qwen3", tool_call_parser="hermes", api_key=["k"]) as sidecar,
    ):
        yield sidecar


@contextlib.contextmanager
def openai(sidecar):
    with OpenAI(base_url=f"{sidecar.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def first_turn(stream):
    """What the stream adds up to: message as the next turn sends it, reasoning, finish reason, usage."""
    reasoning, content, calls, finish, usage = "", "", {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            content += choice.delta.content or ""
            for entry in choice.delta.tool_calls or []:
                if entry.index not in calls:
                    calls[entry.index] = {
                        "id": entry.id, "type": "function",
                        "function": {"name": entry.function.name, "arguments": ""},
                    }  # fmt: skip
                calls[entry.index]["function"]["arguments"] += entry.function.arguments or ""
            finish = choice.finish_reason or finish
    message = {"role": "assistant", "content": content, "tool_calls": [calls[index] for index in sorted(calls)]}
    return message, reasoning, finish, usage


def check_first(message, reasoning, finish, usage):
    assert reasoning.strip() == THOUGHT
    assert message["content"].strip() == INTRO
    functions = [entry["function"] for entry in message["tool_calls"]]
    assert [function["name"] for function in functions] == ["get_weather", "get_weather"]
    assert [json.loads(function["arguments"]) for function in functions] == [
        {"city": "Paris", "days": 2},
        {"city": "Oslo"},
    ]
    assert len({entry["id"] for entry in message["tool_calls"]}) == 2
    assert finish == "tool_calls"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def results(message):
    texts = ["mild in Paris", "cold in Oslo"]
    return [
        {"role": "tool", "tool_call_id": entry["id"], "content": text}
        for entry, text in zip(message["tool_calls"], texts, strict=True)
    ]


def test_openai_python(scripted):
    with openai(scripted) as client:
        messages = [{"role": "user", "content": QUESTION}]
        options = {"model": DEMO_NAME, "tools": [WEATHER], "stream": True, "stream_options": {"include_usage": True}}
        found = first_turn(client.chat.completions.create(messages=messages, **options))
        check_first(*found)
        messages += [found[0], *results(found[0])]
        message, reasoning, finish, _ = first_turn(client.chat.completions.create(messages=messages, **options))
        assert (message["content"].strip(), message["tool_calls"], finish) == (ANSWER, [], "stop")
        assert reasoning.strip() == "Both are known."
        whole = client.chat.completions.create(messages=messages, model=DEMO_NAME, tools=[WEATHER])
        assert whole.choices[0].message.content == message["content"]


async def test_openai_python_async(scripted):
    async with AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            messages=[{"role": "user", "content": QUESTION}],
            model=DEMO_NAME,
            tools=[WEATHER],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    check_first(*first_turn(chunks))


def test_openai_pythons_own_accumulator(scripted):
    """``chat.completions.stream`` is stricter than a loop: it insists on order and indexes."""
    with openai(scripted) as client:
        with client.chat.completions.stream(
            messages=[{"role": "user", "content": QUESTION}], model=DEMO_NAME, tools=[WEATHER]
        ) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        assert "tool_calls.function.arguments.delta" in kinds
        calls = final.choices[0].message.tool_calls
        assert [json.loads(entry.function.arguments)["city"] for entry in calls] == ["Paris", "Oslo"]


def test_openai_python_sees_errors_as_errors(scripted, sidecar):
    with openai(scripted) as client:
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(model=DEMO_NAME, messages=[], stream=True)
        assert caught.value.param == "messages"
    with openai(sidecar) as client:
        body = chat_body("a b c d e", xargs={"fault": "reset", "fault_after": 2})
        with pytest.raises(APIError), client.chat.completions.create(
            model=body["model"], messages=body["messages"], stream=True, extra_body={"vllm_xargs": body["vllm_xargs"]}
        ) as stream:  # fmt: skip
            for _ in stream:
                pass


def test_openai_python_completions(sidecar):
    with openai(sidecar) as client:
        stream = client.completions.create(
            model=DEMO_NAME, prompt="x", stream=True, extra_body={"vllm_xargs": {"force_text": "there was"}}
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == "there was"
        assert [model.id for model in client.models.list()] == [DEMO_NAME]


@pytest.mark.parametrize("script", ["openai.mjs", "ai-sdk.mjs"])
def test_javascript(scripted, script):
    """Each script holds the conversation and prints what it saw as JSON; ``make test`` installs the packages."""
    run = subprocess.run(
        ["node", script, f"{scripted.url}/v1", "k", DEMO_NAME, QUESTION],
        cwd=JS,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NODE_ENV": "test"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert found["reasoning"].strip() == THOUGHT
    assert found["content"].strip() == INTRO
    assert found["calls"] == [
        {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},
        {"name": "get_weather", "arguments": {"city": "Oslo"}},
    ]
    assert found["finish"] in ("tool_calls", "tool-calls")
    assert found["answer"].strip() == ANSWER
    assert found["deltas"] > 10
