"""Which path a request takes, and what happens to those of the derender path when the engine does not offer it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from proxy.errors import RequestError
from proxy.rollout.options import MODES, Mode, RolloutOptions

MODE_HEADER = "x-derender-mode"
_SALT = b"derender-canary"  # other layers hash the same ids: their shares and ours are not to coincide


class _User(msgspec.Struct):
    user: str | None = None


_user_of = msgspec.json.Decoder(_User).decode


@dataclass(frozen=True)
class Plan:
    """The settings that can change while the server runs."""

    mode: Mode = "derender"
    percent: float | None = None
    options: RolloutOptions = RolloutOptions()

    @property
    def passes(self) -> bool:
        """Whether anything of chat or completions is passed through, so that the engine has to speak them."""
        modes = {self.mode, *self.options.routes.values()}
        return modes != {"derender"} or (self.percent is not None and self.percent < 100) or self.options.allow_header

    @property
    def needs_body(self) -> bool:
        """Whether ``choose`` has to see the body."""
        return self.percent is not None and self.options.hash == "user"

    def base(self, path: str) -> Mode:
        """The mode of those that are no canaries; with a percentage ``derender`` means those only."""
        if path in self.options.routes:
            return self.options.routes[path]
        return "passthrough" if self.mode == "derender" and self.percent is not None else self.mode

    def choose(self, path: str, headers: Mapping[str, str], request_id: str, body: bytes | None) -> Mode:
        """The path for this request. RequestError for a mode header that names none."""
        if self.options.allow_header and (asked := headers.get(MODE_HEADER)) is not None:
            if asked not in MODES:
                raise RequestError(f"`{MODE_HEADER}` must be one of {', '.join(MODES)}.", param=MODE_HEADER)
            return asked  # type: ignore[return-value]
        if self.percent is not None and share(self._key(headers, request_id, body)) * 100 < self.percent:
            return "derender"
        return self.base(path)

    def _key(self, headers: Mapping[str, str], request_id: str, body: bytes | None) -> str:
        found: str | None = None
        if self.options.hash.startswith("header:"):
            found = headers.get(self.options.hash.removeprefix("header:"))
        elif self.options.hash == "user" and body is not None:
            try:
                found = _user_of(body).user
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = None  # whoever serves the request will say what is wrong with it
        return found or request_id


def share(key: str) -> float:
    """Where ``key`` lies in [0, 1), evenly spread and the same on every replica."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=_SALT).digest()
    return int.from_bytes(digest, "big") / 2**64


class Breaker:
    """Keeps requests off the derender path for a while after the engine has refused it.

    When the time is over one request tries; the others wait for what becomes of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: float | None = None
        self._trying = False

    @property
    def open(self) -> bool:
        return self._until is not None

    def admits(self) -> bool:
        """Whether a request may take the derender path now; it must be followed by one of the methods below."""
        if self._until is None:
            return True
        if self._trying or self._clock() < self._until:
            return False
        self._trying = True
        return True

    def trip(self, seconds: float) -> None:
        """The engine does not offer it."""
        self._until, self._trying = self._clock() + seconds, False

    def close(self) -> None:
        """The engine has answered."""
        self._until, self._trying = None, False

    def undecided(self) -> None:
        """The request ended without telling."""
        self._trying = False
