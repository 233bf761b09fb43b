"""``rollout`` of the configuration file: what may be passed through, who is a canary, how much is shadowed.

mode: shadow
canary-percent: 5
rollout:
  routes: {/v1/completions: passthrough}
  hash: header:x-user
  allow-header: true
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

MODES = ("derender", "passthrough", "shadow")
Mode = Literal["derender", "passthrough", "shadow"]
# The routes that have both paths; what else is relayed has only the one.
CHOICE_ROUTES = ("/v1/chat/completions", "/v1/completions")
# OpenAI's inference paths. Stored responses (/v1/responses/ID) are left out: whoever knows an id could read or
# cancel another client's.
DEFAULT_ALLOW = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/moderations",
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations",
)  # fmt: skip
# Never relayed, whatever the list says: they stop, change or reveal what is not this client's. By word, since engines
# put the same under several prefixes.
_NEVER = re.compile(
    r"abort|cancel|metrics|sleep|wake|shutdown|pause|resume|reset|flush|profile|collective_rpc|lora_adapter|weights"
    r"|server_info|scale|elastic|admin|debug|config|cache|freeze|(^|/)(docs|redoc|openapi\.json|load|ping|invocations)$"
)


class RolloutOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """``routes``: mode by path, where it is not the process's. ``hash``: ``request-id``, ``user`` or
    ``header:NAME``; requests without the header or field go by their id. ``allow``: paths that are relayed, ``*`` at
    their end for everything below. ``fallback_seconds``: how long the derender path is left alone after the engine has
    refused it. ``shadow_*``: jobs waiting at most, bytes of answer and ids kept of one stream, samples kept, whether
    samples show text."""

    routes: dict[str, Mode] = {}
    hash: str = "request-id"
    allow_header: bool = False
    allow: tuple[str, ...] = DEFAULT_ALLOW
    forward_authorization: bool = False
    fallback_seconds: float = 30.0
    shadow_queue: int = 64
    shadow_bytes: int = 4 * 1024 * 1024
    shadow_samples: int = 100
    shadow_content: bool = False

    def allows(self, path: str) -> bool:
        """Whether ``path`` (decoded) may be relayed."""
        if _NEVER.search(path) or "//" in path or "\\" in path or any(part in (".", "..") for part in path.split("/")):
            return False
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.allow)


def parse_options(given: Mapping[str, Any]) -> RolloutOptions:
    """The options in ``given`` (keys with hyphens or underscores). ValueError says what is wrong and where."""
    fields = {str(key).replace("_", "-"): value for key, value in given.items()}
    try:
        options = msgspec.convert(fields, RolloutOptions)
    except msgspec.ValidationError as error:
        raise ValueError(f"rollout: {error}") from None
    for path in options.routes:
        if path not in CHOICE_ROUTES:
            raise ValueError(f"rollout: routes: {path} has one path only; the others are {', '.join(CHOICE_ROUTES)}")
    if options.hash not in ("request-id", "user") and not re.fullmatch(r"header:[A-Za-z0-9-]+", options.hash):
        raise ValueError(f"rollout: hash: {options.hash} is not request-id, user or header:NAME")
    for path in options.allow:
        if not path.startswith("/") or any(sign in path.removesuffix("*") for sign in "*?["):
            raise ValueError(f"rollout: allow: {path} is not a path, or a path with * at its end")
        if _NEVER.search(path) or path in ("/*", "/v1/*"):
            raise ValueError(f"rollout: allow: {path} names what is never relayed (administration, aborts, metrics)")
    for name in ("fallback_seconds", "shadow_queue", "shadow_bytes", "shadow_samples"):
        if getattr(options, name) < 0:
            raise ValueError(f"rollout: {name.replace('_', '-')}: must not be negative")
    return options
