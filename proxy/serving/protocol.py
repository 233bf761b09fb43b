"""uvicorn's HTTP protocol, and trailers, which it does not know: those of a request, and those of an answer."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

Fields = list[tuple[bytes, bytes]]


class Protocol(HttpToolsProtocol):
    """Keeps a request's trailers out of its headers: ``scope["derender.trailers"]``, filled once the body is in."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        # the parser tells of trailers as it does of headers, and they would be taken for those of the request
        self.headers: Fields = []
        self.scope["derender.trailers"] = self.headers  # type: ignore[typeddict-unknown-key]


def end_with(cycle: Any, trailers: Fields) -> None:
    """Write the end of a chunked answer with its trailers: the last body message, empty, then only completes it.

    ``cycle``: uvicorn's, of this request. Nothing happens where the answer is not chunked.
    """
    if getattr(cycle, "chunked_encoding", None) and cycle.scope["method"] != "HEAD" and not cycle.disconnected:
        lines = b"".join(b"%b: %b\r\n" % field for field in trailers)
        cycle.transport.write(b"0\r\n%b\r\n" % lines)
        cycle.chunked_encoding = False
