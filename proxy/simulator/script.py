"""What to answer: from the request, from a script file, or made up from the prompt.

The request's ``sampling_params.extra_args`` (which ``vllm_xargs`` of an OpenAI request becomes) win over the matching
entry of the script file, which wins over the options. Values may be JSON in a string, since xargs allow no nesting.

What: ``force_ids`` (ids, or a list of ids per choice; ``force_scripts`` is the same), ``force_text`` (a text, or one
per choice; EOS is added unless a ``finish_reason`` is given), ``finish_reason`` and ``stop_reason`` at the script's
end, ``finish_alone`` (in an event of its own), ``cached_tokens``, ``continues`` (a prompt that ends with the first ids
of the script is answered with the others, as a model would).
How: ``ttft`` and ``itl`` (seconds), ``chunk`` (ids per event, or a list of lengths), ``burst`` (events per send),
``newline`` (``lf``, ``crlf``, ``cr``), ``comment_every`` (a keep-alive comment before every k-th event), ``comments``
(comments, ``itl`` apart, before the first event), ``pad_bytes`` (an unknown field of that size in every event).
Faults: ``fault`` (one of FAULTS) with ``fault_after`` (events before it), ``fault_status``, ``fault_message``,
``fault_body``, ``fault_delay`` (seconds).

A script file holds JSON objects, one a line, or a YAML list of them: the fields above, and ``text`` and ``ids`` for
short, with ``match`` (a substring of the prompt's text) or ``order`` (the how-manieth request, from 0). The first
entry that fits is taken; one with neither fits always.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from proxy.simulator.model import Model
from proxy.simulator.options import Options
from proxy.simulator.validation import Query, Refusal

FAULTS = (
    "http",  # status and body instead of a stream
    "first_event",  # status 200, then an error event and [DONE]
    "error_event",  # the same after some events
    "reset",  # the connection is reset
    "close",  # the connection is closed without the end of the HTTP message
    "eof",  # a clean end of the HTTP message, no finish, no [DONE]
    "half_frame",  # the same in the middle of an event
    "done_early",  # [DONE] without a finish
    "no_done",  # all but [DONE]
    "no_usage",  # all but the usage
    "garbage",  # an event that is not JSON, then the rest
    "stall",  # silence until the client leaves or aborts
    "slow_headers",  # the status comes after fault_delay
    "abort",  # the engine aborts: finish_reason abort
)
NEWLINES = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


class Behaviour(msgspec.Struct, forbid_unknown_fields=False, kw_only=True):
    """The fields of the module's description, typed. ``scripts``: the ids of each choice in turn."""

    force_ids: list[int | list[int]] | None = None
    force_scripts: list[list[int]] | None = None
    force_text: str | list[str] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    finish_alone: bool = False
    cached_tokens: int | None = None
    continues: bool = False
    ttft: float = 0.0
    itl: float = 0.0
    chunk: int | list[int] = 1
    burst: int = 1
    newline: str = "lf"
    comment_every: int = 0
    comments: int = 0
    pad_bytes: int = 0
    fault: str | None = None
    fault_after: int = 0
    fault_status: int = 500
    fault_message: str = "The simulated engine failed."
    fault_body: str | None = None
    fault_delay: float = 0.0
    scripts: list[list[int]] = []


@dataclass(frozen=True)
class Answer:
    """One choice: its ids, why it ends, and the lengths of its events (which add up to the ids)."""

    ids: list[int]
    finish_reason: str
    stop_reason: int | str | None
    lengths: list[int]


class Script:
    """The script file; counts requests."""

    def __init__(self, options: Options, model: Model) -> None:
        self.options = options
        self.model = model
        self.entries = read_entries(Path(options.script)) if options.script else []
        self.asked = 0

    def behaviour(self, query: Query) -> Behaviour:
        """How to answer ``query``. Raises Refusal for extra_args that make no sense."""
        options = self.options
        fields: dict[str, Any] = {
            "ttft": options.ttft,
            "itl": options.itl,
            "chunk": options.tokens_per_event,
            "burst": options.burst,
            "cached_tokens": options.cached_tokens,
        }
        fields |= self._entry(query)
        order, self.asked = self.asked, self.asked + 1
        args = {name: _unpacked(name, value) for name, value in query.extra_args.items()}
        if args.keys() & _WHAT:
            fields = {name: value for name, value in fields.items() if name not in _WHAT}
        try:
            behaviour = msgspec.convert(fields | args, Behaviour, strict=False)
        except msgspec.ValidationError as error:
            raise Refusal(f"extra_args: {error}", param="extra_args") from None
        if behaviour.fault is not None and behaviour.fault not in FAULTS:
            raise Refusal(f"extra_args: unknown fault {behaviour.fault}", param="extra_args")
        if behaviour.newline not in NEWLINES or behaviour.burst < 1 or behaviour.chunk == 0:
            raise Refusal("extra_args: newline, burst or chunk is out of range", param="extra_args")
        behaviour.scripts = self._scripts(behaviour, query, order)
        return behaviour

    def _entry(self, query: Query) -> dict[str, Any]:
        prompt: str | None = None
        for entry in self.entries:
            if "match" in entry:
                prompt = self.model.decode(query.token_ids) if prompt is None else prompt
                if entry["match"] not in prompt:
                    continue
            if entry.get("order", self.asked) == self.asked:
                return {_ALIASES.get(name, name): value for name, value in entry.items()}
        return {}

    def _scripts(self, behaviour: Behaviour, query: Query, order: int) -> list[list[int]]:
        forced: Any = behaviour.force_scripts or behaviour.force_ids
        if forced is not None:
            nested = [isinstance(part, list) for part in forced]
            if any(nested) and not all(nested):
                raise Refusal("extra_args: force_ids mixes ids and lists", param="extra_args")
            return forced if any(nested) else [forced]
        texts = behaviour.force_text
        if texts is None:
            if self.model.tokenizer is None:
                return [query.token_ids[-16:]]
            texts = default_text(self.model.decode(query.token_ids))
        try:
            scripts = [self.model.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        except ValueError as error:
            raise Refusal(f"extra_args: {error}", param="extra_args") from None
        if behaviour.finish_reason is None and self.model.eos_token_ids:
            scripts = [[*ids, self.model.eos_token_ids[0]] for ids in scripts]
        return scripts


_WHAT = frozenset({"force_ids", "force_scripts", "force_text"})
_ALIASES = {"text": "force_text", "ids": "force_ids"}


def _unpacked(name: str, value: Any) -> Any:
    if isinstance(value, str) and value[:1] in "[{" and value and name not in ("force_text", "fault_body"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a script file. Raises ValueError if it holds anything else."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        entries = yaml.safe_load(text) or []
    else:
        entries = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path.name}: a script is a list of objects")
    return entries


def default_text(prompt: str) -> str:
    """An answer made of the prompt's last question, with reasoning unless the prompt has closed it."""
    question = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0].strip()[-200:]
    answer = f"You said: {question}"
    if prompt.rstrip().endswith("</think>"):
        return answer
    return f"<think>\nThe question is to be repeated.\n</think>\n\n{answer}"


def answers(behaviour: Behaviour, query: Query, model: Model) -> list[Answer]:
    """One answer for each choice: the script up to a stop id, ``max_tokens`` or its end."""
    params = query.params
    stops = set(params.get("stop_token_ids") or ())
    ignore_eos = bool(params.get("ignore_eos"))
    if not ignore_eos:
        stops.update(model.eos_token_ids)
    least = params.get("min_tokens") or 0
    return [_answer(behaviour, query, index, stops, ignore_eos, least) for index in range(query.n)]


def _answer(behaviour: Behaviour, query: Query, index: int, stops: set[int], ignore_eos: bool, least: int) -> Answer:
    script, limit = behaviour.scripts[index % len(behaviour.scripts)], query.max_tokens
    if behaviour.continues:
        script = script[_overlap(query.token_ids, script) :]
    given = behaviour.finish_reason
    if ignore_eos and given is None and script and len(script) < limit:
        script = (script * (limit // len(script) + 1))[:limit]  # a real engine goes on to max_tokens
    ids, reason, cause = script[:limit], given or "stop", behaviour.stop_reason
    if stops:
        for position, token in enumerate(ids):
            if token in stops and position + 1 >= least:
                if given is None or position + 1 < len(script):
                    reason, cause = "stop", token if behaviour.stop_reason is None else behaviour.stop_reason
                return Answer(ids[: position + 1], reason, cause, _lengths(behaviour.chunk, position + 1))
    if len(script) > limit or (len(ids) == limit and given is None):
        reason, cause = "length", None
    return Answer(ids, reason, cause, _lengths(behaviour.chunk, len(ids)))


def _overlap(prompt: list[int], script: list[int]) -> int:
    """How many of the first ids of ``script`` the prompt ends with."""
    most = min(len(prompt), len(script))
    return next((count for count in range(most, 0, -1) if prompt[-count:] == script[:count]), 0)


def _lengths(chunk: int | list[int], total: int) -> list[int]:
    if isinstance(chunk, int):
        full, rest = divmod(total, chunk)
        return [chunk] * full + ([rest] if rest else [])
    lengths: list[int] = []
    for length in chunk:
        if length > 0 and total > 0:
            lengths.append(min(length, total))
            total -= lengths[-1]
    return lengths + ([total] if total else [])
