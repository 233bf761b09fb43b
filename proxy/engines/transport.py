"""The HTTP client towards engines: httpx's API over aiohttp, with the settings that thousands of streams need.

httpx's own pool costs 5 ms of CPU per request at 256 streams and its reader 40 us per event; over aiohttp it is 0.3 ms
and 12 us (measured). Two things of the transport are in the way here and are replaced: its pool
limit, and its chain of generators around the body, which would also drop bytes that came before a broken connection.
"""

from __future__ import annotations

import asyncio

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

# vLLM closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): let go before, not at the same time.
KEEP_ALIVE_SECONDS = 4.0
READ_BUFFER_BYTES = 64 * 1024
LINGER_SECONDS = 1.0


class EngineTransport(AiohttpTransport):
    """httpx-aiohttp's transport; a response carries aiohttp's own in ``extensions["aiohttp"]``, and ``let_go``."""

    def __init__(self, *, verify: bool = True) -> None:
        super().__init__(verify=verify, trust_env=False, client=self._open)
        self._lingering: dict[aiohttp.ClientResponse, asyncio.TimerHandle] = {}

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,  # the number of streams is bounded at the front door; 100 is aiohttp's default
            limit_per_host=0,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            ttl_dns_cache=10,
            ssl=self.ssl_context,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent", "accept-encoding"),
            read_bufsize=READ_BUFFER_BYTES,
            trust_env=False,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = await super().handle_async_request(request)
        response.extensions["aiohttp"] = response.stream._aiohttp_response  # type: ignore[union-attr]
        response.extensions["let_go"] = self.let_go
        return response

    def let_go(self, raw: aiohttp.ClientResponse) -> None:
        """Keep the connection of an answer read to its last event: now if the response has ended, else when it does.

        Closed instead where the engine does not end its response within LINGER_SECONDS.
        """
        if raw.content.is_eof():
            raw.release()
            return
        self._lingering[raw] = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close, raw)
        raw.content.on_eof(lambda: self._lingering.pop(raw).cancel())

    def _close(self, raw: aiohttp.ClientResponse) -> None:
        del self._lingering[raw]
        raw.close()

    async def aclose(self) -> None:
        for raw, timer in list(self._lingering.items()):
            timer.cancel()
            self._close(raw)
        await super().aclose()


def unread(reader: aiohttp.StreamReader) -> bytes:
    """What had arrived before the connection broke: aiohttp raises first and would keep it back."""
    return reader._read_nowait(-1) if reader._buffer else b""


class EngineClient:
    """A client of the engine at ``url``: httpx's for single questions, and a shorter way for streams.

    ``connect_timeout`` in seconds (0: none). Reading has no limit here, callers have their own.
    """

    def __init__(self, url: str, *, api_key: str | None, connect_timeout: float) -> None:
        headers = {"accept": "*/*", "accept-encoding": "identity"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._base = httpx.URL(url)
        self._headers = list(headers.items())
        self._extensions = {"timeout": {"connect": connect_timeout or None}}
        self._transport = EngineTransport(verify=self._base.scheme == "https")
        self.http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            transport=self._transport,
            timeout=httpx.Timeout(None, connect=connect_timeout or None),
            follow_redirects=False,
            trust_env=False,
        )

    def url(self, path: str) -> httpx.URL:
        """The engine's URL of ``path``, to be made once."""
        return self._base.copy_with(raw_path=self._base.raw_path.rstrip(b"/") + path.encode())

    async def post(self, url: httpx.URL, content: bytes, headers: dict[str, str]) -> httpx.Response:
        """POST straight to the transport; the response's body is unread.

        Redirects, cookies, authentication and merging of URLs, which nobody needs here, make more than half of the
        CPU of a request (measured: 0.20 ms instead of 0.33 ms).
        """
        request = httpx.Request(
            "POST", url, headers=[*self._headers, *headers.items()], content=content, extensions=self._extensions
        )
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self.http.aclose()
