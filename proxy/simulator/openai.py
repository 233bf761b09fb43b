"""The coupled mode: a simulated vLLM with its own frontend, which speaks chat and completions too.

A minimal path from ids to an answer that shares nothing with the proxy's: the whole text is decoded anew at each step,
cut by two regular expressions (Qwen3's ``<think>``, Hermes' ``<tool_call>``), and what is new against the step before
is sent, in vLLM's shape (0.33), ids included where ``return_token_ids`` asks for them. Scripts work as on the generate
route. ``vllm_xargs.plant`` names a field in which the answer is to be wrong, for those who compare.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Send

from proxy.simulator.frames import DONE
from proxy.simulator.model import Model
from proxy.simulator.options import Options
from proxy.simulator.run import SSE_HEADERS, respond
from proxy.simulator.script import Answer, Behaviour, Script, answers
from proxy.simulator.validation import Query, Refusal, check

_MARKERS = ("<think>", "</think>", "<tool_call>")
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.S)
_PARAMS = (
    "n", "temperature", "min_tokens", "ignore_eos", "stop_token_ids", "seed", "top_p", "min_p", "logit_bias",
)  # fmt: skip


@dataclass
class State:
    """What has been said of a choice."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments


@dataclass
class Prompted:
    """One prompt of a request and the answers to it."""

    query: Query
    behaviour: Behaviour
    answers: list[Answer]


class Coupled:
    """Answers chat and completion requests. Raises OSError or ValueError for a model without a chat template."""

    def __init__(self, options: Options, model: Model, script: Script) -> None:
        from transformers import AutoTokenizer

        if options.model is None:
            raise ValueError("the coupled mode needs a model directory")
        self._options = options
        self._model = model
        self._script = script
        self._template = AutoTokenizer.from_pretrained(options.model)

    # -- requests ------------------------------------------------------------------------------------------

    def chat(self, body: bytes) -> Exchange:
        """The exchange that answers a chat request. Raises Refusal."""
        data = _object(body)
        messages = data.get("messages")
        if not messages:
            raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
        kwargs = {"add_generation_prompt": True, **(data.get("chat_template_kwargs") or {})}
        tools: list[Any] | None = [_with_nulls(tool) for tool in data.get("tools") or ()] or None
        text = self._template.apply_chat_template(messages, tools=tools, tokenize=False, **kwargs)
        ids = self._model.encode(str(text))
        limit = data.get("max_completion_tokens") or data.get("max_tokens")
        if data.get("max_tokens") == 0:
            raise Refusal("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", param="max_tokens")
        logprobs = (data.get("top_logprobs") or 0) if data.get("logprobs") else None
        prompted = self._prompted(data, ids, limit, logprobs)
        closed = str(text).rstrip().endswith("</think>")
        inside = not closed and kwargs.get("enable_thinking") is not False
        return Exchange(self, data, [prompted], chat=True, inside=inside, calls=tools is not None)

    def completion(self, body: bytes) -> Exchange:
        """The exchange that answers a completion request. Raises Refusal."""
        data = _object(body)
        prompt = data.get("prompt")
        prompts = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt or []
        if not prompts or data.get("echo"):
            raise Refusal("This prompt cannot be simulated.", param="prompt")
        asked = [
            self._prompted(
                data,
                self._model.encode(item) if isinstance(item, str) else item,
                16 if data.get("max_tokens") is None else data["max_tokens"],
                data.get("logprobs"),
            )
            for item in prompts
        ]
        return Exchange(self, data, asked, chat=False, inside=False, calls=False)

    def _prompted(self, data: dict[str, Any], ids: list[int], limit: int | None, logprobs: int | None) -> Prompted:
        params = {name: data[name] for name in _PARAMS if data.get(name) is not None}
        params |= {"extra_args": data.get("vllm_xargs") or {}, "max_tokens": limit, "logprobs": logprobs}
        request = {
            "token_ids": ids,
            "model": data.get("model"),
            "stream": bool(data.get("stream")),
            "stream_options": data.get("stream_options"),
            "sampling_params": {name: value for name, value in params.items() if value is not None},
        }
        query = check(json.dumps(request).encode(), self._model, self._options)
        if query.late is not None:
            raise query.late
        behaviour = self._script.behaviour(query)
        if behaviour.fault == "http":
            raise Refusal(behaviour.fault_message, status=behaviour.fault_status, kind="InternalServerError")
        stops = [data["stop"]] if isinstance(data.get("stop"), str) else data.get("stop") or []
        told = [self._stopped(answer, stops) for answer in answers(behaviour, query, self._model)]
        return Prompted(query, behaviour, told)

    # -- text ----------------------------------------------------------------------------------------------

    def _stopped(self, answer: Answer, stops: list[str]) -> Answer:
        """The answer up to where a stop string is complete."""
        for count in range(1, len(answer.ids) + 1) if stops else ():
            text = self.text(answer.ids[:count])
            if any(stop in text for stop in stops):
                first = min((stop for stop in stops if stop in text), key=text.index)
                return Answer(answer.ids[:count], "stop", first, [1] * count)
        return answer

    def text(self, ids: list[int], stop: int | str | None = None) -> str:
        """The text of ``ids`` without special tokens, up to a stop string."""
        assert self._model.tokenizer is not None
        text = str(self._model.tokenizer.decode(ids, skip_special_tokens=True))
        return text.partition(stop)[0] if isinstance(stop, str) else text


def parsed(text: str, *, inside: bool, calls: bool, final: bool) -> State:
    """Reasoning, content and calls in ``text``; what may still become a marker or a character waits."""
    if not final:
        text = text.rstrip("\ufffd")
        for marker in _MARKERS:
            for length in range(len(marker) - 1, 0, -1):
                if text.endswith(marker[:length]):
                    text = text[:-length]
                    break
    state = State()
    if "</think>" in text:
        state.reasoning, _, text = text.removeprefix("<think>").partition("</think>")
    elif inside or text.startswith("<think>"):
        state.reasoning, text = text.removeprefix("<think>"), ""
    if not calls:
        state.content = text
        return state
    state.content = text.partition("<tool_call>")[0]
    for match in _CALL.finditer(text):
        source = match.group(1)
        name = str(json.loads(source)["name"])
        at = source.index('"arguments":') + len('"arguments":')
        at += len(source[at:]) - len(source[at:].lstrip())
        _, end = json.JSONDecoder().raw_decode(source, at)
        state.calls.append((name, source[at:end]))
    return state


_PLANTS: dict[str, Callable[[State], None]] = {
    "reasoning": lambda state: setattr(state, "reasoning", state.reasoning + "!"),
    "content": lambda state: setattr(state, "content", state.content + "!"),
    "tool_names": lambda state: _change_calls(state, lambda name, arguments: (name + "_x", arguments)),
    "arguments_text": lambda state: _change_calls(state, lambda name, arguments: (name, "{ " + arguments[1:])),
    "arguments_json": lambda state: _change_calls(
        state, lambda name, arguments: (name, json.dumps({**json.loads(arguments), "planted": 1}))
    ),
}


def _change_calls(state: State, change: Callable[[str, str], tuple[str, str]]) -> None:
    state.calls = [change(*call) for call in state.calls]


class Exchange:
    """One request and its answer, in one piece or as events."""

    def __init__(
        self,
        coupled: Coupled,
        data: dict[str, Any],
        prompted: list[Prompted],
        *,
        chat: bool,
        inside: bool,
        calls: bool,
    ) -> None:
        self._coupled = coupled
        self._prompted = prompted
        self._chat = chat
        self._inside = inside
        self._calls = calls
        self._n = data.get("n") or 1
        self._ids = bool(data.get("return_token_ids")) and data.get("include_reasoning") is not False
        self._plant = str((data.get("vllm_xargs") or {}).get("plant", ""))
        self._logprobs = bool(data.get("logprobs")) if chat else data.get("logprobs") is not None
        self.stream = bool(data.get("stream"))
        options = data.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(8)}",
            "object": ("chat.completion" if chat else "text_completion"),
            "created": int(time.time()),
            "model": data.get("model"),
        }
        if chat and self.stream:
            self._head["object"] = "chat.completion.chunk"

    @property
    def behaviour(self) -> Behaviour:
        return self._prompted[0].behaviour

    @property
    def choices(self) -> list[tuple[int, Prompted, Answer]]:
        """Number, prompt and answer of every choice."""
        return [
            (number * self._n + index, prompted, answer)
            for number, prompted in enumerate(self._prompted)
            for index, answer in enumerate(prompted.answers)
        ]

    @property
    def tokens(self) -> int:
        return sum(len(answer.ids) for _, _, answer in self.choices)

    def _prompt_ids(self, prompted: Prompted) -> list[int] | None:
        ids = prompted.query.token_ids
        if not self._ids:
            return None
        return [*ids[:-1], ids[-1] + 1] if self._plant == "prompt" else ids

    def _state(self, answer: Answer, count: int) -> State:
        final = count == len(answer.ids)
        text = self._coupled.text(answer.ids[:count], answer.stop_reason)
        if not self._chat:
            return State(content=text if final else text.rstrip("\ufffd"))
        state = parsed(text, inside=self._inside, calls=self._calls, final=final)
        plant = _PLANTS.get(self._plant)
        if plant is not None and (final or self._plant in ("tool_names", "arguments_text", "arguments_json")):
            plant(state)
        return state

    def _finish(self, answer: Answer, state: State) -> str:
        if self._plant == "finish_reason":
            return "length"
        return "tool_calls" if state.calls and answer.finish_reason == "stop" else answer.finish_reason

    def _stop_reason(self, answer: Answer) -> int | str | None:
        return None if answer.stop_reason in self._coupled._model.eos_token_ids else answer.stop_reason

    def _count(self) -> dict[str, Any]:
        prompt = sum(len(prompted.query.token_ids) for prompted in self._prompted)
        completion = self.tokens + (self._plant == "usage")
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def _told_logprobs(self, ids: list[int]) -> dict[str, Any] | None:
        if not self._logprobs or not self._chat:
            return None
        tokens = [self._coupled.text([token_id]) for token_id in ids]
        return {"content": [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in tokens]}

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = []
        for index, prompted, answer in self.choices:
            state = self._state(answer, len(answer.ids))
            choice: dict[str, Any] = {"index": index}
            if self._chat:
                choice["message"] = {"role": "assistant", "content": state.content or None, "refusal": None}
                if state.calls:
                    choice["message"]["tool_calls"] = [_call(number, call) for number, call in enumerate(state.calls)]
                choice["message"]["reasoning"] = state.reasoning or None
            else:
                choice["text"] = state.content
            choice |= {
                "logprobs": self._told_logprobs(answer.ids),
                "finish_reason": self._finish(answer, state),
                "stop_reason": self._stop_reason(answer),
                "token_ids": answer.ids if self._ids else None,
            }
            if not self._chat:
                choice["prompt_token_ids"] = self._prompt_ids(prompted)
            choices.append(choice)
        body = {**self._head, "choices": choices, "usage": self._count(), "prompt_logprobs": None}
        if self._chat:
            body["prompt_token_ids"] = self._prompt_ids(self._prompted[0])
        return {**body, "kv_transfer_params": None}

    async def events(self, pause: Callable[[float], Any]) -> AsyncIterator[bytes]:
        """The answer as events, ``[DONE]`` included."""
        if self.behaviour.ttft:
            await pause(self.behaviour.ttft)
        if self._chat:
            for index, prompted, _ in self.choices:
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                more = {"prompt_token_ids": self._prompt_ids(prompted), "prompt_text": None}
                yield _event({**self._head, "choices": [choice], **more})
        steps = [self._steps(*choice) for choice in self.choices]
        while steps:
            for step in list(steps):
                event = next(step, None)
                if event is None:
                    steps.remove(step)
                elif event:
                    yield event
            if self.behaviour.itl and steps:
                await pause(self.behaviour.itl)
        if self._usage:
            yield _event({**self._head, "choices": [], "usage": self._count()})
        yield DONE

    async def answer(self, receive: Receive, send: Send, record: dict[str, Any]) -> None:
        """Send it all; ``record["aborted"]`` tells that the client left before the end."""
        watch = asyncio.ensure_future(_left(receive))
        work = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((watch, work), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                record["aborted"] = "close"
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        if not self.stream:
            body = json.dumps(self.whole(), separators=(",", ":"), ensure_ascii=False).encode()
            await asyncio.sleep(self.behaviour.ttft)
            await respond(send, 200, body)
            return
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        async for event in self.events(asyncio.sleep):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _steps(self, index: int, prompted: Prompted, answer: Answer) -> Any:
        before, done = State(), 0
        for length in answer.lengths or [0]:
            ids, done = answer.ids[done : done + length], done + length
            state = self._state(answer, done)
            last = done >= len(answer.ids)
            delta: dict[str, Any] = {}
            if state.reasoning != before.reasoning:
                delta["reasoning"] = state.reasoning[len(before.reasoning) :]
            if state.content != before.content:
                delta["content"] = state.content[len(before.content) :]
            if len(state.calls) > len(before.calls):
                numbers = range(len(before.calls), len(state.calls))
                delta["tool_calls"] = [{"index": number, **_call(number, state.calls[number])} for number in numbers]
            logprobs = self._told_logprobs(ids)
            first, before = before == State() and done == length, state
            if self._chat and not (delta or last or logprobs or self._ids):
                yield b""
                continue
            choice: dict[str, Any] = {"index": index}
            if self._chat:
                choice["delta"] = delta
            else:
                choice["text"] = delta.get("content", "")
            choice["logprobs"], choice["finish_reason"] = logprobs, self._finish(answer, state) if last else None
            if last or not self._chat:
                choice["stop_reason"] = self._stop_reason(answer) if last else None
            if not self._chat:
                choice["prompt_token_ids"] = self._prompt_ids(prompted) if first else None
            choice["token_ids"] = ids if self._ids else None
            yield _event({**self._head, "choices": [choice], "kv_transfer_params": None})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _call(number: int, call: tuple[str, str]) -> dict[str, Any]:
    name, arguments = call
    function = {"name": name, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{number:016x}", "type": "function", "function": function}


def _with_nulls(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as vLLM shows it to the template."""
    function = {"name": None, "description": None, "parameters": None, **tool["function"]}
    return {"type": "function", "function": function}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Refusal("The body is not a JSON object.")
    return data
