"""Stop strings: matched while streaming, across chunks, with nothing of a match ever sent.

The string that completes earliest wins, whatever the cuts; on a tie the one that the request lists first.
What is held back is the longest tail that can still become a stop string, no more.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Runs over the text of one choice.

    ``include``: the stop string itself is part of the answer. ``min_tokens``: a match that completes
    within so many tokens does not count.
    """

    __slots__ = ("_stops", "_include", "_min_tokens", "_longest", "_first", "held", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False, min_tokens: int = 0) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._min_tokens = min_tokens
        self._longest = max(map(len, self._stops), default=0)
        self._first = {stop[0] for stop in self._stops}
        self.held = ""
        self.matched: str | None = None

    def push(self, text: str, tokens: int) -> str:
        """Take ``text``, which token number ``tokens`` (from 1) completed; return what can be sent.

        After a match ``matched`` is set and the returned text is the last there is.
        """
        buffer = self.held + text
        if tokens > self._min_tokens:
            best, best_end = None, len(buffer) + 1
            for stop in self._stops:
                begin = buffer.find(stop)
                if begin >= 0 and begin + len(stop) < best_end:
                    best, best_end = stop, begin + len(stop)
            if best is not None:
                self.matched = best
                self.held = ""
                return buffer[:best_end] if self._include else buffer[: best_end - len(best)]
        keep = self._tail(buffer)
        self.held = buffer[keep:]
        return buffer[:keep]

    def _tail(self, buffer: str) -> int:
        for at in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            if buffer[at] in self._first:
                rest = buffer[at:]
                if any(stop.startswith(rest) for stop in self._stops):
                    return at
        return len(buffer)

    def flush(self) -> str:
        """The text ends, or something else than text follows: what is held is text."""
        text, self.held = self.held, ""
        return text
