"""Log lines: text for people, JSON for collectors. What clients ask and models answer is never in them."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any

import msgspec

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

log = logging.getLogger("derender")


_NOT_LOGGED = frozenset({"route", "probe", "watched", "trace"})


class Record(msgspec.Struct):
    """What is told of one request, in its access line and its metrics. Times are seconds."""

    id: str = ""
    method: str = ""
    path: str = ""
    route: str = "other"
    mode: str = "derender"
    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    code: int = 0  # the HTTP status; after the headers, that of the error event; 499: the client left
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    error: str | None = None  # the kind of failure, never its text
    ttft: float | None = None
    duration: float = 0.0
    probe: bool = False  # health checks and scrapes: logged at debug level only
    watched: Any = None  # what generates the answer, while it does; for /debug
    trace: Any = None  # the request's span, where it is traced

    def fields(self) -> dict[str, object]:
        """The fields that say something, rounded for reading."""
        found: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None or name in _NOT_LOGGED:
                continue
            found[name] = round(value, 6) if isinstance(value, float) else value
        return found


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger, message, and the fields given as ``extra={"fields": {...}}``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """``time level message key=value ...``"""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = f"{at} {record.levelname.lower():7} {record.getMessage()}"
        for key, value in getattr(record, "fields", {}).items():
            text = str(value)
            line += f" {key}={text if text and text.isprintable() and not (set(text) & set(' =')) else repr(text)}"
        return line


def configure(level: str, form: str) -> None:
    """Send our lines and uvicorn's to stdout in one form; called once, at start."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    # Chatty at info, and they would print URLs of every engine call.
    for name in ("httpx", "httpcore", "aiohttp", "asyncio", "sse_starlette"):
        logging.getLogger(name).setLevel(logging.WARNING)


def access(record: Record) -> None:
    """The one line of a request."""
    level = logging.DEBUG if record.probe else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "request", extra={"fields": record.fields()})


def failure(error: BaseException, record: Record | None = None) -> None:
    """An exception that nobody expected: its type and place. Its text may quote a prompt, so it is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}:{frame.name}" for frame in frames[-4:]]
    fields = {"type": type(error).__qualname__, "at": " > ".join(where)}
    log.error("unexpected exception", extra={"fields": fields | ({"id": record.id} if record else {})})
