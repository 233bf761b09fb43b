"""One choice of one answer: ids in, deltas out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from proxy.derender.deltas import Delta, ToolCallDelta
from proxy.derender.logprobs import LogprobFormatter
from proxy.derender.parsing.events import ARGUMENTS, CALL, CONTENT, END, REASONING, Event
from proxy.derender.parsing.foreign import Parser
from proxy.derender.profiles import Filter
from proxy.derender.settings import ChatSettings
from proxy.derender.stops import StopMatcher
from proxy.derender.tool_ids import ToolCallIds
from proxy.protocol.generate import TokenLogprob


class ChatStream:
    """Turns the ids of one choice into deltas, chunk by chunk; pure and synchronous.

    After n ids the state and all that was said depend on those ids alone, not on how they were cut.
    ``finished``: the last delta was returned, feed no more. ``stopped``: finished by a stop string that was
    matched here, so that the engine may still be generating. ``completion_tokens`` counts up to the end (the
    stop token and the token that completed a stop string included), ``reasoning_tokens`` those of reasoning.
    """

    __slots__ = (
        "_machine",
        "_settings",
        "_ids",
        "_eos",
        "_primary_eos",
        "_stop_ids",
        "_cut_ids",
        "_watched",
        "_deferred",
        "_deferred_logprobs",
        "_filters",
        "_stops",
        "_logprobs",
        "_lean",
        "_named",
        "_calls",
        "_muted",
        "_ended",
        "finished",
        "stopped",
        "completion_tokens",
    )

    def __init__(
        self,
        machine: Parser,
        settings: ChatSettings,
        ids: ToolCallIds,
        *,
        eos: Collection[int],
        primary_eos: int | None,
        cut_ids: Collection[int],
        filters: Sequence[Filter],
        logprobs: LogprobFormatter | None,
    ) -> None:
        """``eos``: ids that end a model's turn. ``cut_ids``: those of them behind which nothing is to be shown."""
        self._machine = machine
        self._settings = settings
        self._ids = ids
        self._eos = frozenset() if settings.ignore_eos else frozenset(eos)
        self._primary_eos = primary_eos
        self._stop_ids = frozenset(settings.stop_token_ids)
        self._cut_ids = frozenset() if settings.ignore_eos else frozenset(cut_ids)
        self._watched = self._cut_ids | self._stop_ids
        # a trailing id that may turn out to have stopped the engine, until the next chunk tells
        self._deferred: list[int] = []
        self._deferred_logprobs: list[TokenLogprob] = []
        self._filters = tuple(filters)
        self._stops: StopMatcher | None = None
        if settings.stop:
            self._stops = StopMatcher(settings.stop, settings.include_stop_str_in_output, settings.min_tokens)
        self._logprobs = logprobs
        # it does not matter which token says what
        self._lean = not (self._stops or logprobs or settings.return_token_ids)
        self._named = settings.forced == "named"
        self._calls = 0  # calls begun
        self._muted = False  # inside a call that the client did not want
        self._ended = False  # an EOS id was seen: whatever the engine still sends is not the answer
        self.finished = False
        self.stopped = False
        self.completion_tokens = 0

    @property
    def reasoning_tokens(self) -> int:
        return self._machine.reasoning_tokens

    @property
    def machine(self) -> Parser:
        """The parser, for explanations."""
        return self._machine

    def feed(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> list[Delta]:
        """Take one chunk of the engine; returns what there is to say ([]: nothing).

        ``finish_reason`` and ``stop_reason`` as the engine gives them, with the last chunk; ``logprobs`` has
        one entry per id. The last delta of the choice has OpenAI's finish reason.
        """
        if self.finished:
            return []
        if (
            finish_reason is None
            and self._lean
            and not self._ended
            and not self._deferred
            and self._watched.isdisjoint(token_ids)
        ):
            self.completion_tokens += len(token_ids)
            machine = self._machine
            machine.feed(token_ids)
            events = machine.events
            if not events:
                return []
            for item in self._filters:
                events = item.apply(events)
            if len(events) == 1:
                kind, text, _ = events[0]
                if kind == CONTENT:
                    machine.events.clear()
                    return [Delta(None, text)]
                if kind == ARGUMENTS and not self._muted:
                    machine.events.clear()
                    return [Delta(None, None, [ToolCallDelta(self._calls - 1, None, None, text)])]
            out: list[Delta] = []
            self._add(events, out)
            machine.events.clear()
            return out
        return self._feed(token_ids, finish_reason, stop_reason, logprobs)

    def _feed(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | str | None,
        logprobs: Sequence[TokenLogprob] | None,
    ) -> list[Delta]:
        if self._deferred or (finish_reason is None and token_ids and token_ids[-1] in self._stop_ids):
            token_ids, logprobs = self._defer(token_ids, logprobs, finish_reason is None)
        ids, shown = self._trim(token_ids, finish_reason, stop_reason)
        out: list[Delta] = []
        if self._lean:
            self.completion_tokens += len(ids)
            self._machine.feed(shown)
            self._drain(out)
        else:
            self._token_by_token(ids, len(shown), logprobs, out)
        if self.stopped:
            assert self._stops is not None
            self._finish("stop", self._stops.matched, out)
        elif finish_reason is not None:
            self._end(finish_reason, stop_reason, out)
        return out

    def _defer(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None, goes_on: bool
    ) -> tuple[Sequence[int], Sequence[TokenLogprob] | None]:
        """Take up what was put off, and put off a trailing stop id: only the finish reason says what it is."""
        ids = [*self._deferred, *token_ids]
        entries = None if logprobs is None else [*self._deferred_logprobs, *logprobs]
        keep = len(ids) - 1 if goes_on and ids and ids[-1] in self._stop_ids else len(ids)
        self._deferred = ids[keep:]
        self._deferred_logprobs = [] if entries is None else entries[keep:]
        return ids[:keep], None if entries is None else entries[:keep]

    def _trim(
        self, token_ids: Sequence[int], finish_reason: str | None, stop_reason: int | str | None
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The ids that count, and those of them that are shown (without the token that ended generation)."""
        if self._ended:
            return (), ()
        if not self._cut_ids.isdisjoint(token_ids):
            self._ended = True
            end = next(n for n, token_id in enumerate(token_ids) if token_id in self._cut_ids)
            token_ids = token_ids[: end + 1]
        elif not (finish_reason == "stop" and token_ids and self._stopped_by(token_ids[-1], stop_reason)):
            return token_ids, token_ids
        return token_ids, token_ids if self._settings.include_stop_str_in_output else token_ids[:-1]

    def _stopped_by(self, token_id: int, stop_reason: int | str | None) -> bool:
        if isinstance(stop_reason, int):
            return token_id == stop_reason or token_id in self._eos
        return token_id in self._eos or (stop_reason is None and token_id in self._stop_ids)

    def _token_by_token(
        self,
        ids: Sequence[int],
        shown: int,
        logprobs: Sequence[TokenLogprob] | None,
        out: list[Delta],
    ) -> None:
        """The path on which it matters which token says what."""
        visible = self._settings.include_reasoning
        for n, token_id in enumerate(ids):
            self.completion_tokens += 1
            if n < shown:
                self._machine.feed_one(token_id)
                self._drain(out)
            if visible and self._logprobs is not None and logprobs is not None:
                entry = self._logprobs.entry(token_id, logprobs[n] if n < len(logprobs) else None)
                delta = _last(out)
                delta.logprobs = [*(delta.logprobs or ()), entry]
            if visible and self._settings.return_token_ids:
                delta = _last(out)
                delta.token_ids = [*(delta.token_ids or ()), token_id]
            if self.stopped:
                return

    def _drain(self, out: list[Delta]) -> None:
        events = self._machine.events
        if events:
            self._deliver(events, out)
            events.clear()

    def _deliver(self, events: list[Event], out: list[Delta], after: int = 0) -> None:
        """Events through the filters from number ``after`` on, then through the stop strings, into deltas."""
        for item in self._filters[after:]:
            events = item.apply(events)
        if self._stops is not None:
            events = self._match(self._stops, events)
        self._add(events, out)

    def _match(self, stops: StopMatcher, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if event[0] != CONTENT:
                if event[0] != END and stops.held:
                    kept.append((CONTENT, stops.flush(), ""))
                kept.append(event)
                continue
            text = stops.push(event[1], self.completion_tokens)
            if text:
                kept.append((CONTENT, text, ""))
            if stops.matched is not None:
                self.stopped = True
                break
        return kept

    def _add(self, events: Sequence[Event], out: list[Delta]) -> None:
        """Append what events say to ``out``, into its last delta where that keeps the order."""
        delta = out[-1] if out else None
        for kind, text, extra in events:
            if kind == REASONING:
                if not self._settings.include_reasoning:
                    continue
                if delta is None or delta.content is not None or delta.tool_calls is not None:
                    delta = Delta()
                    out.append(delta)
                delta.reasoning = text if delta.reasoning is None else delta.reasoning + text
                continue
            if kind == END or (kind == ARGUMENTS and self._muted):
                continue
            if kind == CALL:
                self._calls += 1
                self._muted = self._calls > 1 and not self._settings.parallel_tool_calls
                if self._muted:
                    continue
            if delta is None or delta.reasoning is not None:
                delta = Delta()
                out.append(delta)
            if kind == CONTENT:
                delta.content = text if delta.content is None else delta.content + text
                continue
            if delta.tool_calls is None:
                delta.tool_calls = []
            index = self._calls - 1
            if kind == CALL:
                delta.tool_calls.append(ToolCallDelta(index, self._ids.make(index, text, extra), text))
            elif delta.tool_calls and delta.tool_calls[-1].index == index:
                call = delta.tool_calls[-1]
                call.arguments = text if call.arguments is None else call.arguments + text
            else:
                delta.tool_calls.append(ToolCallDelta(index, None, None, text))

    def _end(self, finish_reason: str, stop_reason: int | str | None, out: list[Delta]) -> None:
        """The engine has ended the choice: say what is still held, then why it ended."""
        self._machine.finish(cut=finish_reason != "stop")
        self._drain(out)
        for n, item in enumerate(self._filters):
            if not self.stopped:
                self._deliver(item.finish(), out, n + 1)
        if self.stopped:
            assert self._stops is not None
            self._finish("stop", self._stops.matched, out)
            return
        if self._stops is not None and self._stops.held:
            self._add([(CONTENT, self._stops.flush(), "")], out)
        if stop_reason == self._primary_eos and not self._settings.report_eos:
            stop_reason = None
        self._finish(finish_reason, stop_reason, out)

    def _finish(self, finish_reason: str, stop_reason: int | str | None, out: list[Delta]) -> None:
        if finish_reason == "stop" and self._calls and not self._named:
            finish_reason = "tool_calls"
        delta = _last(out)
        delta.finish_reason = finish_reason
        delta.stop_reason = stop_reason
        self.finished = True

    @property
    def ended(self) -> bool:
        """An EOS id was seen, behind which nothing is shown, finished or not."""
        return self._ended

    @property
    def calls(self) -> int:
        """Tool calls begun so far."""
        return self._calls

    def resume(self, pending: bytes, ended: bool) -> None:
        """Go on behind plain text, of which ``pending`` is the unfinished character (streams without parsers)."""
        self._machine.resume(pending)
        self._ended = ended

    def save(self) -> list[Any]:
        """The stream as plain data (numbers, strings, bytes, lists): what a snapshot carries."""
        return [
            self._machine.save(),
            [item.save() for item in self._filters],
            "" if self._stops is None else self._stops.held,
            self._calls,
            self._muted,
            self._ended,
            self.finished,
            self.stopped,
            self.completion_tokens,
            self._deferred,
            msgspec.to_builtins(self._deferred_logprobs),
        ]

    def load(self, saved: list[Any]) -> None:
        """Become the stream that ``save`` described, made for the same request.

        Raises KeyError, TypeError or ValueError for data that no stream of this request can have saved.
        """
        machine, filters, held, self._calls, self._muted, self._ended, self.finished, self.stopped, *rest = saved
        self.completion_tokens, deferred, logprobs = rest
        self._deferred = list(deferred)
        self._deferred_logprobs = msgspec.convert(logprobs, list[TokenLogprob])
        self._machine.load(machine)
        for item, state in zip(self._filters, filters, strict=True):
            item.load(state)
        if self._stops is not None:
            self._stops.held = held


def _last(out: list[Delta]) -> Delta:
    """The delta that carries what comes next without text of its own."""
    if not out:
        out.append(Delta())
    return out[-1]
