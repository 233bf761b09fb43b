"""Trailers of the engine's answers and for its requests, which aiohttp reads past and does not write.

A connection's bytes go through a scanner of chunked framing on their way to aiohttp's parser. The parser is what judges
them: the scanner believes what it sees, and gives up where it sees nothing that it knows.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

Fields = list[tuple[bytes, bytes]]

MAX_LINE = 65536  # of a head or a trailer, in bytes: aiohttp refuses far shorter ones
# What frames, routes or describes the message cannot come after it (RFC 9110, 6.5.1).
_NEVER = frozenset({
    b"connection", b"content-encoding", b"content-length", b"content-range", b"content-type", b"host", b"keep-alive",
    b"te", b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip

_STATUS, _HEAD, _SIZE, _DATA, _TRAILERS, _DONE = range(6)


class TrailerScanner:
    """Bytes of one answer in; ``fields`` are its trailers once the last byte is there."""

    __slots__ = ("fields", "_at", "_partial", "_left", "_chunked")

    def __init__(self, has_body: bool = True) -> None:
        self.fields: Fields = []
        self._at = _STATUS if has_body else _DONE
        self._partial = b""
        self._left = 0  # bytes of a chunk that are still to come, with the line end behind them
        self._chunked = False

    def feed(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size and self._at != _DONE:
            if self._at == _DATA:
                used = min(self._left, size - at)
                self._left -= used
                at += used
                if not self._left:
                    self._at = _SIZE
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._partial += data[at:]
                if len(self._partial) > MAX_LINE:
                    self._at = _DONE
                return
            line = self._partial + data[at:end]
            self._partial = b""
            at = end + 1
            self._line(line.rstrip(b"\r"))

    def _line(self, line: bytes) -> None:
        if self._at == _SIZE:
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                self._at = _DONE
                return
            self._left = size + 2
            self._at = _DATA if size else _TRAILERS
        elif self._at == _STATUS:
            code = line.split(b" ")[1:2]
            # what comes before the answer has a head and nothing else
            self._at = _HEAD if code not in ([b"204"], [b"304"]) else _DONE
            self._chunked = False
            self._left = 1 if code and code[0].startswith(b"1") else 0
        elif not line:
            interim = self._at == _HEAD and self._left
            self._at = _STATUS if interim else _SIZE if self._at == _HEAD and self._chunked else _DONE
        else:
            name, _, value = line.partition(b":")
            if self._at == _TRAILERS:
                self.fields.append((name.lower(), value.strip(b" \t")))
            elif name.lower() == b"transfer-encoding":
                self._chunked = value.strip().lower().endswith(b"chunked")


class _Handler(ResponseHandler):
    """aiohttp's protocol of a connection, with a scanner for each answer."""

    trailers = TrailerScanner(has_body=False)

    def set_response_params(self, *, skip_payload: bool = False, **params: Any) -> None:
        self.trailers = TrailerScanner(has_body=not skip_payload)
        super().set_response_params(skip_payload=skip_payload, **params)

    def data_received(self, data: bytes) -> None:
        self.trailers.feed(data)
        super().data_received(data)


class Connector(aiohttp.TCPConnector):
    """Its connections see trailers."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        # the one place that says what a connection's protocol is; there is no public one
        self._factory = functools.partial(_Handler, loop=self._loop)  # type: ignore[assignment]


class Response(aiohttp.ClientResponse):
    """``scanner.fields``: the answer's trailers, once its body has been read."""

    scanner = TrailerScanner(has_body=False)

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        # kept, since a connection that has given its answer may be at work on the next one
        self.scanner = getattr(connection.protocol, "trailers", self.scanner)
        return await super().start(connection)


class Upload(aiohttp.payload.AsyncIterablePayload):
    """A request's body, and ``trailers``, which may be filled while the body is read."""

    def __init__(self, parts: AsyncIterable[bytes], trailers: Fields) -> None:
        super().__init__(parts)
        self._trailers = trailers

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await super().write_with_length(writer, content_length)
        fields = end_to_end(self._trailers)
        if fields and getattr(writer, "chunked", False):
            writer.chunked = False  # type: ignore[attr-defined]  # what is written now is the end, as it is
            await writer.write(b"0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % field for field in fields))


def end_to_end(fields: Fields) -> Fields:
    """The trailers that may be passed on."""
    return [field for field in fields if field[0].lower() not in _NEVER]
