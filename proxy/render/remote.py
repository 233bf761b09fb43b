"""A render server elsewhere (vLLM's ``/v1/chat/completions/render``), for prompts this process cannot build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from proxy.errors import RequestError, UpstreamError

MAX_ANSWER = 256 * 1024 * 1024  # features carry tensors


class _Answer(msgspec.Struct):
    """What is read of the answer; the rest is computed here, by the same rules."""

    token_ids: list[int]
    sampling_params: dict[str, Any] = {}
    features: Any = None
    content_parts: list[dict[str, Any]] | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    token_offsets: list[tuple[int, int]] | None = None


@dataclass(frozen=True)
class RemotePrompt:
    """A prompt as the render server made it. ``structured_outputs``: its constraint on the answer, if any."""

    token_ids: list[int]
    structured_outputs: dict[str, Any] | None
    features: Any
    content_parts: list[dict[str, Any]] | None
    reasoning_ended: bool | None
    reasoning_parser_kwargs: dict[str, Any] | None
    token_offsets: list[tuple[int, int]] | None


class RemoteRenderer:
    """Client of a render server. ``close`` it at the end."""

    def __init__(self, url: str, *, timeout: float = 60.0, connect_timeout: float = 5.0) -> None:
        self._url = url.rstrip("/") + "/v1/chat/completions/render"
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=connect_timeout))

    async def chat(self, body: bytes) -> RemotePrompt:
        """The prompt of the chat request in ``body``.

        RequestError with the server's message for its 4xx; UpstreamError where it cannot be reached or understood.
        """
        try:
            async with self._client.stream(
                "POST", self._url, content=body, headers={"content-type": "application/json"}
            ) as response:
                data = await self._read(response)
        except httpx.TimeoutException as error:
            kind = "timeout_connect" if isinstance(error, httpx.ConnectTimeout) else "timeout_idle"
            raise UpstreamError("The render server did not answer in time.", status=504, kind=kind) from error
        except httpx.HTTPError as error:
            raise UpstreamError("The render server cannot be reached.", status=503, kind="connect") from error
        if response.status_code >= 400:
            raise _failure(response.status_code, data)
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UpstreamError("The render server's answer cannot be read.", kind="protocol") from error
        if not answer.token_ids or min(answer.token_ids) < 0:
            raise UpstreamError("The render server's answer has no valid token ids.", kind="protocol")
        constraint = answer.sampling_params.get("structured_outputs")
        return RemotePrompt(
            token_ids=answer.token_ids,
            structured_outputs=constraint if isinstance(constraint, dict) else None,
            features=answer.features,
            content_parts=answer.content_parts,
            reasoning_ended=answer.reasoning_ended,
            reasoning_parser_kwargs=answer.reasoning_parser_kwargs,
            token_offsets=answer.token_offsets,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _read(self, response: httpx.Response) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > MAX_ANSWER:
                raise UpstreamError("The render server's answer is too large.", kind="too_large")
            chunks.append(chunk)
        return b"".join(chunks)


def _failure(status: int, data: bytes) -> RequestError | UpstreamError:
    message, param, kind = None, None, None
    try:
        error = msgspec.json.decode(data)["error"]
        message, param, kind = error.get("message"), error.get("param"), error.get("type")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        pass  # not an OpenAI error: the status has to do
    if status < 500 and status not in (401, 403, 408, 429):
        return RequestError(
            message if isinstance(message, str) else "The render server refused the request.",
            param=param if isinstance(param, str) else None,
            status=status,
            type=kind if isinstance(kind, str) else None,
        )
    # the server's own trouble, or ours with it: no business of the client's
    return UpstreamError("The render server failed.", status=503 if status in (429, 503) else 502, kind="status")
