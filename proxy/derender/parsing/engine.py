"""The scanner and state machine that runs every format.

Rules, and why:

1. *Tokens first.* A marker that the vocabulary has as one token is recognised by its id and by nothing
   else: the same characters out of ordinary tokens are text. A marker that it has not is matched in the
   text, across token borders.
2. *Nothing depends on the cuts.* Ids are taken one at a time, or as a run where a run cannot differ: no
   marker among them and a state without markers in the text. After n ids, state and total output are the
   same however the ids were cut.
3. *A marker without an entry in the current state's table is text*, unless the vocabulary calls it
   special: special tokens are seen by no client that has not asked for them.
4. *Held text is bounded*: the tail that can still become a marker, framing whitespace, and what a trial
   has read.
5. *A trial* is a call that has not been named yet, so that it may be none: what it reads is kept, and
   read again as text of the state before once it fails. Reading again is linear: a trial that has read
   much, or that the end of the stream leaves open, becomes text as it is, without a second look for
   markers. Each further call of a list is a trial too: what breaks the list is text behind it.
6. *Inside a call the argument encoding decides*: whether a marker is data, where the call ends, and what
   of it is argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from proxy.derender.detokenizer import Detokenizer
from proxy.derender.parsing.events import ARGUMENTS, BROKEN, CALL, CLOSED, CONTENT, END, LISTED, REASONING, Event
from proxy.derender.parsing.model import HeadedReader, Reader, Sink
from proxy.derender.parsing.program import CompiledState, Program
from proxy.derender.parsing.trial import SPECIAL, TEXT, Trial
from proxy.derender.vocabulary import Vocabulary

# A header that is longer is none.
HEAD_LIMIT = 1024

# Whitespace in front of a call or an answer is framing up to this length: longer, it is text. Models that fall into
# a loop of newlines must not make held text grow.
GAP_LIMIT = 1024

_SPACE = " \t\r\n"


class Machine:
    """Runs a program over the ids of one choice; ``events`` collects what it says.

    ``tools`` maps the names of declared tools to the schemas of their parameters. ``show_special``: the
    client wants special tokens as text. Also counts ``reasoning_tokens``: ids of reasoning, without
    markers.
    """

    __slots__ = (
        "_program",
        "_marks",
        "_texts",
        "_detokenizer",
        "_tools",
        "_show_special",
        "_state",
        "_held",
        "_held_tokens",
        "_reader",
        "_trial",
        "_content_sent",
        "_called",
        "_head",
        "_framed",
        "_failures",
        "_further",
        "named",
        "events",
        "reasoning_tokens",
    )

    def __init__(
        self,
        program: Program,
        start: str,
        vocabulary: Vocabulary,
        detokenizer: Detokenizer,
        tools: Mapping[str, Mapping[str, object]],
        show_special: bool = False,
        named: str = "",
    ) -> None:
        self._program = program
        self._marks = program.marks
        self._texts: Sequence[str | None] = vocabulary.texts if vocabulary.decode is None else ()
        self._detokenizer = detokenizer
        self._tools = tools
        self._show_special = show_special
        self._state = program.states[start]
        self._held = ""
        self._held_tokens = 0
        self._reader: Reader | None = None
        self._trial: Trial | None = None
        self._content_sent = False
        self._called = False
        self._head = ""  # text of ``Sink.HEAD`` states
        self._framed = False  # a marker that came as a token is in it
        self._failures = 0  # trials that failed so far, to notice one that fails on the way
        self._further = False  # the reader stands where a further call of its list may begin
        self.named = named
        self.events: list[Event] = []
        self.reasoning_tokens = 0
        if self._state.sink == Sink.CALL:
            assert self._state.reader is not None
            self._reader = self._state.reader()

    @property
    def state(self) -> str:
        """The name of the current state, for explanations."""
        return self._state.name

    @property
    def held(self) -> str:
        """Text that is read but not decided, for explanations."""
        return self._held if self._trial is None else self._trial.written

    # -- ids in ----------------------------------------------------------------------------------------

    def feed(self, ids: Sequence[int]) -> None:
        """Take the next ids; what they say is appended to ``events``."""
        if len(ids) > 1:
            state = self._state
            if state.calm and self._trial is None and self._marks.keys().isdisjoint(ids):
                if state.sink == REASONING:
                    self.reasoning_tokens += len(ids)
                text = self._detokenizer.push(ids)
                if text:
                    self._emit(state.sink, text)
                return
            for token_id in ids:
                self.feed_one(token_id)
            return
        if ids:
            self.feed_one(ids[0])

    def feed_one(self, token_id: int) -> None:
        mark = self._marks.get(token_id)
        if mark is not None:
            self._mark(*mark)
            return
        text: str | None = None
        if self._detokenizer.idle and token_id < len(self._texts):
            text = self._texts[token_id]
        if text is None:
            text = self._detokenizer.push((token_id,))
        state = self._state
        if self._trial is not None:
            self._trial.tokens += 1
        elif state.channel:
            reasoning = state.sink == REASONING
            if reasoning:
                self.reasoning_tokens += 1
            if not self._held and (state.calm or (not state.otherwise and state.first.search(text) is None)):
                if text:
                    if not reasoning:
                        self._content_sent = True
                    self.events.append((state.sink, text, ""))
                return
            if reasoning:
                self._held_tokens += 1
                if text:
                    self._text(text)
                if not self._held:
                    self._held_tokens = 0
                return
        if text:
            self._text(text)

    def prime(self, ids: Sequence[int], state: str) -> None:
        """Take ids of the prompt, in ``state``: they set the state and say nothing."""
        self._state = self._program.states[state]
        self.feed(ids)
        self.events.clear()
        self.reasoning_tokens = 0
        self._content_sent = self._called = False

    def finish(self, cut: bool) -> None:
        """The stream ends; ``cut``: by a limit and not by the model, so that an open call is no text."""
        if self._trial is None and self._held and self._state.sink == Sink.CALL:
            self._release()
        if self._trial is not None:
            if cut and (self._trial.opener or self._trial.further):
                if self._trial.further:
                    self._end_list()
                self._trial = None
                self._reader = None
                return
            self._fail_trial(literally=True)
        state = self._state
        if state.sink == Sink.CALL:
            assert self._reader is not None
            if not (self._reader.done or self._reader.failed):
                self._reader.finish(self)
            self._reader = None
        elif self._held:
            if state.sink == Sink.GAP:
                # behind a call whitespace is framing, and what a limit has cut may have become a marker
                if state.otherwise and not (self._called and (cut or not self._held.strip(_SPACE))):
                    self._emit(self._program.states[state.otherwise].sink, self._held)
            elif state.sink <= CONTENT:
                self._emit(state.sink, self._held)
        head = self._head + self._held
        framed = self._framed or any(marker in head for marker in self._program.spelled)
        if state.sink == Sink.HEAD and state.otherwise and not framed:
            self._emit(self._program.states[state.otherwise].sink, head)
        self._held = self._head = ""

    # -- text and markers ------------------------------------------------------------------------------

    def _emit(self, sink: int, text: str) -> None:
        if sink == CONTENT:
            self._content_sent = True
        elif sink != REASONING:
            if sink == Sink.HEAD:
                self._head += text
            return
        self.events.append((sink, text, ""))

    def _text(self, text: str) -> None:
        trial = self._trial
        if trial is not None:
            trial.text(text)
            if trial.too_large:
                self._fail_trial(literally=True)
                return
        self._run(text)

    def _run(self, text: str) -> None:
        while text:
            state = self._state
            if state.sink == Sink.CALL:
                text = self._read(text)
            elif state.sink == Sink.GAP:
                text = self._gap(state, text)
            else:
                text = self._scan(state, text)

    def _scan(self, state: CompiledState, text: str) -> str:
        """Text of a state with a channel (or none): look for markers; returns what is left to read."""
        if state.otherwise and state.sink <= CONTENT:
            return self._lead(state, self._held + text)
        if state.pattern is None and state.sink != Sink.HEAD:
            self._emit(state.sink, text)
            return ""
        if state.sink == Sink.HEAD and len(self._head) + len(text) > HEAD_LIMIT:
            return self._overflow(state, text)
        if self._held:
            text = self._held + text
            self._held = ""
        elif state.first.search(text) is None:
            self._emit(state.sink, text)
            return ""
        assert state.pattern is not None
        match = state.pattern.search(text)
        if match is not None:
            if match.start():
                self._emit(state.sink, text[: match.start()])
            if state.sink == REASONING:  # the ids of the marker are none of the reasoning
                self.reasoning_tokens -= self._held_tokens
            self._held_tokens = 0
            rest = text[match.end() :]
            return self._follow(state, match.group(), False, rest)
        keep = state.tail(text)
        if keep:
            self._emit(state.sink, text[:keep])
        self._held = text[keep:]
        return ""

    def _lead(self, state: CompiledState, text: str) -> str:
        """Text at the very beginning of a channel: whitespace, then a marker or the state that takes over."""
        self._held = ""
        body = text.lstrip(_SPACE)
        match = state.pattern.match(body) if state.pattern is not None else None
        if body and match is None and not any(marker.startswith(body) for marker in state.markers):
            self._enter(state.otherwise)
            return text
        if len(body) < len(text):
            self._emit(state.sink, text[: len(text) - len(body)])
        if match is None:
            self._held = body
            return ""
        rest = body[match.end() :]
        if state.sink == REASONING:
            self.reasoning_tokens -= self._held_tokens
        self._held_tokens = 0
        return self._follow(state, match.group(), False, rest)

    def _gap(self, state: CompiledState, text: str) -> str:
        """Framing: whitespace is held; other text begins a trial, or goes on in ``otherwise``."""
        held = self._held + text
        if len(held) > GAP_LIMIT and state.otherwise and not held[: GAP_LIMIT + 1].strip(_SPACE):
            return self._otherwise(state, held)
        if state.pattern is not None:
            match = state.pattern.search(held)
            if match is not None and not held[: match.start()].strip(_SPACE):
                self._held = ""
                rest = held[match.end() :]
                return self._follow(state, match.group(), False, rest)
        body = held.lstrip(_SPACE)
        if not body:
            self._held = held
            return ""
        if state.pattern is not None and any(marker.startswith(body) for marker in state.markers):
            self._held = held
            return ""
        space = held[: len(held) - len(body)]
        self._held = ""
        target = state.starts.get(body[0])
        if target is not None:
            self._begin_trial(Trial(state.name, held=space, declared=self._program.states[target].declared), target)
            self._trial_text(body)
            return body
        if not state.otherwise:
            return ""
        return self._otherwise(state, space + body)

    def _otherwise(self, state: CompiledState, text: str) -> str:
        """Leave framing for the text's own state; returns what is left to read."""
        failures = self._failures
        self._enter(state.otherwise)
        # a trial that text ends has read all it had again, ``text`` with it
        return text if failures == self._failures else ""

    def _overflow(self, state: CompiledState, text: str) -> str:
        """A header without end: it is text where the state says so, else noise."""
        if self._trial is not None:
            self._fail_trial()
            return ""
        head = self._head + self._held + text
        self._head = self._held = ""
        if not state.otherwise:
            return ""
        self._enter(state.otherwise)
        return head

    def _trial_text(self, text: str) -> None:
        if self._trial is not None:
            self._trial.text(text)

    def _read(self, text: str) -> str:
        """Text of a call: its reader takes what is its own; returns what is left to read."""
        reader = self._reader
        assert reader is not None
        if self._state.pattern is not None:
            return self._read_marked(self._state, text)
        used = reader.text(text, self)
        return text[used:] if self._over(reader) or self._goes_on(text[used:]) else ""

    def _read_marked(self, state: CompiledState, text: str) -> str:
        """The same where markers of the reader are no tokens, and have to be found first."""
        reader = self._reader
        assert reader is not None and state.pattern is not None
        text = self._held + text
        match = state.pattern.search(text) if state.first.search(text) is not None else None
        end = state.tail(text) if match is None else match.start()
        self._held = "" if match is not None else text[end:]
        if end:
            failures = self._failures
            used = reader.text(text[:end], self)
            if self._over(reader) or self._goes_on(text[used:]):
                self._held = ""
                return text[used:]
            if failures != self._failures:
                return ""
        if match is None:
            return ""
        failures, trial = self._failures, self._trial
        self._take(match.group(), False)
        if failures != self._failures:  # it was read again as text, all of it
            return ""
        rest = text[match.end() :]
        if self._trial is not trial:
            self._trial_text(rest)
        return rest

    def _release(self) -> None:
        """What is held of a call was no marker: its reader gets it."""
        reader, held, self._held = self._reader, self._held, ""
        assert reader is not None
        used = reader.text(held, self)
        if self._over(reader) or self._goes_on(held[used:]):
            self._run(held[used:])

    def _over(self, reader: Reader) -> bool:
        """Whether the call has ended, with text to be read behind it: a trial that failed has read all of it again."""
        if reader.failed and self._trial is not None:
            self._fail_trial()
            return False
        if reader.done or reader.failed:
            self._enter(self._state.broken if reader.failed else self._state.then)
            return True
        return False

    def _goes_on(self, rest: str) -> bool:
        """Whether the reader stands where a further call of its list begins: with ``rest``, a trial of its own."""
        if self._further:
            self._further = False
            self._trial = Trial(self._state.broken, further=True)
            self._trial_text(rest)
            return True
        return False

    def _mark(self, marker: str, special: bool) -> None:
        broken_off = self._detokenizer.break_off()
        if broken_off:
            self._text(broken_off)
        self._marker(marker, special)

    def _marker(self, marker: str, special: bool) -> None:
        trial = self._trial
        if trial is not None:
            trial.marker(marker, special)
            trial.tokens += 1
            if trial.too_large:
                self._fail_trial(literally=True)
                return
        if self._held and self._state.sink == Sink.CALL:  # it was no marker
            failures, trial = self._failures, self._trial
            self._release()
            if failures != self._failures:
                return
            if self._trial is not trial and self._trial is not None:
                self._trial.marker(marker, special)
        self._take(marker, special)

    def _take(self, marker: str, special: bool) -> None:
        while self._state.sink == Sink.CALL:
            reader = self._reader
            assert reader is not None
            failures = self._failures
            taken = reader.marker(marker, self)
            over = self._over(reader)
            if taken or failures != self._failures:
                return
            if over:
                continue
            if self._trial is not None:
                self._fail_trial()
                return
            reader.finish(self)
            self._enter(self._state.then)
        state = self._state
        if marker in state.on:
            if state.sink != Sink.GAP and self._held:
                held, self._held = self._held, ""
                self._emit(state.sink, held)
                self._held_tokens = 0
            self._follow(state, marker, special, "")
        elif special and not state.literal and not self._show_special:
            return
        elif state.sink == Sink.GAP:
            if state.otherwise:
                held, self._held = self._held, ""
                if text := self._otherwise(state, held + marker):
                    self._literal(text)
        elif state.sink <= CONTENT:
            if state.otherwise:
                self._enter(state.otherwise)
            self._literal(marker)
            if state.sink == REASONING:
                self.reasoning_tokens += 1
        elif state.sink == Sink.HEAD:
            self._literal(marker)
            self._framed = True

    def _literal(self, text: str) -> None:
        """Text that is not looked through for markers."""
        if self._held:
            text = self._held + text
            self._held = ""
        self._emit(self._state.sink, text)

    # -- transitions -----------------------------------------------------------------------------------

    def _follow(self, state: CompiledState, marker: str, special: bool, rest: str) -> str:
        """Take the transition of ``marker``; returns what of ``rest``, the text behind it, is still to be read."""
        target = self._program.states[state.on[marker]]
        guarded = marker in state.guarded
        if self._trial is None and (target.trial or guarded):
            held = self._held if state.sink == Sink.GAP else ""
            trial = Trial(state.name, marker, special, held, target.declared or guarded)
            self._begin_trial(trial, target.name)
            self._trial_text(rest)
            return rest
        failures = self._failures
        # a header that a marker ends as the end of the stream would is text of that state
        said = self._head if state.sink == Sink.HEAD and target.name == state.otherwise else ""
        self._enter(target.name)
        if said:
            self._emit(target.sink, said)
        # a trial that failed has read all it had again, ``rest`` with it
        return rest if failures == self._failures else ""

    def _enter(self, name: str) -> None:
        state = self._program.states[name]
        if state.route is not None:
            state = self._program.states[state.route(self._head)]
        if state.drop_if_content and self._content_sent:
            state = self._program.states[state.otherwise]
        if self._state.sink == Sink.GAP:
            self._held = ""
        head, self._head = self._head, ""
        self._framed = False
        self._state = state
        self._reader = None
        if state.reader is not None:
            self._reader = state.reader()
            if state.headed:
                cast(HeadedReader, self._reader).head(head, self)
        if self._trial is not None and state.sink <= CONTENT:
            self._fail_trial()

    def _begin_trial(self, trial: Trial, state: str) -> None:
        self._held = ""
        self._trial = trial
        self._enter(state)

    def _fail_trial(self, literally: bool = False) -> None:
        """It was no call: what it read is text of the state before."""
        trial = self._trial
        assert trial is not None
        if trial.further:
            self._end_list()
        self._trial = None
        self._failures += 1
        self._reader = None
        self._held = self._head = ""
        self._held_tokens = 0
        origin = self._program.states[trial.origin]
        if origin.sink == REASONING:
            self.reasoning_tokens += trial.tokens + (1 if trial.opener else 0)
        again = not literally and trial.worth_a_second_look
        if origin.sink == Sink.GAP or origin.otherwise:
            origin = self._program.states[origin.otherwise]
        while origin.sink == Sink.GAP and (trial.opener or not again):
            origin = self._program.states[origin.otherwise]
        self._state = origin
        if origin.sink == Sink.GAP:
            self._held = trial.held
        elif trial.held:
            self._emit(origin.sink, trial.held)
        if trial.opener and not (trial.special and not origin.literal and not self._show_special):
            self._emit(origin.sink, trial.opener)
        counted = self.reasoning_tokens
        for kind, text in trial.items:
            if not again:
                if kind != SPECIAL or origin.literal or self._show_special:
                    self._emit(self._state.sink, text)
            elif kind == TEXT:
                self._text(text)
            else:
                self._marker(text, kind == SPECIAL)
        self.reasoning_tokens = counted if origin.sink == REASONING else self.reasoning_tokens

    def _end_list(self) -> None:
        """The calls of a list stay what they are; what was read behind them is none."""
        reader = self._reader
        assert reader is not None
        if not (reader.done or reader.failed):
            reader.finish(self)

    # -- what readers say (``Calls``) --------------------------------------------------------------------

    def begin(self, name: str, call_id: str = "") -> bool:
        if self._trial is not None:
            if self._trial.declared and name not in self._tools:
                return False
            self._trial = None
        self._called = True
        self.events.append((CALL, name, call_id))
        return True

    def arguments(self, text: str) -> None:
        self.events.append((ARGUMENTS, text, ""))

    def end(self, closed: bool, listed: bool = False) -> None:
        self.events.append((END, "", BROKEN if not closed else LISTED if listed else CLOSED))

    def end_list(self, closed: bool) -> None:
        self.events.append((END, "", CLOSED if closed else BROKEN))

    def further(self) -> None:
        self._further = True

    def schema(self, name: str) -> Mapping[str, object]:
        return self._tools.get(name, {})

    # -- snapshots ---------------------------------------------------------------------------------------

    def resume(self, pending: bytes) -> None:
        """Go on behind plain text, of which ``pending`` is the unfinished character."""
        self._detokenizer.resume(pending)

    def save(self) -> list[Any]:
        """The machine's state as plain data (strings, numbers, lists); ``events`` must be empty."""
        return [
            self._state.name,
            self._held,
            self._held_tokens,
            self._content_sent,
            self._called,
            self.reasoning_tokens,
            self._head,
            self._framed,
            None if self._trial is None else self._trial.save(),
            None if self._reader is None else self._reader.save(),
            self._detokenizer.save(),
        ]

    def load(self, saved: list[Any]) -> None:
        """Become what ``save`` described. Raises KeyError, ValueError or TypeError for anything else."""
        (
            name,
            self._held,
            self._held_tokens,
            self._content_sent,
            self._called,
            self.reasoning_tokens,
            self._head,
            self._framed,
            trial,
            reader,
            text,
        ) = saved
        self._state = self._program.states[name]
        self._trial = None if trial is None else Trial.load(trial)
        self._reader = None
        if reader is not None:
            if self._state.reader is None:
                raise ValueError("no reader in this state")
            self._reader = self._state.reader()
            self._reader.load(reader)
        self._detokenizer.load(text)
