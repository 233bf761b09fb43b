"""What the rest of the proxy knows of an engine: ask for tokens, get events of ids, whatever the dialect.

A dialect is one module beside this one. It maps its own events to ``proxy.protocol.generate`` and every failure to
``UpstreamError``; no exception of an HTTP library leaves it.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from proxy.protocol.generate import GenerateEvent


class ModelCard(msgspec.Struct):
    """One entry of the engine's ``/v1/models``: a base model, or a LoRA adapter whose ``parent`` is one.

    ``owned_by`` is the name of the server's make.
    """

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None


@dataclass(slots=True)
class GenerateRequest:
    """One request for tokens.

    ``request_id`` is ours (the client's plus a random suffix), never the client's alone. ``sampling_params`` are
    vLLM's names and are sent as they are; ``n`` is read from them. Fields that are None are left out. ``extra``
    holds fields this proxy does not know; ``headers`` are those of the client that go along (``traceparent``).
    """

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    features: Any = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    continuous_usage: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def choices(self) -> int:
        """How many choices the engine is to give (``sampling_params.n``)."""
        n = self.sampling_params.get("n")
        return n if isinstance(n, int) and n > 0 else 1


class EngineStream(abc.ABC):
    """A running request: ``async with stream: async for events in stream``.

    Entering sends the request and reads the status line. Each step gives the events of one network read, in order,
    at least one. It ends after every choice has finished. Leaving before that closes the connection and aborts the
    request at the engine. Entering and each step raise ``UpstreamError``; events decoded before a fault come first.
    """

    received_at: float = 0.0  # event loop time of the last network read
    read_at: float = 0.0  # the same by perf_counter, for what is measured in microseconds
    ended: bool = False  # the engine has said all it had to say

    @abc.abstractmethod
    async def __aenter__(self) -> EngineStream: ...

    @abc.abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[list[GenerateEvent]]:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> list[GenerateEvent]: ...


class Engine(abc.ABC):
    """A client of one engine; one per process, shared by all requests.

    ``dialect``: vllm, sglang or completions; empty while it is not known, or where there are several.
    """

    dialect: str = ""

    @abc.abstractmethod
    async def start(self) -> None:
        """Open the connection pool. Asks the engine nothing, so that an engine still loading is no failure."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Send the aborts still under way (within a bound), then close the pool."""

    @abc.abstractmethod
    def generate(self, request: GenerateRequest) -> EngineStream:
        """A stream, not yet sent."""

    @abc.abstractmethod
    async def generate_full(self, request: GenerateRequest) -> GenerateEvent:
        """The answer in one piece, with what engines give only there (``kv_transfer_params``, ``prompt_logprobs``).

        Raises UpstreamError. Aborts at the engine when it is cancelled.
        """

    @abc.abstractmethod
    async def models(self) -> list[ModelCard]:
        """What the engine serves. Raises UpstreamError."""

    @abc.abstractmethod
    async def healthy(self) -> bool:
        """Whether the engine says that it is well; False also when it cannot be asked."""

    async def has_tokenizer(self) -> bool | None:
        """Whether the engine loaded a tokenizer, so that it can constrain its output; None: it does not tell."""
        return None

    @abc.abstractmethod
    async def metrics(self) -> bytes:
        """The engine's metrics, in Prometheus text. Raises UpstreamError."""
