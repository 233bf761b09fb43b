"""Live streams between two calls, so that the common case parses a chunk and nothing else.

An entry is found by its binding (everything that its answers depend on) and the rolling digest of its ids and chunk
lengths, and is used only if the carried state is its own, byte for byte or spelled otherwise. It is taken out for a
call and put back behind it, so that two calls never have the same. Of each stream the newest entry is also known by its
binding alone: it remembers the last step, so that a repeated call gets the answer again.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from cachetools import Cache, TTLCache

from proxy.derender import state
from proxy.derender.live import Live


class _Entries(TTLCache[bytes, Live]):
    """Tells whom it lets go, and why."""

    def __init__(
        self, max_bytes: int, ttl: float, timer: Callable[[], float], gone: Callable[[Live, str], None]
    ) -> None:
        super().__init__(max_bytes, ttl, timer, getsizeof=lambda live: live.size)
        self._gone = gone
        self.reason = "bytes"

    def popitem(self) -> tuple[bytes, Live]:
        key, live = super().popitem()
        self._gone(live, self.reason)
        return key, live

    def expire(self, time: float | None = None) -> list[tuple[bytes, Live]]:
        expired = list(super().expire(time))
        for _, live in expired:
            self._gone(live, "ttl")
        return expired


class LiveCache:
    """Bounded by ``ttl`` (seconds since the last call), ``max_entries`` and ``max_bytes``; either 0: keeps nothing.

    ``evictions`` counts why entries went: ttl, entries, bytes, finish, error, mismatch.
    """

    def __init__(
        self,
        *,
        ttl: float,
        max_entries: int,
        max_bytes: int,
        timer: Callable[[], float],
        evictions: MutableMapping[str, int],
    ) -> None:
        self._max_entries = max_entries if max_bytes else 0
        self._entries = _Entries(max_bytes, ttl, timer, self._gone)
        self._newest: dict[bytes, Live] = {}
        self._evictions = evictions

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes that the entries take, by their own estimate."""
        return int(self._entries.currsize)

    def newest(self) -> list[Live]:
        """The newest entry of each stream."""
        return list(self._newest.values())

    def knows(self, binding: bytes) -> bool:
        """Whether there is a live stream of that name, at whatever position."""
        return binding in self._newest

    def take(self, binding: bytes, raw: bytes) -> Live | None:
        """The live stream whose carried state is ``raw``, taken out. Decodes nothing where the bytes are ours."""
        digest = state.claimed_digest(raw)
        if digest is not None:
            live = self._entries.pop(binding + digest, None)
            if live is not None:
                if live.spells(raw):
                    return live
                self._entries[binding + digest] = live
        return None

    def take_claimed(self, binding: bytes, claim: state.Claim) -> Live | None:
        """``take`` for a state in another spelling. An entry that has its digest and not its ids is dropped."""
        if claim.token is None:
            return None
        live = self._entries.pop(binding + claim.token.digest.encode(errors="replace"), None)
        if live is None:
            return None
        if live.spells(claim.written()):
            return live
        self._gone(live, "mismatch")
        return None

    def repeated(self, binding: bytes, raw: bytes | None, chunk: bytes) -> Live | None:
        """The live stream whose last step was this very call (``raw`` None: the first one). It stays where it is."""
        live = self._newest.get(binding)
        if live is None or live.step is None or live.step.chunk != chunk:
            return None
        if raw is None:
            return live if not live.step.tail else None
        return live if live.step.tail and live.spelled(raw) else None

    def stale(self, binding: bytes, position: int | None) -> None:
        """A call claims ``position`` (None: unknown): an entry that is behind it will not be asked for again."""
        live = self._newest.get(binding)
        if live is not None and (position is None or live.position < position):
            self._entries.pop(binding + live.digest_text, None)
            self._gone(live, "mismatch")

    def put(self, live: Live) -> None:
        """Put a stream (back) in."""
        entries = self._entries
        if not self._max_entries or live.size > entries.maxsize:
            self._gone(live, "bytes" if self._max_entries else "entries")
            return
        if Cache.__len__(entries) >= self._max_entries:  # the cheap way to ask, which counts the expired too
            entries.reason = "entries"
            while len(entries) >= self._max_entries:
                entries.popitem()
            entries.reason = "bytes"
        entries[live.binding + live.digest_text] = live
        self._newest[live.binding] = live

    def drop(self, live: Live, reason: str) -> None:
        """A stream that was taken out does not come back: finish or error."""
        self._gone(live, reason)

    def _gone(self, live: Live, reason: str) -> None:
        self._evictions[reason] += 1
        if self._newest.get(live.binding) is live:
            del self._newest[live.binding]
