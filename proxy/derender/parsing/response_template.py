"""``hf``: output read by the ``response_template`` that a checkpoint carries for transformers.

A template describes a message as fields (``thinking``, ``content``, ``tool_calls``), each with an opening and a closing
anchor, literal or regular expression, and a name for how its text is read. transformers loads and checks it, and
reads what has to be read whole; where regions begin and end is decided here, by the same rules, but id by id, so
that nothing depends on the cuts, in linear time, and with a state that can be saved. Text is sent as it comes; JSON
arguments stream; a region whose encoding only a regular expression knows is read when it closes. A region that
cannot be read is content, as the model wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from proxy.derender.parsing.arguments.json_call import CallReader
from proxy.derender.parsing.arguments.json_value import ValueReader
from proxy.derender.parsing.arguments.schema import convert, parameter_types, quote
from proxy.derender.parsing.events import ARGUMENTS, BROKEN, CALL, CLOSED, CONTENT, END, REASONING, Event
from proxy.derender.parsing.foreign import Checkpoint, ForeignFormat, Opening
from proxy.derender.parsing.model import Reader
from proxy.derender.parsing.registry import UnknownFormat

NAMES = ("hf", "beam")  # beam's checkpoints carry their template as well

_REASONING = ("thinking", "reasoning_content", "reasoning")
_CALLS = "tool_calls"
_CONTENT = "content"
# Text in front of an anchor that a look-behind may ask for.
_CONTEXT = 256
# A region that has to be read whole is text beyond this.
_REGION_LIMIT = 1 << 20
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}\Z")
_LOOKS_AROUND = re.compile(r"\(\?<[=!]|\\[bBAZGm]|\^|\$")


@dataclass(frozen=True)
class Template:
    """A loaded template: transformers' fields, and what each of them is here."""

    spec: Any  # transformers' ResponseTemplate
    sinks: Mapping[str | None, int]  # REASONING, CONTENT, CALL, or -1 for text that is dropped
    quiet: Mapping[str | None, re.Pattern[str] | None]  # characters that can begin an anchor watched in a region

    @classmethod
    def load(cls, template: Mapping[str, Any]) -> Template:
        """Raises ValueError for a template that transformers refuses, or whose fields no answer has."""
        from transformers.utils.chat_parsing.response_templates import load_response_template

        spec = load_response_template(dict(template))
        sinks: dict[str | None, int] = {}
        for name in spec.fields:
            if name not in (*_REASONING, _CONTENT, _CALLS):
                raise ValueError(f"response_template: no answer has a field {name!r}")
            sinks[name] = REASONING if name in _REASONING else CALL if name == _CALLS else CONTENT
        # text outside of all fields: nobody's where the template has content elsewhere
        sinks[None] = -1 if _CONTENT in spec.fields else CONTENT
        regions = (None, *spec.fields)
        return cls(
            spec, sinks, {region: _beginnings([a.pattern for a in _watched(spec, region)]) for region in regions}
        )

    def mentions(self, marker: str) -> bool:
        """Whether one of the anchors, or of the patterns inside, has this text in it."""
        escaped = re.escape(marker)
        return any(marker in text or escaped in text for text in self._texts())

    def _texts(self) -> list[str]:
        texts = [self.spec.start_anchor_re.pattern, *(self.spec.start_anchor_literals or ())]
        for field in self.spec.fields.values():
            texts += [p.pattern for p in (field.open_re, field.close_re) if p is not None]
            texts += [*(field.open_literals or ()), *(field.close_literals or ()), json.dumps(field.content_args)]
        return texts


@dataclass(frozen=True)
class _Anchor:
    opens: bool
    field: Any
    pattern: Any
    literal: bool
    extends: bool


def _watched(spec: Any, region: str | None) -> list[_Anchor]:
    """The anchors that count in a region: its end; outside of the explicit ones, every beginning."""

    def opening(field: Any) -> _Anchor:
        return _Anchor(True, field, field.open_re, field.open_literals is not None, field.open_literal_can_extend)

    def closing(field: Any) -> _Anchor:
        return _Anchor(False, field, field.close_re, field.close_literals is not None, field.close_literal_can_extend)

    if region is not None and region != spec.implicit:
        field = spec.fields[region]
        return [closing(field)] if field.close_re is not None else []
    anchors = [opening(field) for field in spec.fields.values() if field.open_re is not None]
    if spec.implicit is not None and spec.fields[spec.implicit].close_re is not None:
        anchors.append(closing(spec.fields[spec.implicit]))
    return anchors


def _beginnings(patterns: Sequence[Any]) -> re.Pattern[str] | None:
    """What finds a character that one of the patterns can begin with; None where that cannot be told."""
    chars = [chr(code) for code in range(128)]
    if any(_LOOKS_AROUND.search(p.pattern) or p.fullmatch("") for p in patterns):
        return None
    found = "".join(c for c in chars if any(p.match(c, partial=True) for p in patterns))
    others = any(not p.pattern.isascii() or p.match(c, partial=True) for p in patterns for c in "é鰻😀｜▁")
    if not found and not others:
        return re.compile(r"(?!)")
    return re.compile("[" + re.escape(found) + ("\\x80-\U0010ffff" if others else "") + "]")


class TemplateParser:
    """One stream (``foreign.Parser``)."""

    def __init__(self, template: Template, opening: Opening) -> None:
        self._template = template
        self._vocabulary = opening.vocabulary
        self._detokenizer = opening.detokenizer
        self._tools = opening.settings.schemas() if opening.reads_calls else {}
        self._sinks = dict(template.sinks)
        if not opening.reads_reasoning:
            self._sinks.update(dict.fromkeys(_REASONING, CONTENT))
        self._reads_calls = opening.reads_calls
        self._show_special = not opening.settings.skip_special_tokens
        self._special = {
            token_id: text
            for text, token_id in opening.vocabulary.added.items()
            if token_id in opening.vocabulary.special
        }
        self._region: str | None = template.spec.implicit
        self._captures: dict[str, str] = {}
        self._buffer = ""
        self._at = 0
        self._opened = False  # something of the region was read
        self._raw: list[str] = []  # a region of calls as it was written, as long as it may turn out to be text
        self._size = 0
        self._reader: Reader | None = None
        self._begun = 0  # calls that began in this region
        self.named = opening.settings.named_tool
        self.events: list[Event] = []
        self.reasoning_tokens = 0
        self._prime(opening.prompt)

    def _prime(self, prompt: Sequence[int]) -> None:
        text = b"".join(map(self._vocabulary.piece, prompt)).decode(errors="replace")
        self._buffer = self._template.spec.truncate_past_last_anchor(text) if text else ""
        if self._buffer == text:  # no turn of the model's in it: nothing that could be said
            self._buffer = ""
        self._process(False)
        self.events.clear()

    @property
    def state(self) -> str:
        return self._region or "text"

    @property
    def held(self) -> str:
        return "".join(self._raw) + self._buffer[self._at :]

    # -- ids in ----------------------------------------------------------------------------------------

    def feed(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            self.feed_one(token_id)

    def feed_one(self, token_id: int) -> None:
        reasoning = self._sinks[self._region] == REASONING
        marker = self._special.get(token_id)
        if marker is None:
            text = self._detokenizer.push((token_id,))
        else:
            text = self._detokenizer.break_off()
            if self._show_special or self._template.mentions(marker):
                text += marker
        if text:
            self._text(text)
        if reasoning and self._sinks[self._region] == REASONING:
            self.reasoning_tokens += 1

    def _text(self, text: str) -> None:
        begins = self._template.quiet[self._region]
        if self._at == len(self._buffer) and begins is not None and begins.search(text) is None:
            self._buffer = (self._buffer + text)[-_CONTEXT:]
            self._at = len(self._buffer)
            self._say(text)
            return
        self._buffer += text
        self._process(False)

    def resume(self, pending: bytes) -> None:
        self._detokenizer.resume(pending)

    def finish(self, cut: bool) -> None:
        self._process(True, cut)

    # -- regions ---------------------------------------------------------------------------------------

    def _process(self, ends: bool, cut: bool = False) -> None:
        empty_at = -1
        while True:
            anchor, match, hold = self._scan(ends)
            if anchor is None or match is None:
                break
            if match.start() > self._at:
                self._say(self._buffer[self._at : match.start()])
            self._at = match.end()
            if match.start() == match.end():
                if match.start() == empty_at:
                    break
                empty_at = match.start()
            found = {key: value for key, value in match.groupdict().items() if value is not None}
            if anchor.opens:
                self._close("", False)
                self._open(anchor.field.name, found, match.group())
            else:
                self._captures.update(found)
                self._close(match.group(), False)
        if ends:
            hold = len(self._buffer)
        if hold > self._at:
            self._say(self._buffer[self._at : hold])
            self._at = hold
        if ends:
            self._close("", cut)
        drop = max(0, self._at - _CONTEXT)
        self._buffer = self._buffer[drop:]
        self._at -= drop

    def _scan(self, ends: bool) -> tuple[_Anchor | None, Any, int]:
        """The first anchor that is certain, and where one begins that is not: up to there text is text."""
        best: tuple[tuple[int, int, bool, str], _Anchor, Any] | None = None
        hold = len(self._buffer)
        for anchor in _watched(self._template.spec, self._region):
            match = anchor.pattern.search(self._buffer, self._at, partial=not ends)
            if match is None:
                continue
            if not ends and (match.partial or self._can_grow(anchor, match)):
                hold = min(hold, match.start())
                continue
            key = (match.start(), -len(match.group()), not anchor.opens, anchor.field.name)
            if best is None or key < best[0]:
                best = key, anchor, match
        if best is None or best[2].start() >= hold and not ends:
            return None, None, hold
        return best[1], best[2], hold

    def _can_grow(self, anchor: _Anchor, match: Any) -> bool:
        """Whether more text could change a match."""
        if match.end() == len(self._buffer):
            return not anchor.literal or anchor.extends or match.start() == match.end()
        if anchor.literal:
            return False
        again = anchor.pattern.match(self._buffer + "\0", match.start())
        return again is None or again.span() != match.span() or again.groupdict() != match.groupdict()

    def _open(self, name: str, captures: dict[str, str], opener: str) -> None:
        self._region = name
        self._captures = captures
        self._opened = True
        if self._sinks[name] != CALL:
            return
        if not self._reads_calls:
            self.events.append((CONTENT, opener, ""))
            return
        self._raw = [opener]
        self._size = 0
        self._reader = self._make_reader()

    def _make_reader(self) -> Reader | None:
        """What reads this region while it is written; None: it is read when it closes."""
        assert self._region is not None
        field = self._template.spec.fields[self._region]
        shape = _shape(field)
        if shape is None:
            return None
        name, arguments = shape
        if name in self._captures and arguments == "":
            self.begin(self._captures[name])
            return ValueReader()
        return CallReader((name,), (arguments,)) if arguments else None

    def _say(self, text: str) -> None:
        if not text:
            return
        self._opened = True
        sink = self._sinks[self._region]
        if sink == CALL:
            if self._reads_calls:
                self._read(text)
            else:
                self.events.append((CONTENT, text, ""))
        elif sink >= 0:
            self.events.append((sink, text, ""))

    def _read(self, text: str) -> None:
        if not self._begun:
            self._raw.append(text)
            self._size += len(text)
        reader = self._reader
        if reader is not None:
            reader.text(text, self)
            if reader.done or reader.failed:
                self._reader = None
        if self._begun:
            self._raw = []
        elif self._size > _REGION_LIMIT:
            self.events.append((CONTENT, "".join(self._raw), ""))
            self._raw = []
            self._size = 0

    def _close(self, closer: str, cut: bool) -> None:
        """The region is over: read what had to be read whole."""
        sink, reader = self._sinks[self._region], self._reader
        if sink == CALL and self._opened:
            if not self._reads_calls:
                self.events.append((CONTENT, closer, ""))
            elif self._begun:
                if reader is not None:
                    reader.finish(self)
            elif not self._read_whole() and not cut:
                self.events.append((CONTENT, "".join(self._raw) + closer, ""))
        self._region = self._template.spec.implicit
        self._captures = {}
        self._opened = False
        self._raw = []
        self._size = 0
        self._reader = None
        self._begun = 0

    def _read_whole(self) -> bool:
        from transformers.utils.chat_parsing.content_parsers import process_field

        assert self._region is not None
        field = self._template.spec.fields[self._region]
        try:
            value = process_field("".join(self._raw[1:]), field, self._captures)
            calls = [_call(item) for item in (value if isinstance(value, list) else [value])]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        for name, given in calls:
            self.begin(name)
            self.arguments(self._typed(name, given) if field.content in ("xml-inline", "kv-lines") else _dumps(given))
            self.end(True)
        return bool(calls)

    def _typed(self, name: str, given: Any) -> str:
        """Arguments that were written without types, by the tool's schema."""
        if not isinstance(given, dict):
            return _dumps(given)
        schema = self.schema(name)
        parts = []
        for key, value in given.items():
            types = parameter_types(schema, key) if isinstance(value, str) else ()
            parts.append(f"{quote(key)}: {convert(value, types) if types else _dumps(value)}")
        return "{" + ", ".join(parts) + "}"

    # -- what readers say (``model.Calls``) ----------------------------------------------------------------

    def begin(self, name: str, call_id: str = "") -> bool:
        self._begun += 1
        self.events.append((CALL, name, call_id))
        return True

    def arguments(self, text: str) -> None:
        self.events.append((ARGUMENTS, text, ""))

    def end(self, closed: bool, listed: bool = False) -> None:
        self.events.append((END, "", CLOSED if closed else BROKEN))

    def end_list(self, closed: bool) -> None:
        pass

    def further(self) -> None:
        pass

    def schema(self, name: str) -> Mapping[str, object]:
        return self._tools.get(name, {})

    # -- snapshots ---------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        return [
            self._region,
            dict(self._captures),
            self._buffer,
            self._at,
            self._opened,
            list(self._raw),
            self._begun,
            self.reasoning_tokens,
            None if self._reader is None else self._reader.save(),
            self._detokenizer.save(),
        ]

    def load(self, saved: list[Any]) -> None:
        region, self._captures, self._buffer, self._at, self._opened, raw, begun, tokens, reader, text = saved
        if region not in self._sinks:
            raise ValueError("no such field")
        self._region = region
        self._raw = list(raw)
        self._size = sum(map(len, self._raw[1:]))
        self._reader = None
        if reader is not None:
            self._reader = self._make_reader()
            if self._reader is None:
                raise ValueError("no reader in this field")
            self._reader.load(reader)
            self.events.clear()
        self._begun = begun
        self.reasoning_tokens = tokens
        self._detokenizer.load(text)


def _shape(field: Any) -> tuple[str, str] | None:
    """Where a region of plain JSON has a call's name and its arguments; ("name", "") for a name from the anchor."""
    if field.content != "json" or field.content_args or field.transform_each or not isinstance(field.transform, dict):
        return None
    function = field.transform.get("function")
    if function == "{content}":
        return "name", "arguments"
    if not isinstance(function, dict):
        return None
    paths = [_PLACEHOLDER.match(str(function.get(key))) for key in ("name", "arguments")]
    if paths[0] is None or paths[1] is None:
        return None
    name, arguments = paths[0][1], paths[1][1]
    if arguments == "content" and "." not in name:
        return name, ""
    if (
        name.startswith("content.")
        and arguments.startswith("content.")
        and name.count(".") == arguments.count(".") == 1
    ):
        return name.removeprefix("content."), arguments.removeprefix("content.")
    return None


def _call(item: Any) -> tuple[str, Any]:
    function = item["function"]
    name, arguments = function["name"], function.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError("a call without a name")
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return name, {} if arguments is None else arguments


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def format_of(checkpoint: Checkpoint | None) -> ForeignFormat:
    """The format of a checkpoint's own template. Raises UnknownFormat where it has none."""
    template = None if checkpoint is None else checkpoint.response_template
    if not template:
        raise UnknownFormat(
            "hf needs a checkpoint with a response_template in its tokenizer_config.json; this has none"
        )
    try:
        loaded = Template.load(template)
    except (ImportError, ValueError, KeyError, TypeError) as error:
        raise UnknownFormat(f"the checkpoint's response_template cannot be used: {error}") from error
    return ForeignFormat(partial(TemplateParser, loaded), reasoning_names=NAMES, tool_names=NAMES)
