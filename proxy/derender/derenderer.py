"""The process-wide derenderer: a vocabulary and the configured formats, from which streams are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from proxy.derender.detokenizer import detokenizer
from proxy.derender.logprobs import LogprobFormatter
from proxy.derender.newlines import NewlineFilter
from proxy.derender.parsing import response_template, vllm_parser
from proxy.derender.parsing.engine import Machine
from proxy.derender.parsing.foreign import Checkpoint, ForeignFormat, Opening
from proxy.derender.parsing.plugins import installed
from proxy.derender.parsing.program import Program
from proxy.derender.parsing.registry import (
    PLAIN,
    Grammar,
    JointFormat,
    ReasoningFormat,
    Registry,
    ToolFormat,
    UnknownFormat,
    compose,
)
from proxy.derender.profiles import CompleteFilter, Filter, InlineFilter, TailFilter, TrimFilter
from proxy.derender.settings import ChatSettings
from proxy.derender.stream import ChatStream
from proxy.derender.tool_ids import ToolCallIds, digest_ids
from proxy.derender.vocabulary import Vocabulary

__all__ = ["ChatSettings", "Checkpoint", "Derenderer", "UnknownFormat"]

# How far back the prompt is read as text where a format's markers are no tokens.
_TAIL_IDS = 256


class Derenderer:
    """Opens streams. ``reasoning_parser`` and ``tool_parser``: vLLM's parser names, None for none.

    ``eos_token_ids``: ids that end a turn, the primary one first. ``checkpoint``: what the names ``hf`` and
    ``vllm:NAME`` need. Raises UnknownFormat.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        reasoning_parser: str | None = None,
        tool_parser: str | None = None,
        eos_token_ids: Sequence[int] = (),
        tool_call_streaming: str = "incremental",
        framing_whitespace: str = "keep",
        registry: Registry | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        registry = registry or installed()
        self.vocabulary = vocabulary
        self.eos_token_ids = tuple(eos_token_ids)
        self._streaming = tool_call_streaming
        self._whitespace = framing_whitespace
        self._parses = (bool(reasoning_parser), bool(tool_parser))
        self._foreign = _foreign(reasoning_parser, tool_parser, registry, checkpoint)
        reasoning = registry.find_reasoning(reasoning_parser) if reasoning_parser and not self._foreign else None
        tools = registry.find_tools(tool_parser) if tool_parser and not self._foreign else None
        self._joint: JointFormat | None = None
        for item in (reasoning, tools):
            if isinstance(item, JointFormat):
                self._joint = item
        self._reasoning = reasoning if isinstance(reasoning, ReasoningFormat) else None
        if self._reasoning is not None and self._reasoning.fit is not None:
            self._reasoning = self._reasoning.fit(vocabulary.added)
        if self._reasoning is not None and self._reasoning.spelled and self._reasoning.start not in vocabulary.added:
            start, end = self._reasoning.spelled
            self._reasoning = replace(self._reasoning, start=start, end=end)
        self._tools = tools if isinstance(tools, ToolFormat) else None
        if self._tools is not None and self._tools.fit is not None:
            self._tools = self._tools.fit(vocabulary.added)
        self._compiled: dict[tuple[bool, str], tuple[Grammar, Program]] = {}

    @property
    def parses(self) -> bool:
        """Whether a parser is configured, so that streams need the prompt ids."""
        return any(self._parses)

    @property
    def depends_on_chunks(self) -> bool:
        """Whether streams are a function of how their ids were cut: replay them so, and save no compact state."""
        return self._foreign is not None and self._foreign.depends_on_chunks

    def chat(
        self,
        settings: ChatSettings,
        *,
        request_id: str,
        prompt_token_ids: Sequence[int] | None = None,
        index: int = 0,
    ) -> ChatStream:
        """A stream for choice ``index`` of a chat answer."""
        prompt = prompt_token_ids or ()
        if self._foreign is not None:
            return self._open_foreign(self._foreign, settings, request_id, prompt, index)
        reads_calls = self._joint is not None or self._tools is not None or bool(settings.forced)
        allowed = settings.tools_allowed and reads_calls
        grammar, program = self._program(allowed, settings.forced)
        show_special = not settings.skip_special_tokens
        machine = Machine(
            program,
            self._start(grammar, settings, prompt),
            self.vocabulary,
            detokenizer(self.vocabulary, prompt),
            settings.schemas() if allowed else {},
            show_special,
            settings.named_tool,
        )
        if self._joint is not None:
            self._prime(self._joint, machine, prompt)
        marks = program.marks
        return ChatStream(
            machine,
            settings,
            self._ids(settings, request_id, prompt if allowed else (), index),
            eos=self.eos_token_ids,
            primary_eos=self.eos_token_ids[0] if self.eos_token_ids else None,
            # an EOS id that is also a marker of the format (harmony's <|call|>) is the parser's business
            cut_ids=[i for i in self.eos_token_ids if marks.get(i, ("", True))[0] not in program.markers],
            filters=self._filters(settings),
            logprobs=self._logprobs(settings),
        )

    def text(
        self,
        settings: ChatSettings,
        *,
        request_id: str,
        prompt_token_ids: Sequence[int] | None = None,
        index: int = 0,
    ) -> ChatStream:
        """A stream without parsers, for completions: everything is content."""
        grammar, program = self._plain()
        machine = Machine(
            program,
            grammar.entry,
            self.vocabulary,
            detokenizer(self.vocabulary, prompt_token_ids or ()),
            {},
            not settings.skip_special_tokens,
        )
        return ChatStream(
            machine,
            settings,
            self._ids(settings, request_id, (), index),
            eos=self.eos_token_ids,
            primary_eos=self.eos_token_ids[0] if self.eos_token_ids else None,
            cut_ids=self.eos_token_ids,
            filters=(),
            logprobs=self._logprobs(settings),
        )

    def _open_foreign(
        self, item: ForeignFormat, settings: ChatSettings, request_id: str, prompt: Sequence[int], index: int
    ) -> ChatStream:
        reads_reasoning, reads_calls = self._parses
        allowed = reads_calls and settings.tools_allowed
        parser = item.open(
            Opening(self.vocabulary, detokenizer(self.vocabulary, prompt), prompt, settings, reads_reasoning, allowed)
        )
        return ChatStream(
            parser,
            settings,
            self._ids(settings, request_id, prompt if allowed else (), index),
            eos=self.eos_token_ids,
            primary_eos=self.eos_token_ids[0] if self.eos_token_ids else None,
            cut_ids=self.eos_token_ids,
            filters=self._filters(settings),
            logprobs=self._logprobs(settings),
        )

    # -- parts -------------------------------------------------------------------------------------------

    def _plain(self) -> tuple[Grammar, Program]:
        key = (False, "plain")
        if key not in self._compiled:
            grammar = Grammar(PLAIN.states, PLAIN.entry)
            self._compiled[key] = grammar, Program.compile(grammar.states, self.vocabulary)
        return self._compiled[key]

    def _program(self, allowed: bool, forced: str) -> tuple[Grammar, Program]:
        key = (allowed, forced)
        if key not in self._compiled:
            if self._joint is not None:
                states = self._joint.states if allowed else {**self._joint.states, **self._joint.without_tools}
                grammar = Grammar(states, self._joint.entry, markers=self._joint.markers)
            else:
                grammar = compose(self._reasoning, (self._tools or PLAIN) if allowed else PLAIN, forced)
            self._compiled[key] = grammar, Program.compile(grammar.states, self.vocabulary, grammar.markers)
        return self._compiled[key]

    def _ids(self, settings: ChatSettings, request_id: str, prompt: Sequence[int], index: int) -> ToolCallIds:
        item = self._joint or self._tools
        shape = item.id_shape if item is not None else "vllm"
        return ToolCallIds(request_id, digest_ids(prompt), index, shape, settings.history_tool_calls)

    def _filters(self, settings: ChatSettings) -> list[Filter]:
        filters: list[Filter] = []
        if (settings.tool_call_streaming or self._streaming) == "complete":
            filters.append(CompleteFilter())
        if self._reasoning is not None and self._reasoning.written_newlines:
            filters.append(NewlineFilter())
        if (settings.framing_whitespace or self._whitespace) == "trim" and self._foreign is not None:
            filters.append(TrimFilter(True, True))
        elif (settings.framing_whitespace or self._whitespace) == "trim" and self.parses:
            reasoning = (self._joint or self._reasoning or PLAIN).trim
            content = (self._joint or self._tools or self._reasoning or PLAIN).trim
            if reasoning.reasoning or content.content:
                filters.append(TrimFilter(reasoning.reasoning, content.content))
        elif self._reasoning is not None and self._reasoning.drops_tail:
            filters.append(TailFilter())
        if self._reasoning is not None and self._reasoning.inline:
            filters.append(InlineFilter(self._reasoning.start, self._reasoning.end))
        return filters

    def _logprobs(self, settings: ChatSettings) -> LogprobFormatter | None:
        if settings.logprobs is None:
            return None
        return LogprobFormatter(self.vocabulary, settings.logprobs, settings.return_tokens_as_token_ids)

    # -- where the output begins --------------------------------------------------------------------------

    def _start(self, grammar: Grammar, settings: ChatSettings, prompt: Sequence[int]) -> str:
        """The state that the prompt leaves the model in: its last reasoning marker within the current turn."""
        reasoning = self._reasoning
        if reasoning is None or not grammar.open_entry:
            return grammar.entry
        inside = self._prompt_says(reasoning, prompt)
        if inside is None:
            given = settings.chat_template_kwargs
            off = any(given.get(name) is False for name in reasoning.switch)
            inside = (reasoning.open_by_default and not off) or any(given.get(name) for name in reasoning.opens)
        return grammar.open_entry if inside else grammar.entry

    def _prompt_says(self, reasoning: ReasoningFormat, prompt: Sequence[int]) -> bool | None:
        added = self.vocabulary.added
        start, end = added.get(reasoning.start), added.get(reasoning.end)
        special = self.vocabulary.special
        for position in range(len(prompt) - 1, -1, -1):
            token_id = prompt[position]
            if token_id == start:
                return True
            if token_id == end:
                return False
            # a special token that is no reasoning marker belongs to the frame of the turn
            if token_id in special:
                break
        else:
            position = -1
        if start is not None and end is not None:
            return None
        tail = b"".join(map(self.vocabulary.piece, prompt[position + 1 :][-_TAIL_IDS:])).decode(errors="replace")
        opened, closed = tail.rfind(reasoning.start), tail.rfind(reasoning.end)
        return None if opened == closed else opened > closed

    def _prime(self, joint: JointFormat, machine: Machine, prompt: Sequence[int]) -> None:
        turn = self.vocabulary.added.get(joint.turn)
        for position in range(len(prompt) - 1, -1, -1):
            if prompt[position] == turn:
                machine.prime(prompt[position + 1 :], joint.primed)
                return


def _foreign(
    reasoning: str | None, tools: str | None, registry: Registry, checkpoint: Checkpoint | None
) -> ForeignFormat | None:
    """The foreign format that the names select, if any; they select one and the same, or one of them nothing."""
    names = [name for name in (reasoning, tools) if name]
    if any(name in response_template.NAMES for name in names):
        found = response_template.format_of(checkpoint)
        if any(name not in response_template.NAMES for name in names):
            raise UnknownFormat(f"{' and '.join(names)} cannot be combined: a response_template describes both")
        return found
    if any(name.startswith(vllm_parser.PREFIX) for name in names):
        if not all(name.startswith(vllm_parser.PREFIX) for name in names):
            raise UnknownFormat(f"{' and '.join(names)} cannot be combined: use vllm:NAME for both")
        bare = [name.removeprefix(vllm_parser.PREFIX) if name else None for name in (reasoning, tools)]
        return vllm_parser.format_of(bare[0], bare[1], checkpoint)
    found_all = [registry.find_reasoning(reasoning)] if reasoning else []
    picked = [*found_all, *([registry.find_tools(tools)] if tools else [])]
    foreign = [item for item in picked if isinstance(item, ForeignFormat)]
    if foreign and any(item is not foreign[0] for item in picked):
        raise UnknownFormat(f"{' and '.join(names)} cannot be combined: one is a parser of its own")
    return foreign[0] if foreign else None
