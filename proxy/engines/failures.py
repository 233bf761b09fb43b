"""What went wrong at the engine, as ``UpstreamError``: error bodies, error events, exceptions of the HTTP client.

Error shapes in the field: ``{"error": {"message", "type", "param", "code"}}`` (vLLM), ``{"object": "error",
"message", ...}`` (older servers, pd-sidecar, TensorRT-LLM), ``{"error": "text"}`` (vLLM's 401, some routers),
``{"detail": "text" | [{"loc", "msg"}]}`` (FastAPI). A 4xx is the client's doing and its message is passed on; the
text of a 5xx may hold anything and is not.
"""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import httpx
import msgspec

from proxy.errors import TYPE_BY_STATUS, UpstreamError
from proxy.protocol.generate import EngineError

MAX_MESSAGE = 2_000  # characters of an engine's message that are passed on

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]]+", re.I)
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\[[0-9a-f:]+\]:\d+", re.I)
_OBJECT = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
# An absolute path of two parts or more; what follows a word or a dot is a fraction or a route.
_PATH = re.compile(r"(?<![\w.>/])(?!/(?:v1|inference)/)(?:/[\w.+@-]+){2,}/?|\b[A-Za-z]:\\[^\s'\"]+")

_TIMEOUTS = (TimeoutError, httpx.TimeoutException)


def scrub(message: str) -> str:
    """An engine's message without addresses, paths and object ids, cut to MAX_MESSAGE characters."""
    message = _URL.sub("<url>", message[: 4 * MAX_MESSAGE])
    message = _ADDRESS.sub("<address>", message)
    message = _PATH.sub("<path>", _OBJECT.sub("", message))
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."


def read_error(body: Any) -> EngineError | None:
    """The error a decoded JSON body tells of, in any of the shapes above; None if it tells of none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return _from_object(error)
    if isinstance(error, str):
        return _from_object({**body, "message": body.get("message") or error})
    if body.get("object") == "error" and isinstance(body.get("message"), str):
        return _from_object(body)
    detail = body.get("detail")
    if isinstance(detail, str):
        return EngineError(message=detail, type="")
    if isinstance(detail, list):
        return _from_details([part for part in detail if isinstance(part, dict)])
    return None


def _from_object(error: dict[str, Any]) -> EngineError:
    message, kind, param, code = (error.get(name) for name in ("message", "type", "param", "code"))
    return EngineError(
        message=message if isinstance(message, str) else "",
        type=kind if isinstance(kind, str) else "",
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, int | str) else None,
    )


def _from_details(details: list[dict[str, Any]]) -> EngineError:
    where = [".".join(str(step) for step in detail.get("loc") or ()) for detail in details]
    text = "; ".join(f"{at}: {detail.get('msg', '')}" for at, detail in zip(where, details, strict=True))
    return EngineError(message=text, type="", param=where[0] if where else None, code=400)


def from_response(status: int, body: bytes) -> UpstreamError:
    """The failure behind an answer that is not a 2xx. ``body`` may be cut."""
    try:
        error = read_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = None
    if status in (401, 407):  # our key, not the client's
        return UpstreamError("The engine refused this proxy's credentials.", status=502, kind="status")
    if status in (404, 405) and (error is None or error.type == "" or error.message == "Not Found"):
        # The server's own answer, not one about a model.
        return UpstreamError("The engine has no such route.", status=502, kind="status", not_offered=status)
    failure = _failure(status, error or EngineError(type=""), kind="status")
    # vLLM has its token routes behind --enable-scale-out and answers 403 without it.
    failure.not_offered = status if status in (403, 501) else None
    return failure


def from_event(error: EngineError) -> UpstreamError:
    """The failure that an error event tells of, under HTTP status 200."""
    code = error.code
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if not isinstance(code, int) or not 400 <= code <= 599:
        code = next((status for status, kind in TYPE_BY_STATUS.items() if kind == error.type), 500)
    if code in (401, 407):
        code = 500
    return _failure(code, error, kind="error_event")


def _failure(status: int, error: EngineError, kind: str) -> UpstreamError:
    if 400 <= status < 500:
        message = scrub(error.message) or f"The engine refused the request (HTTP {status})."
        return UpstreamError(message, status=status, type=error.type or None, param=error.param, kind=kind)
    if status == 503:
        return UpstreamError("The engine is not available at the moment.", status=503, kind=kind)
    if status == 504:
        return UpstreamError("The engine did not answer in time.", status=504, kind=kind)
    return UpstreamError("The engine failed on this request.", status=502, kind=kind)


def from_exception(error: BaseException, *, sent: bool = False) -> UpstreamError:
    """The failure behind an exception of the HTTP client. ``sent``: an answer had begun."""
    cause = error
    while isinstance(cause, httpx.HTTPError) and cause.__cause__ is not None:
        cause = cause.__cause__  # httpx-aiohttp maps a lost connection to a timeout; what it maps from is right
    if isinstance(cause, aiohttp.ConnectionTimeoutError | httpx.ConnectTimeout):
        return UpstreamError("The engine could not be reached in time.", status=504, kind="timeout_connect")
    if isinstance(cause, aiohttp.ClientConnectorError | httpx.ConnectError):
        return UpstreamError("The engine cannot be reached.", status=503, kind="connect")
    if isinstance(cause, _TIMEOUTS):
        return UpstreamError("The engine did not answer in time.", status=504, kind="timeout_first_token")
    if sent:
        return UpstreamError("The connection to the engine broke off.", status=502, kind="eof")
    if isinstance(cause, aiohttp.ServerDisconnectedError | OSError):
        return UpstreamError("The engine closed the connection without an answer.", status=502, kind="connect")
    return UpstreamError("The engine's answer could not be read.", status=502, kind="protocol")
