"""Shadow: the client gets the engine's own answer; the same tokens are derendered beside it and the two compared.

What happens on the client's way is small and bounded: each event is decoded once, its ids are taken out, the rest
goes on. Derendering waits until the answer is complete, in a queue with an end, and runs in slices of a millisecond;
what does not fit is dropped and counted. Whatever goes wrong here, the client's bytes go on as they came.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from proxy.observe import logs
from proxy.rollout import undo
from proxy.rollout.compare import Answer, Call
from proxy.rollout.counters import Counters
from proxy.rollout.options import RolloutOptions

if TYPE_CHECKING:
    from proxy.rollout.relay import Headers

MAX_FRAME_BYTES = 8 * 1024 * 1024  # of an event, a million prompt ids; a longer one passes unread, ids and all
_FRAME_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class _Asked(msgspec.Struct):
    """What of a request decides whether and how it is shadowed."""

    stream: bool | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    use_beam_search: bool | None = None
    return_token_ids: bool | None = None
    n: int | None = None


class _WithIds(msgspec.Struct):
    return_token_ids: bool | msgspec.UnsetType | None = msgspec.UNSET


_asked = msgspec.json.Decoder(_Asked).decode
_with_ids = msgspec.json.Decoder(_WithIds).decode


@dataclass
class Told:
    """What the engine said of one choice: its text in pieces, its ids as they were cut."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)  # name, pieces of the arguments
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    chunks: list[list[int]] = field(default_factory=list)
    prompt: list[int] | None = None

    @property
    def answer(self) -> Answer:
        """What a client makes of it."""
        calls = [Call(name, "".join(pieces)) for name, pieces in self.calls]
        return Answer("".join(self.reasoning), "".join(self.content), calls, self.finish_reason)


@dataclass
class Job:
    """A complete answer, ready to be compared."""

    request_id: str
    path: str
    body: bytes
    streamed: bool
    n: int
    choices: dict[int, Told]
    usage: undo.Usage | None


@dataclass
class Recording:
    """Gathers a Job from events."""

    limit: int  # bytes of text, and eight for each id
    choices: dict[int, Told] = field(default_factory=dict)
    usage: undo.Usage | None = None
    prompt: list[int] | None = None
    size: int = 0
    failed: str | None = None  # why it cannot be compared

    def add(self, event: undo.Event) -> None:
        if self.failed is not None:
            return
        if bytes(event.error) != b"null":
            self.failed = "engine_error"
            return
        self.usage = event.usage or self.usage
        self.prompt = event.prompt_token_ids or self.prompt
        for choice in event.choices:
            self._add_choice(choice)
        if self.size > self.limit:
            self.failed, self.choices = "too_large", {}

    def _add_choice(self, choice: undo.Choice) -> None:
        told = self.choices.get(choice.index)
        if told is None:
            told = self.choices[choice.index] = Told()
        said = choice.delta or choice.message
        if said is not None:
            self._add_text(told.reasoning, said.reasoning or said.reasoning_content)
            self._add_text(told.content, said.content)
            for number, call in enumerate(said.tool_calls or ()):
                self._add_call(told.calls, number if call.index is None else call.index, call.function)
        self._add_text(told.content, choice.text)
        if choice.token_ids:
            told.chunks.append(choice.token_ids)
            self.size += 8 * len(choice.token_ids) + 64
        if choice.prompt_token_ids:
            told.prompt = choice.prompt_token_ids
        if choice.finish_reason is not None:
            told.finish_reason, told.stop_reason = choice.finish_reason, choice.stop_reason

    def _add_text(self, to: list[str], text: str | None) -> None:
        if text:
            to.append(text)
            self.size += len(text)

    def _add_call(self, calls: list[tuple[str, list[str]]], index: int, function: undo.Function) -> None:
        if index == len(calls):
            calls.append((function.name or "", []))
        if not 0 <= index < len(calls):
            self.failed = "calls_out_of_order"
            return
        self._add_text(calls[index][1], function.arguments)

    def why_not(self) -> str | None:
        """Why what was gathered cannot be compared; None: it can."""
        if self.failed is not None:
            return self.failed
        if not self.choices or any(told.finish_reason is None for told in self.choices.values()):
            return "incomplete"
        if any(told.finish_reason in ("abort", "error", "repetition") for told in self.choices.values()):
            return "aborted"
        if not any(told.chunks for told in self.choices.values()):
            return "no_ids"
        for told in self.choices.values():
            told.prompt = told.prompt or self.prompt
            if told.prompt is None:
                return "no_prompt_ids"
        return None


class ShadowTap:
    """Rides on one relayed answer: takes the ids out of what goes by, and gathers what was said.

    ``undo``: the ids were asked for by us, so the client is not to see them.
    """

    def __init__(self, *, limit: int, undo: bool) -> None:
        self.recording = Recording(limit)
        self.streamed = False
        self._undo = undo
        self._buffer = b""
        self._scanned = 0  # bytes of the buffer known to hold no end of a frame
        self._held: list[bytes] = []  # of an answer in one piece
        self._passing = False  # nothing is read any more

    def start(self, status: int, headers: Headers) -> bool:
        """Whether the answer is JSON in one piece, which changes its length."""
        kinds = {name.lower(): value.lower() for name, value in headers}
        kind = kinds.get(b"content-type", b"")
        self.streamed = kind.startswith(b"text/event-stream")
        if status != 200 or kinds.get(b"content-encoding", b"identity") != b"identity":
            self.recording.failed = "not_200" if status != 200 else "encoded"
            self._passing = True
        elif not self.streamed and not kind.startswith(b"application/json"):
            self.recording.failed = "content_type"
            self._passing = True
        return not self._passing and not self.streamed

    def feed(self, data: bytes) -> bytes:
        if self._passing:
            return data
        if not self.streamed:
            self._held.append(data)
            return b""
        self._buffer += data
        return self._frames()

    def end(self) -> bytes:
        if self._passing:
            return b""
        if self.streamed:
            rest, self._buffer = self._buffer, b""
            return rest
        body = b"".join(self._held)
        try:
            event = undo.decode(body)
            self.recording.add(event)
            return undo.undone(body, event) if self._undo else body
        except Exception as error:
            self._unreadable(error)
            return body

    def _unreadable(self, error: Exception) -> None:
        """The client's answer is not to end for what cannot be understood here: it goes on as it came."""
        if not isinstance(error, msgspec.MsgspecError):
            logs.failure(error)
        self.recording.failed = "unreadable"

    def _frames(self) -> bytes:
        """The frames that are complete, rewritten; what follows them stays in the buffer."""
        out: list[bytes] = []
        buffer, done = self._buffer, 0
        if b"\r" in buffer:
            for end in _FRAME_END.finditer(buffer, self._scanned):
                out.append(self._frame(buffer[done : end.end()], end.end() - end.start()))
                done = end.end()
        else:  # a fifth of the price of the expression
            at = buffer.find(b"\n\n", self._scanned)
            while at >= 0:
                out.append(self._frame(buffer[done : at + 2], 2))
                done = at + 2
                at = buffer.find(b"\n\n", done)
        self._buffer = buffer = buffer[done:]
        self._scanned = max(0, len(buffer) - 3)
        if len(buffer) > MAX_FRAME_BYTES:
            self.recording.failed, self._passing = "too_large", True
            out.append(buffer)
            self._buffer = b""
        return b"".join(out)

    def _frame(self, frame: bytes, end: int) -> bytes:
        if frame.startswith(b"data: {"):
            start = 6
        elif frame.startswith(b"data:{"):
            start = 5
        else:
            return frame  # a comment, [DONE]
        data = frame[start:-end]
        try:
            event = undo.decode(data)
            self.recording.add(event)
            if not self._undo:
                return frame
            if undo.only_for_ids(data, event):
                return b""
            return frame[:start] + undo.undone(data, event) + frame[-end:]
        except Exception as error:
            self._unreadable(error)
            return frame


@dataclass(frozen=True)
class Opened:
    """A request that is shadowed: the body for the engine, and the tap."""

    body: bytes
    tap: ShadowTap
    n: int


def open_shadow(body: bytes, path: str, options: RolloutOptions, counters: Counters) -> Opened | None:
    """Make a request ask for ids; None, and counted, where it cannot be shadowed."""
    try:
        asked = _asked(body)
        changed = body if asked.return_token_ids else asking_for_ids(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        counters.skipped["bad_request"] += 1  # whatever it is, the engine will answer it
        return None
    reason = None
    if asked.include_reasoning is False:
        reason = "include_reasoning"  # vLLM gives no ids then
    elif asked.echo:
        reason = "echo"  # with ids vLLM leaves out the prompt's text
    elif asked.use_beam_search:
        reason = "beam_search"
    if reason is not None:
        counters.skipped[reason] += 1
        return None
    return Opened(changed, ShadowTap(limit=options.shadow_bytes, undo=not asked.return_token_ids), asked.n or 1)


def asking_for_ids(body: bytes) -> bytes:
    """``body``, a JSON object, with ``return_token_ids``; otherwise as it was, to the byte if it can be."""
    if _with_ids(body).return_token_ids is not msgspec.UNSET:
        # Set to false or null: two keys of one name are read differently by different servers.
        return json.dumps({**json.loads(body), "return_token_ids": True}).encode()
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return body[:start] + b'"return_token_ids":true' + comma + body[start:]
