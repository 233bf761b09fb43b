"""``derender-proxy derender``: a captured token-only answer, derendered on the command line.

Reads what ``/inference/v1/generate`` has answered, streamed or not (a transcript of the whole exchange will do), and
writes chat chunks, one JSON a line; or the whole message; or, to see why a call came out as it did, what each chunk
said and what the parser made of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from proxy.config import ConfigError
from proxy.protocol.generate import GenerateChoice, GenerateEvent

if TYPE_CHECKING:
    from proxy.derender.deltas import Delta
    from proxy.derender.derenderer import ChatSettings, Derenderer
    from proxy.derender.stream import ChatStream

# Stands for tools that are not known, so that calls are looked for all the same.
_ANY_TOOL = {"type": "function", "function": {"name": ""}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="Model directory or hub id: whose tokens these are.")
    add("file", nargs="?", metavar="FILE", help="The captured answer, SSE or JSON. Default: standard input.")
    add("--request", metavar="FILE", help="The chat request: its tools and settings, and the prompt it renders to.")
    add("--prompt-token-ids", metavar="JSON", help="The prompt's ids, where the capture has them not.")
    add("--tool-call-parser", metavar="NAME|auto|none", default="auto", help="Default: auto.")
    add("--reasoning-parser", metavar="NAME|auto|none", default="auto", help="Default: auto.")
    add("--tool-call-streaming", choices=("incremental", "complete"), default="incremental")
    add("--framing-whitespace", choices=("keep", "trim"), default="keep")
    add("--trust-remote-code", action="store_true", help="Run code of the model's repository.")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--assembled", action="store_true", help="The final message of each choice instead of chunks.")
    shape.add_argument("--explain", action="store_true", help="Each chunk's tokens, and what the parser made of them.")


@dataclass
class Capture:
    """Events in order, and the prompt where the exchange shows it."""

    events: list[GenerateEvent] = field(default_factory=list)
    prompt: list[int] | None = None


def read_capture(text: str) -> Capture:
    """A stream of events, one answer, or a transcript with either in it. Raises ValueError."""
    capture = Capture()
    lines = text.splitlines()
    for line in lines:
        if line.startswith(">>> {"):
            sent = json.loads(line[4:])
            prompt = sent.get("token_ids") if isinstance(sent, dict) else None
            if isinstance(prompt, list):
                capture.prompt = prompt
    frames = [line[5:].strip() for line in lines if line.startswith("data:")]
    if frames:
        bodies = [frame for frame in frames if frame != "[DONE]"]
    else:
        begin = next((n for n, line in enumerate(lines) if line.lstrip().startswith("{")), None)
        if begin is None:
            raise ValueError("neither events (data: ...) nor a JSON answer in it")
        bodies = ["\n".join(lines[begin:])]
    for number, body in enumerate(bodies, 1):
        try:
            event = msgspec.json.decode(body.encode(), type=GenerateEvent)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"event {number} is no answer of /inference/v1/generate: {error}") from error
        if event.error is not None:
            raise ValueError(f"event {number} is an error: {event.error.message}")
        capture.prompt = event.prompt_token_ids or capture.prompt
        capture.events.append(event)
    if not any(event.choices for event in capture.events):
        raise ValueError("no choices in it")
    return capture


@dataclass
class Session:
    """One capture being derendered."""

    derenderer: Derenderer
    settings: ChatSettings
    prompt: Sequence[int]
    model: str
    streams: dict[int, ChatStream] = field(default_factory=dict)

    def steps(self, events: Iterable[GenerateEvent]) -> Iterator[tuple[GenerateChoice, ChatStream, str, list[Delta]]]:
        """Each choice of each event, its stream, the parser's state before, and what was said."""
        for event in events:
            for choice in event.choices:
                stream = self.streams.get(choice.index)
                if stream is None:
                    stream = self.derenderer.chat(
                        self.settings,
                        request_id=event.request_id or "offline",
                        prompt_token_ids=self.prompt,
                        index=choice.index,
                    )
                    self.streams[choice.index] = stream
                before = stream.machine.state
                logprobs = choice.logprobs.content if choice.logprobs is not None else None
                yield (
                    choice,
                    stream,
                    before,
                    stream.feed(choice.token_ids or [], choice.finish_reason, choice.stop_reason, logprobs),
                )


def chunks(session: Session, events: Sequence[GenerateEvent], out: TextIO) -> None:
    """Chat completion chunks, one JSON a line."""
    from proxy.routes.sse_chunks import ChatChunks

    count = 1 + max(choice.index for event in events for choice in event.choices)
    request_id = next((event.request_id for event in events if event.request_id), "offline")
    made = ChatChunks(f"chatcmpl-{request_id}", session.model, 0, count)
    for index in range(count):
        _lines(made.role(index), out)
    for choice, _, _, deltas in session.steps(events):
        frames: list[bytes] = []
        made.add(frames, choice.index, deltas)
        _lines(b"".join(frames), out)


def _lines(frames: bytes, out: TextIO) -> None:
    for frame in frames.split(b"\n\n"):
        if frame:
            out.write(frame.removeprefix(b"data: ").decode() + "\n")


def assembled(session: Session, events: Sequence[GenerateEvent], out: TextIO) -> None:
    """The final message of each choice, one JSON a line."""
    from proxy.derender.message import MessageBuilder

    built: dict[int, MessageBuilder] = {}
    for choice, _, _, deltas in session.steps(events):
        message = built.setdefault(choice.index, MessageBuilder())
        for delta in deltas:
            message.add(delta)
    for index in sorted(built):
        message = built[index]
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in message.tool_calls
        ]
        body = {"role": "assistant", "reasoning": message.reasoning, "content": message.content, "tool_calls": calls}
        answer = {"index": index, "message": body, "finish_reason": message.finish_reason}
        out.write(json.dumps({**answer, "stop_reason": message.stop_reason}, ensure_ascii=False) + "\n")


@dataclass(slots=True)
class Explained:
    """One chunk of one choice: its ids and their texts, the parser's state, what was emitted and what is held back."""

    choice: int
    tokens: list[tuple[int, str]]
    finish_reason: str | None
    before: str
    after: str
    deltas: list[Delta]
    held: str


def explained(session: Session, events: Iterable[GenerateEvent]) -> Iterator[Explained]:
    """What the parser made of each chunk; ``/debug/ui`` shows the same."""
    vocabulary = session.derenderer.vocabulary
    for choice, stream, before, deltas in session.steps(events):
        yield Explained(
            choice.index,
            [(i, vocabulary.piece(i).decode(errors="replace")) for i in choice.token_ids or []],
            choice.finish_reason,
            before,
            stream.machine.state,
            deltas,
            "" if stream.finished else stream.machine.held,
        )


def explain(session: Session, events: Sequence[GenerateEvent], out: TextIO) -> None:
    """Per chunk: ids and their text, the parser's state, what was emitted and what is held back."""
    for number, step in enumerate(explained(session, events), 1):
        shown = " ".join(f"{i}={_quoted(text)}" for i, text in step.tokens)
        end = f"  finish_reason {step.finish_reason}" if step.finish_reason else ""
        out.write(f"#{number} choice {step.choice}{end}\n  tokens   {shown or '-'}\n")
        out.write(f"  state    {step.before if step.before == step.after else f'{step.before} -> {step.after}'}\n")
        for said in _said(step.deltas):
            out.write(f"  emitted  {said}\n")
        if step.held:
            out.write(f"  held     {_quoted(step.held)}\n")


def _said(deltas: Iterable[Delta]) -> Iterator[str]:
    for delta in deltas:
        if delta.reasoning:
            yield f"reasoning {_quoted(delta.reasoning)}"
        if delta.content:
            yield f"content {_quoted(delta.content)}"
        for call in delta.tool_calls or ():
            name = f" {call.name} (id {call.id})" if call.name else ""
            yield f"call {call.index}{name}" + (f" arguments {_quoted(call.arguments)}" if call.arguments else "")
        if delta.finish_reason is not None:
            yield f"finish_reason {delta.finish_reason}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def run(options: argparse.Namespace) -> int:
    """Exit code 0, or 1 for a capture that cannot be read. Raises ConfigError for bad usage."""
    out, notes = sys.stdout, sys.stderr
    try:
        session, capture = _prepare(options, notes)
    except ValueError as error:
        notes.write(f"derender-proxy derender: {options.file or 'standard input'}: {error}\n")
        return 1
    write = assembled if options.assembled else explain if options.explain else chunks
    write(session, capture.events, out)
    unfinished = [index for index, stream in sorted(session.streams.items()) if not stream.finished]
    if unfinished:
        notes.write(f"derender-proxy derender: the capture ends before choice {unfinished[0]} has\n")
    return 1 if unfinished else 0


def _prepare(options: argparse.Namespace, notes: TextIO) -> tuple[Session, Capture]:
    from proxy.derender.derenderer import ChatSettings, Derenderer, UnknownFormat
    from proxy.derender.vocabulary import Vocabulary
    from proxy.parsers import checkpoint_of, resolved
    from proxy.render.model import Model

    try:
        text = Path(options.file).read_text(encoding="utf-8") if options.file else sys.stdin.read()
    except OSError as error:
        raise ConfigError(f"FILE: cannot read {options.file}: {error.strerror}") from None
    capture = read_capture(text)
    try:
        model = Model.load(options.model, tokenizer=None, trust_remote_code=options.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"MODEL: {options.model} cannot be loaded: {' '.join(str(error).split())}") from error
    vocabulary = Vocabulary.load(model.tokenizer, model.vocab_size)
    names = [None if name == "none" else name for name in (options.reasoning_parser, options.tool_call_parser)]
    try:
        choice = resolved(names[0], names[1], model.tokenizer, vocabulary)
        derenderer = Derenderer(
            vocabulary,
            reasoning_parser=choice.reasoning,
            tool_parser=choice.tools,
            eos_token_ids=model.eos_token_ids,
            tool_call_streaming=options.tool_call_streaming,
            framing_whitespace=options.framing_whitespace,
            checkpoint=checkpoint_of(model.tokenizer),
        )
    except UnknownFormat as error:
        raise ConfigError(f"--tool-call-parser / --reasoning-parser: {error}") from None
    if choice.explanation:
        notes.write(f"auto: {choice.explanation}\n")
    settings = ChatSettings(tools=(_ANY_TOOL,), tool_choice="auto")
    prompt = capture.prompt
    if options.request:
        settings, rendered = _request(options, model)
        prompt = prompt or rendered
    if options.prompt_token_ids:
        prompt = _ids(options.prompt_token_ids)
    if prompt is None and derenderer.parses:
        notes.write("no prompt in the capture (--request, --prompt-token-ids): the format's own beginning is assumed\n")
    return Session(derenderer, settings, prompt or [], options.model), capture


def _request(options: argparse.Namespace, model: Any) -> tuple[ChatSettings, list[int]]:
    """Settings of the chat request, and the prompt that it renders to."""
    from proxy.errors import RequestError
    from proxy.protocol.openai import parse_chat
    from proxy.render.renderer import Renderer, RenderOptions

    renderer = Renderer(RenderOptions(options.model, trust_remote_code=options.trust_remote_code), model)
    try:
        rendered = asyncio.run(renderer.chat(parse_chat(Path(options.request).read_bytes())))
    except OSError as error:
        raise ConfigError(f"--request: cannot read {options.request}: {error.strerror}") from None
    except RequestError as error:
        raise ConfigError(f"--request: {error.message}") from None
    return rendered.settings, rendered.prompt_token_ids


def _ids(text: str) -> list[int]:
    try:
        return msgspec.json.decode(text.encode(), type=list[int])
    except msgspec.MsgspecError:
        raise ConfigError("--prompt-token-ids: a JSON list of integers is wanted") from None
