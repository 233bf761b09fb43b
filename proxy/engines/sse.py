"""Server-sent events, decoded without any IO: bytes of network reads in, data of whole events out.

Rules (WHATWG HTML, 9.2.6 "Interpreting an event stream"), cut anywhere:

1. A line ends with LF, CR or CRLF, and with nothing else: U+2028 and its kin are data. So lines are split on bytes,
   and a character that is cut between two reads needs no care.
2. ``data`` lines of one event are joined with LF; one blank after the colon is removed. A blank line ends the event.
3. Comments (``:``) and other fields (``event``, ``id``, ``retry``) are dropped; one BOM at the start is dropped.
4. An event that the end of the stream cuts off is dropped; ``pending`` tells that there was one.

The common read holds whole ``data: {...}\\n\\n`` events and is cut with two C calls and no loop over lines; only what
belongs to an event cut by a read goes line by line. Every byte is looked at a fixed number of times.
"""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"
# prompt_token_ids or top_logprobs of long prompts come in one frame: 3 MB have been seen in the field.
MAX_EVENT_BYTES = 16 * 1024 * 1024
_CR, _LF = 13, 10


class EventTooLarge(ValueError):
    """An event (or a single line) is longer than the bound. ``events``: what the same read completed before it."""

    def __init__(self, limit: int, events: list[bytes]) -> None:
        super().__init__(f"an event of the stream is longer than {limit} bytes")
        self.limit = limit
        self.events = events


class SSEDecoder:
    """Decoder of one stream. ``max_event_bytes`` bounds the lines of one event as they were sent."""

    __slots__ = ("_after_cr", "_at_start", "_between", "_lines", "_limit", "_partial", "_size")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._partial = bytearray()  # the line not yet ended (at the start: perhaps half a BOM)
        self._lines: list[bytes] = []  # data of the event not yet ended
        self._size = 0  # bytes of those lines as sent
        self._after_cr = False  # the last byte was a CR: an LF that follows belongs to it
        self._at_start = True
        self._between = False  # known to be between two events: no partial line, no data, no CR

    @property
    def pending(self) -> bool:
        """Whether data has come of an event whose end has not (asked at the end of the stream: it was cut off)."""
        return bool(self._lines) or bool(self._partial and not self._partial.startswith(b":"))

    def feed(self, chunk: bytes) -> list[bytes]:
        """Data of the events that ``chunk`` completes, in order. Raises EventTooLarge; feed no more after that."""
        if self._between and chunk.endswith(b"\n\n") and chunk.startswith(b"data: "):
            length = len(chunk)
            # One event by itself, the shape of a paced stream: the first line end is the last byte but one.
            if chunk.find(_LF, 6) == length - 2 and _CR not in chunk and length - 2 <= self._limit:
                return [chunk[6:-2]]
        events = self._feed(chunk)
        self._between = not (self._partial or self._lines or self._after_cr or self._at_start)
        return events

    def _feed(self, chunk: bytes) -> list[bytes]:
        if self._at_start:
            chunk = self._strip_bom(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        if _CR in chunk:
            self._after_cr = chunk[-1] == _CR
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[bytes] = []
        if self._partial or self._lines:
            # Only as far as the blank line that may end the event in progress; what follows takes the quick way.
            end = chunk.find(b"\n\n") + 2
            if end == 1 or end == len(chunk):
                self._feed_lines(chunk, events)
                return events
            self._feed_lines(chunk[:end], events)
            chunk = chunk[end:]
            if self._partial or self._lines:  # pragma: no cover - a blank line has ended every event
                raise AssertionError("an event outlived its blank line")
        if chunk.startswith(b"data: "):
            end = chunk.rfind(b"\n\n") + 2
            if end > 1 and len(chunk) <= self._limit:
                whole = chunk if end == len(chunk) else chunk[:end]
                parts = whole[6:-2].split(b"\n\ndata: ")
                if whole.count(_LF) == 2 * len(parts):  # every line end was one of the separators
                    if events:
                        events += parts
                    else:
                        events = parts
                    if end != len(chunk):
                        self._feed_lines(chunk[end:], events)
                    return events
        self._feed_lines(chunk, events)
        return events

    def _feed_lines(self, chunk: bytes, events: list[bytes]) -> None:
        """The general way: line by line. ``chunk`` has LF line ends only."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._partial:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial.clear()
        for line in lines:
            if not line:
                if self._lines:
                    events.append(self._lines[0] if len(self._lines) == 1 else b"\n".join(self._lines))
                    self._lines = []
                self._size = 0
                continue
            if self._size + len(line) > self._limit:
                raise EventTooLarge(self._limit, events)
            if line.startswith(b"data:"):
                self._lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._size += len(line)
            elif line == b"data":
                self._lines.append(b"")
                self._size += len(line)
        if rest:
            self._partial += rest
            if self._size + len(self._partial) > self._limit:
                raise EventTooLarge(self._limit, events)

    def _strip_bom(self, chunk: bytes) -> bytes:
        head = bytes(self._partial) + chunk
        if len(head) < len(BOM) and BOM.startswith(head):
            self._partial[:] = head
            return b""
        self._at_start = False
        self._partial.clear()
        return head[len(BOM) :] if head.startswith(BOM) else head
