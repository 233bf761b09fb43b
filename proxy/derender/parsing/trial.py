"""A call that may turn out to be none: what has been read of it, to be read again as text."""

from __future__ import annotations

from typing import Any

# What a trial may read before it is taken for text, in characters: arguments written before the name are
# buffered, so this bounds memory per stream.
TRIAL_LIMIT = 1 << 20
# Beyond this a failed trial is not looked through for markers again: keeps the work linear.
RESCAN_LIMIT = 4096

TEXT, MARKER, SPECIAL = 0, 1, 2


class Trial:
    """``origin``: the state that its text belongs to, if it fails. ``opener``: the marker that began it, "" where a
    first character did; ``special``: the vocabulary calls it so. ``held``: framing in front of it. ``declared``: only
    a tool of the request can be named. ``further``: it is one more call of a list whose reader goes on, so ``origin``
    is the state behind the list. ``tokens``: ids read, but for the opener.
    """

    __slots__ = ("origin", "opener", "special", "held", "declared", "further", "items", "size", "tokens")

    def __init__(
        self,
        origin: str,
        opener: str = "",
        special: bool = False,
        held: str = "",
        declared: bool = False,
        further: bool = False,
    ) -> None:
        self.origin = origin
        self.opener = opener
        self.special = special
        self.held = held
        self.declared = declared
        self.further = further
        self.items: list[tuple[int, str]] = []  # (one of TEXT, MARKER, SPECIAL; its text)
        self.size = 0
        self.tokens = 0

    def text(self, text: str) -> None:
        if text:
            self.items.append((TEXT, text))
            self.size += len(text)

    def marker(self, marker: str, special: bool) -> None:
        self.items.append((SPECIAL if special else MARKER, marker))
        self.size += len(marker)

    @property
    def written(self) -> str:
        """All of it, as it came."""
        return self.held + self.opener + "".join(text for _, text in self.items)

    @property
    def too_large(self) -> bool:
        return self.size > TRIAL_LIMIT

    @property
    def worth_a_second_look(self) -> bool:
        return self.size <= RESCAN_LIMIT

    def save(self) -> list[Any]:
        start = [self.origin, self.opener, self.special, self.held, self.declared, self.further]
        return [*start, [list(item) for item in self.items], self.tokens]

    @classmethod
    def load(cls, state: Any) -> Trial:
        """What ``save`` described. Raises ValueError or TypeError for anything else."""
        *start, items, tokens = state
        made = cls(*start)
        for kind, text in items:
            made.items.append((int(kind), str(text)))
            made.size += len(text)
        made.tokens = tokens
        return made
