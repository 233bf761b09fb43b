"""The two families of failure, and the OpenAI error bodies that clients see of them.

A ``RequestError`` is the client's fault, an ``UpstreamError`` the engine's. Nothing else may reach a client:
an exception of ours or of a library is answered with ``INTERNAL_ERROR``, whatever its text says. The shape
and the types are vLLM's: ``{"error": {"message", "type", "param", "code"}}``, ``code`` being the HTTP status.
"""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"

TYPE_BY_STATUS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    409: "ConflictError",
    413: "RequestEntityTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    501: "NotImplementedError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}

# The types that vLLM gives its own engine failures; ours for a bad gateway is not among them, so clients that
# switch on the type see the one they know.
UPSTREAM_TYPE_BY_STATUS = {502: "InternalServerError", 503: "ServiceUnavailableError", 504: "InternalServerError"}


class RequestError(Exception):
    """A request that cannot be served; ``param`` names the field at fault, as in ``messages[0].role``."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        type: str | None = None,
        code: int | str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.type = type or TYPE_BY_STATUS.get(status, "BadRequestError")
        self.code = status if code is None else code
        self.headers = headers or {}


class UpstreamError(Exception):
    """A failure of the engine or of the connection to it.

    ``kind`` is one of connect, timeout_connect, timeout_first_token, timeout_idle, status, error_event,
    protocol, eof, too_large: the label of ``derender_engine_errors_total``. ``not_offered``: the HTTP status with
    which the engine said that it does not do this at all; None where it is about this request only.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        type: str | None = None,
        code: int | str | None = None,
        kind: str = "protocol",
        param: str | None = None,
        not_offered: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.type = type or UPSTREAM_TYPE_BY_STATUS.get(status) or TYPE_BY_STATUS.get(status, "InternalServerError")
        self.code = status if code is None else code
        self.kind = kind
        self.not_offered = not_offered


def error_body(
    message: str,
    *,
    type: str = "BadRequestError",
    param: str | None = None,
    code: int | str | None = 400,
) -> bytes:
    """The JSON object of an error, for an HTTP body or an event."""
    return msgspec.json.encode({"error": {"message": message, "type": type, "param": param, "code": code}})


def body_of(error: RequestError | UpstreamError) -> bytes:
    """The JSON object of a raised error."""
    return error_body(error.message, type=error.type, param=error.param, code=error.code)


def error_event(error: RequestError | UpstreamError | None) -> bytes:
    """The SSE frames that end a stream in failure: the error, then ``[DONE]``; None is a failure of ours."""
    return b"data: " + (INTERNAL_ERROR if error is None else body_of(error)) + b"\n\n" + DONE


INTERNAL_ERROR = error_body("Internal server error", type="InternalServerError", code=500)
