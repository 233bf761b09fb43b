"""One request to a sidecar and its answer: streamed or not, folded into the same shape."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DONE = "[DONE]"
PROMPT_TEMPLATE = "{%- for message in messages %}{{ message.content }}{% endfor %}"


@dataclass
class Call:
    """A tool call as a client would have it."""

    index: int
    id: str | None
    name: str | None
    arguments: str = ""


@dataclass
class Choice:
    """A choice, put together as clients do it."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[str, Any]] | None = None
    token_ids: list[int] | None = None
    deltas: list[dict[str, Any]] = field(default_factory=list)
    message: dict[str, Any] | None = None  # the message of a whole answer, as it came

    @property
    def summary(self) -> dict[str, Any]:
        """What must be the same in both modes and in every chunking."""
        return {
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": [(call.index, call.name, call.arguments) for call in self.calls],
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "logprobs": self.logprobs,
            "token_ids": self.token_ids,
        }


@dataclass
class Exchange:
    """``events``: the JSON of each event, DONE for the last; ``times``: when each came (monotonic)."""

    name: str
    streamed: bool
    status: int
    headers: httpx.Headers
    body: bytes
    events: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    headers_at: float = 0.0

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The events that are chunks of choices, or of usage."""
        return [event for event in self.events if isinstance(event, dict) and "error" not in event]

    @property
    def error(self) -> dict[str, Any] | None:
        """The error, as the body or as an event."""
        bodies = self.events if self.streamed and self.status == 200 else [self.json]
        for body in bodies:
            if isinstance(body, dict) and "error" in body:
                found: dict[str, Any] = body["error"]
                return found
        return None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def only(self) -> Choice:
        assert list(self.choices) == [0], f"{self.name}: {self.status} {self.body[:500]!r}"
        return self.choices[0]


class Client:
    """Sends requests to one sidecar."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = url
        self.http = http

    def ask(
        self,
        body: dict[str, Any],
        *,
        path: str = CHAT,
        name: str = "",
        request_id: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Exchange:
        headers = dict(headers or {})
        if request_id is not None:
            headers["x-request-id"] = request_id
        streamed = bool(body.get("stream"))
        with self.http.stream("POST", self.url + path, json=body, headers=headers) as response:
            headers_at = time.monotonic()
            data = bytearray()
            marks: list[tuple[int, float]] = []
            for piece in response.iter_raw():
                data += piece
                marks.append((len(data), time.monotonic()))
            answer = Exchange(name, streamed, response.status_code, response.headers, bytes(data))
        answer.headers_at = headers_at
        if answer.status == 200 and streamed:
            _read_stream(answer, marks)
        elif answer.status == 200:
            _read_whole(answer)
        return answer


def _read_stream(answer: Exchange, marks: list[tuple[int, float]]) -> None:
    at = 0
    for frame in answer.body.split(b"\n\n"):
        at += len(frame) + 2
        if not frame or frame.startswith(b":"):
            continue
        assert frame.startswith(b"data: ") and b"\n" not in frame and b"\r" not in frame, frame
        data = frame.removeprefix(b"data: ")
        event = DONE if data == b"[DONE]" else json.loads(data.decode())
        answer.events.append(event)
        answer.times.append(next((when for size, when in marks if size >= at), marks[-1][1]))
        if not isinstance(event, dict):
            continue
        answer.usage = event.get("usage") or answer.usage
        for choice in event.get("choices", ()):
            _fold(answer.choices.setdefault(choice["index"], Choice()), choice)


def collected(name: str, chunks: list[dict[str, Any]]) -> Exchange:
    """The chunks of a stateless stream as one streamed answer. Nulls are keys left out."""
    answer = Exchange(name, True, 200, httpx.Headers(), b"", [without_nulls(chunk) for chunk in chunks])
    for event in answer.events:
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            choice.setdefault("finish_reason", None)
            _fold(answer.choices.setdefault(choice["index"], Choice()), choice)
    return answer


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def reasoning_of(delta: dict[str, Any]) -> str:
    """Reasoning text under either name (the same under both where both are sent)."""
    return delta.get("reasoning") or delta.get("reasoning_content") or ""


def _fold(folded: Choice, choice: dict[str, Any]) -> None:
    delta = choice["delta"] if "delta" in choice else {"content": choice["text"]}
    folded.deltas.append({**delta, "finish_reason": choice["finish_reason"]})
    folded.content += delta.get("content") or ""
    folded.reasoning += reasoning_of(delta)
    for entry in delta.get("tool_calls") or ():
        known = next((call for call in folded.calls if call.index == entry["index"]), None)
        if known is None:
            known = Call(entry["index"], entry.get("id"), entry["function"].get("name"))
            folded.calls.append(known)
        known.arguments += entry["function"].get("arguments") or ""
    if choice["finish_reason"] is not None:
        folded.finish_reason, folded.stop_reason = choice["finish_reason"], choice.get("stop_reason")
    if choice.get("logprobs"):
        folded.logprobs = [*(folded.logprobs or ()), *choice["logprobs"]["content"]]
    if choice.get("token_ids"):
        folded.token_ids = [*(folded.token_ids or ()), *choice["token_ids"]]


def _read_whole(answer: Exchange) -> None:
    body = answer.json
    answer.usage = body["usage"]
    for choice in body["choices"]:
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        answer.choices[choice["index"]] = Choice(
            content=message.get("content") or "",
            reasoning=reasoning_of(message),
            calls=[
                Call(index, call["id"], call["function"]["name"], call["function"]["arguments"])
                for index, call in enumerate(message.get("tool_calls") or ())
            ],
            finish_reason=choice["finish_reason"],
            stop_reason=choice.get("stop_reason"),
            logprobs=choice["logprobs"]["content"] if choice.get("logprobs") and "message" in choice else None,
            token_ids=choice.get("token_ids"),
            message=message,
        )


def script(ids: Any, **how: Any) -> dict[str, Any]:
    """``vllm_xargs`` for the simulator: what it is to answer, and how. Values that are no scalars go as JSON."""
    given = {"force_ids": ids, **how}
    return {name: json.dumps(value) if isinstance(value, list | tuple) else value for name, value in given.items()}
