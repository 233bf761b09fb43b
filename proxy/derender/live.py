"""A stream of the stateless endpoints while it is in memory: the parser, and what its carried state says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.derender import state
from proxy.derender.deltas import Delta, ToolCallDelta
from proxy.derender.parsing.foreign import NotSaved
from proxy.derender.state import COMPACT, FULL, MID, Claim, Seal
from proxy.derender.stream import ChatStream
from proxy.derender.window import Window

# Bytes of a live stream besides its text: the parser with its parts, this object, hash objects and links of the
# cache, as measured by tests/derender/test_cache.py.
BASE_SIZE = 6000
# Held text is there once as text in the parser, and in pieces; a snapshot has it once, as UTF-8.
TEXT_FACTOR = 4


class Step:
    """The last step of a live stream: the call that was answered, by the state it carried, and the answer."""

    __slots__ = ("head", "ids", "lens", "tail", "digest", "chunk", "answer")

    def __init__(self, live: Live | None) -> None:
        # None: the call was the first one and carried no state
        self.head = b"" if live is None else live.head
        self.ids = 0 if live is None else len(live.ids)
        self.lens = 0 if live is None else len(live.lens)
        self.tail = b"" if live is None else live.tail
        self.digest = b"" if live is None else live.digest_text
        self.chunk = b""  # what tells this call from others with the same state
        self.answer = b""


class Live:
    """One live stream. ``ids`` and ``lens``: output ids and chunk lengths as the state writes them.

    ``binding`` is what it is the stream of; ``position`` counts its output ids.
    """

    __slots__ = (
        "binding", "stream", "window", "compact", "position", "digest", "digest_text", "created", "role_sent",
        "context", "offset", "call_ids", "ids", "lens", "_ids_hash", "_lens_hash", "head", "tail", "step", "size",
        "shape", "unfed",
    )  # fmt: skip

    def __init__(
        self, binding: bytes, stream: ChatStream, window: Window | None, *, compact: bool, created: int, role_sent: bool
    ) -> None:
        """``window``: of plain text, whose state needs no ids."""
        self.binding = binding
        self.stream = stream
        self.window = window
        self.compact = compact
        self.position = 0
        self.digest = state.FIRST_DIGEST
        self.digest_text = b""
        self.created = created
        self.role_sent = role_sent
        self.context: list[int] = []
        self.offset = 0
        self.call_ids: list[str] = []
        self.ids = bytearray()
        self.lens = bytearray(b"1" if compact else b"")
        self._ids_hash = state.digest_of(b"")
        self._lens_hash = state.digest_of(b"")
        self.head = self.tail = b""
        self.step: Step | None = None
        self.size = BASE_SIZE
        # the last ids, where they end in the middle of a character: vLLM says nothing of such tokens yet, and a stream
        # must be able to move there and back
        self.unfed: list[int] = []
        self.shape: Any = None  # the templates of its answers, which the caller makes

    def carry(self, claim: Claim, position: int, digest: bytes) -> None:
        """Take over what a carried state says besides the parser."""
        fields = claim.fields
        self.position = position
        self.digest = digest
        self.role_sent = fields.role_sent
        self.context = fields.logprob_context_token_ids
        self.offset = fields.logprob_text_offset
        self.call_ids = fields.last_tool_call_ids
        self.ids = bytearray(claim.ids)
        self.lens = bytearray(claim.lens)
        self._ids_hash = state.digest_of(claim.ids)
        self._lens_hash = state.digest_of(claim.lens)
        self.head, self.tail = claim.head, claim.tail

    def spells(self, raw: bytes) -> bool:
        """Whether ``raw`` is the carried state of this stream, byte for byte."""
        return _spells(raw, self.head, self.ids, self.lens, self.tail)

    def spelled(self, raw: bytes) -> bool:
        """Whether ``raw`` is the state that the last step began with."""
        step = self.step
        if step is None:
            return False
        ids, lens = bytes(self.ids[: step.ids]), bytes(self.lens[: step.lens])
        return _spells(raw, step.head, ids, lens, step.tail)

    def take(self, ids: Sequence[int], shown: int) -> None:
        """The ids of a chunk have been fed, of which ``shown`` are text: the rest ended generation."""
        if not ids:
            return
        self.position += len(ids)
        first = not self.ids and not self.compact
        written = b",".join([b"%d" % token_id for token_id in ids]) if len(ids) > 1 else b"%d" % ids[0]
        self.digest = state.roll(self.digest, written)
        self.context = [*self.context, *ids][-state.CONTEXT :]
        if self.window is not None:
            self.window.push(ids[:shown])
        elif not self.compact:
            if first:
                size = b"%d" % len(ids)
            else:
                written, size = b"," + written, b",%d" % len(ids)
            self.ids += written
            self.lens += size
            self._ids_hash.update(written)
            self._lens_hash.update(size)

    def note_calls(self, calls: list[ToolCallDelta] | None) -> None:
        """Remember the ids of calls that begin; those that the client carries already win."""
        for call in calls or ():
            if call.id is None:
                continue
            if call.index < len(self.call_ids):
                call.id = self.call_ids[call.index]
            else:
                self.call_ids = [*self.call_ids, call.id]

    def write(self, seal: Seal) -> list[bytes | bytearray]:
        """The state for the client, in pieces."""
        stream, window = self.stream, self.window
        tokens, read = ((), 0) if window is None else (window.tokens, window.read)
        self.head = state.head_bytes(tokens, read, self.role_sent, self.context, self.offset)
        tools = stream.calls > 0
        if stream.finished:
            self.tail = state.tail_bytes(tools, self.call_ids, self.created, True, False, None)
        else:
            try:
                payload = state.pack(self.position, self.unfed, stream.save())
            except NotSaved:  # a parser of somebody else's: it can be replayed
                payload = b""
            self.size = BASE_SIZE + TEXT_FACTOR * len(payload) + len(self.head) + 2 * (len(self.ids) + len(self.lens))
            if self.compact:
                kind, lists = COMPACT, b""
            else:
                kind, lists = FULL, self._ids_hash.digest() + self._lens_hash.digest()
                if len(payload) > state.MAX_FULL_PAYLOAD:
                    payload = b""
            token = seal.write(kind, self.binding, self.digest, payload, lists)
            self.digest_text = token[-49:-25].encode()
            ended = window is not None and stream.ended
            self.tail = state.tail_bytes(tools, self.call_ids, self.created, False, ended, token)
        return self.pieces()

    def pieces(self) -> list[bytes | bytearray]:
        """The state that was written last."""
        return [self.head, self.ids, MID, self.lens, self.tail]

    def remember(self, step: Step, chunk: bytes, answer: bytes) -> None:
        """``answer`` is what the call with ``chunk`` got, in front of the state, should it be asked again."""
        step.chunk = chunk
        step.answer = answer
        self.step = step
        self.size += len(chunk) + len(step.head) + len(step.tail) + len(answer)


def _spells(raw: bytes, head: bytes, ids: bytes | bytearray, lens: bytes | bytearray, tail: bytes) -> bool:
    a = len(head)
    b = a + len(ids)
    c = b + len(MID)
    d = c + len(lens)
    if len(raw) != d + len(tail) or not raw.startswith(head) or not raw.endswith(tail) or raw[b:c] != MID:
        return False
    return raw[a:b] == ids and raw[c:d] == lens


def merged(deltas: list[Delta]) -> Delta:
    """All that one chunk says, in one delta; entries of one call are joined."""
    if len(deltas) == 1:
        only = deltas[0]
        if only.tool_calls is None or len(only.tool_calls) == 1:
            return only
    whole = Delta()
    calls: dict[int, ToolCallDelta] = {}
    for delta in deltas:
        if delta.reasoning is not None:
            whole.reasoning = (whole.reasoning or "") + delta.reasoning
        if delta.content is not None:
            whole.content = (whole.content or "") + delta.content
        for call in delta.tool_calls or ():
            known = calls.get(call.index)
            if known is None:
                calls[call.index] = call
            elif call.arguments is not None:
                known.arguments = (known.arguments or "") + call.arguments
        if delta.finish_reason is not None:
            whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
    whole.tool_calls = list(calls.values()) or None
    return whole
