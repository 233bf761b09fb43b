"""The vocabulary of format descriptions: states, transitions, and what reads a call.

A format is data. Its states say where text goes (``Sink``) and which marker leads to which state; a
marker is the text of a token where the vocabulary has it as one token, and is matched in the text where
it has not. What stands inside a call is read by an argument encoding (``proxy.derender.parsing.arguments``),
which is code, and which alone decides whether a marker inside a value is data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol


class Sink(IntEnum):
    """Where the text of a state goes. The first two equal the event kinds of the same name."""

    REASONING = 0
    CONTENT = 1
    GAP = 2  # framing: whitespace is held, other text leads to ``State.otherwise``
    DROP = 3  # noise between calls
    CALL = 4  # an argument encoding reads it
    HEAD = 5  # what names a call or a message: kept for ``State.route`` or the reader


class Calls(Protocol):
    """What a reader may say, and ask, while it reads a call."""

    def begin(self, name: str, call_id: str = "") -> bool:
        """The call's name is complete. False: this is no call (a name that had to be declared is not)."""

    def arguments(self, text: str) -> None:
        """The next fragment of the arguments' JSON text."""

    def end(self, closed: bool, listed: bool = False) -> None:
        """The call is over; ``closed`` is False for one that is malformed or cut. ``listed``: see ``end_list``."""

    def end_list(self, closed: bool) -> None:
        """A list of calls is over: where calls are sent when complete, those in it count only if it has closed."""

    def further(self) -> None:
        """A further call of a list may begin here; the reader returns at once, and reads it when called again."""

    def schema(self, name: str) -> Mapping[str, object]:
        """The JSON schema of a declared tool's parameters (empty where there is none)."""

    @property
    def named(self) -> str:
        """The tool that the request's ``tool_choice`` names ("" where it names none)."""


class Reader(Protocol):
    """Reads what a call is made of, piece by piece. State is plain data (see ``save``)."""

    done: bool
    failed: bool

    def text(self, text: str, calls: Calls) -> int:
        """Read; return how many characters are the call's (fewer than ``len(text)`` once it is done or failed)."""

    def marker(self, marker: str, calls: Calls) -> bool:
        """A marker of the format arrives as a token. True: it was the reader's (data, or part of the call)."""

    def finish(self, calls: Calls) -> None:
        """The stream ends, or an unexpected marker ends the call."""

    def save(self) -> Any: ...

    def load(self, state: Any) -> None: ...


class HeadedReader(Reader, Protocol):
    """A reader that first gets the text of the ``Sink.HEAD`` states in front of it."""

    def head(self, head: str, calls: Calls) -> None: ...


@dataclass(frozen=True)
class State:
    """One state of a format.

    ``on``: marker to next state; a marker without an entry is text. ``reader`` and ``then``: for
    ``Sink.CALL``, what reads the call and the state after it. ``broken``: the state after one that was
    malformed, where that is another. ``otherwise``: for ``Sink.GAP``, the state that other text leads to
    (whitespace held so far goes with it); for ``Sink.HEAD``, the state whose text a header is that never ends,
    or ends with a marker that leads there; for channels, the state that takes over at the first text that is not
    whitespace. ``starts``: for ``Sink.GAP``, first character of other text to a state that is tried first.
    ``trial``: a call that begins here counts only once its reader has named it; until then everything can
    still turn out to be text of the state before. ``declared``: and only a tool that the request declares
    can be named. ``guarded``: markers that begin a trial from here, of declared tools only. ``literal``:
    markers without an entry are text even where the vocabulary calls them special. ``headed``: the reader is
    a ``HeadedReader``. ``route``: this state is only passed through: the header decides which state comes
    next. ``drop_if_content``: for ``Sink.GAP``, skip to ``otherwise`` at once where content was sent before.
    ``inner``: for ``Sink.CALL``, markers that the reader wants to be told of: those that are no tokens are found
    in the text and handed over as if they were, so that a reader need not look for them.
    """

    sink: Sink
    on: Mapping[str, str] = field(default_factory=dict)
    reader: Callable[[], Reader] | None = None
    then: str = ""
    broken: str = ""
    otherwise: str = ""
    starts: Mapping[str, str] = field(default_factory=dict)
    trial: bool = False
    declared: bool = False
    literal: bool = False
    drop_if_content: bool = False
    headed: bool = False
    route: Callable[[str], str] | None = None
    guarded: frozenset[str] = frozenset()
    inner: tuple[str, ...] = ()
