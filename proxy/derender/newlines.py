"""Newlines that a tokenizer writes out (MiniCPM-V): a backslash and ``n`` or ``r`` where a line ends.

In reasoning and content they become newlines, but not in code (between backticks), not in LaTeX (between dollars, or
``\\(`` and ``\\)``, ``\\[`` and ``\\]``), and not behind another backslash. Arguments are JSON and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from proxy.derender.parsing.events import CONTENT, REASONING, Event

_token = re.compile(r"```|`|\$\$|\$|\\{2,}|\\r\\n|\\[nr]|\\[(\[]|\\")
# a tail that more text can make another token of
_open_tail = re.compile(r"``?|\$|\\+|\\r\\?").fullmatch
_CLOSES = {"```": "```", "`": "`", "$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}


class _Channel:
    """Text of one channel. ``until``: what ends the code or formula that is open."""

    __slots__ = ("until", "held")

    def __init__(self) -> None:
        self.until = ""
        self.held = ""

    def feed(self, text: str, final: bool = False) -> str:
        """What is decided of ``text`` and what was held: all of it, if ``final``."""
        text = self.held + text
        self.held = ""
        out: list[str] = []
        at = 0
        while at < len(text):
            if self.until:
                end = text.find(self.until, at)
                if end < 0:
                    most = 0 if final else len(self.until) - 1
                    keep = next((n for n in range(most, 0, -1) if text.endswith(self.until[:n], at)), 0)
                    out.append(text[at : len(text) - keep])
                    self.held = text[len(text) - keep :]
                    break
                end += len(self.until)
                out.append(text[at:end])
                at, self.until = end, ""
                continue
            match = _token.search(text, at)
            if match is None:
                out.append(text[at:])
                break
            out.append(text[at : match.start()])
            if not final and _open_tail(text, match.start()):
                tail = text[match.start() :]
                # of many backslashes two say all that matters
                out.append(tail[2:] if tail.startswith("\\\\") else "")
                self.held = tail[:2] if tail.startswith("\\\\") else tail
                break
            said, at = match.group(), match.end()
            if said in ("\\r\\n", "\\n", "\\r"):
                out.append("\n")
            else:
                out.append(said)
                self.until = _CLOSES.get(said, "")
        return "".join(out)


class NewlineFilter:
    """A filter of events, as those in ``profiles``."""

    __slots__ = ("_channels", "_last")

    def __init__(self) -> None:
        self._channels = {REASONING: _Channel(), CONTENT: _Channel()}
        self._last = CONTENT

    def apply(self, events: Iterable[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            kind, text, _ = event
            channel = self._channels.get(kind)
            if channel is None or kind != self._last:
                out += self.finish()
            if channel is None:
                out.append(event)
                continue
            self._last = kind
            said = channel.feed(text)
            if said:
                out.append((kind, said, ""))
        return out

    def finish(self) -> list[Event]:
        held = self._channels[self._last].feed("", final=True)
        return [(self._last, held, "")] if held else []

    def save(self) -> Any:
        return [self._last, *([channel.until, channel.held] for channel in self._channels.values())]

    def load(self, state: Any) -> None:
        self._last, *channels = state
        for channel, (until, held) in zip(self._channels.values(), channels, strict=True):
            channel.until, channel.held = until, held
