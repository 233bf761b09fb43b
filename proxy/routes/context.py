"""What handlers need: the parts that ``app.py`` has built, and what is known of the request at hand."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from proxy.config import Settings
from proxy.derender.derenderer import Derenderer
from proxy.engines.base import Engine, GenerateRequest
from proxy.errors import RequestError
from proxy.observe.logs import Record
from proxy.observe.metrics import Metrics
from proxy.observe.tracing import Tracing
from proxy.protocol.checks import Limits
from proxy.render.rendered import Rendered
from proxy.render.renderer import Renderer
from proxy.rollout.control import Rollout
from proxy.routes.derender_tier import Tier
from proxy.routes.registry import ModelRegistry
from proxy.serving.control import Control
from proxy.serving.drain import Drain
from proxy.serving.siblings import Siblings
from proxy.serving.tls import TLS

if TYPE_CHECKING:
    from starlette.types import Scope

# Ids go into headers, JSON and log lines of several systems: visible ASCII without quotes, in a sane length.
REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}", re.ASCII)

# Headers of a client that mean something to an engine or its tracer; nothing else goes along.
FORWARDED = ("traceparent", "tracestate", "baggage", "x-data-parallel-rank")


@dataclass
class Parts:
    """Everything a handler may use; one per process."""

    settings: Settings
    limits: Limits
    renderer: Renderer
    derenderer: Derenderer
    engine: Engine | None  # None: the tier that only renders
    models: ModelRegistry
    metrics: Metrics
    tier: Tier
    rollout: Rollout
    drain: Drain
    siblings: Siblings | None = None  # the other workers
    tracing: Tracing | None = None
    control: Control | None = None  # the local socket, of a process of its own
    tls: TLS | None = None
    parsers_why: str = ""  # what `auto` has decided, and why

    @property
    def has_reasoning(self) -> bool:
        return self.settings.parser_names[0] is not None


@dataclass
class Call:
    """One request under way: its parts, its record and its times."""

    request: Request
    parts: Parts
    record: Record
    created: int  # seconds since the epoch, as OpenAI's `created`
    started: float  # perf_counter

    @property
    def engine(self) -> Engine:
        if self.parts.engine is None:
            raise RequestError("This server has no engine: it renders, and generates nothing.", status=501)
        return self.parts.engine

    def adopt_id(self, request_id: str | None) -> None:
        """Take the id that the body brings, where no header has brought one."""
        if request_id is not None and self.request.scope.get("derender.made_id") and REQUEST_ID.fullmatch(request_id):
            self.record.id = request_id

    def engine_request(
        self, rendered: Rendered, model: str | None, *, stream_usage: bool = False, suffix: str = ""
    ) -> GenerateRequest:
        """What the engine is asked. Its id carries a random part: clients choose ids, and one must not be able to
        abort another's request by choosing the same."""
        return GenerateRequest(
            request_id=f"{self.record.id}{suffix}-{secrets.token_hex(8)}",
            token_ids=rendered.prompt_token_ids,
            sampling_params=rendered.sampling_params,
            model=model,
            cache_salt=rendered.cache_salt,
            priority=rendered.priority,
            kv_transfer_params=rendered.kv_transfer_params,
            ec_transfer_params=rendered.ec_transfer_params,
            features=rendered.features,
            reasoning_ended=rendered.reasoning_ended,
            reasoning_parser_kwargs=rendered.reasoning_parser_kwargs,
            extra=rendered.extra,
            headers=self._engine_headers(),
        )

    def _engine_headers(self) -> dict[str, str]:
        headers = {name: value for name in FORWARDED if (value := self.request.headers.get(name)) is not None}
        if self.record.trace is not None:
            self.record.trace.to_engine(headers)
        return headers


def record_of(scope: Scope) -> Record:
    record: Record = scope["derender.record"]
    return record


def call_of(request: Request) -> Call:
    parts: Parts = request.scope["derender.parts"]
    return Call(
        request=request,
        parts=parts,
        record=record_of(request.scope),
        created=int(time.time()),
        started=time.perf_counter(),
    )
