"""The parts of the roll-out in one place: the plan in force, the relay, the shadow, the breaker, the file's watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from proxy.derender.derenderer import Derenderer
from proxy.errors import UpstreamError
from proxy.observe.metrics import Metrics
from proxy.protocol.checks import Limits
from proxy.render.renderer import Renderer
from proxy.rollout.canary import Breaker, Plan
from proxy.rollout.comparison import Shadow
from proxy.rollout.counters import Counters
from proxy.rollout.relay import Relay, RelayOptions, Targets
from proxy.serving.watch import FileWatch

log = logging.getLogger("derender")

ASK_AGAIN = 5.0  # seconds between two questions to an engine that does not speak chat
PROBE_SECONDS = 5.0
NOTHING_TO_PASS = "the engine does not answer chat requests, so there is nothing to pass through (--tokens-only?)"


class Rollout:
    """One per process. ``read``: the plan as the configuration file has it now, or a ValueError that says why not.

    ``targets``: where there are several engines.
    """

    def __init__(
        self,
        plan: Plan,
        relay: RelayOptions | None,
        *,
        renderer: Renderer,
        derenderer: Derenderer,
        limits: Limits,
        metrics: Metrics,
        file: str | None = None,
        read: Callable[[], Plan] | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.plan = plan
        self.counters = Counters()
        metrics.add(self.counters)
        self.relay = None if relay is None else Relay(relay, metrics, targets)
        self.shadow = Shadow(renderer, derenderer, limits, self.counters)
        self.shadow.configure(plan.options)
        self.breaker = Breaker()
        self._read = read
        self._watch = None if file is None or read is None else FileWatch(file, self.reload)
        self._speaks_chat = False
        self._asked_at = -1e9

    async def start(self) -> None:
        if self.relay is not None:
            await self.relay.start()
        await self.shadow.start()
        if self._watch is not None:
            await self._watch.start()

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        await self.shadow.close()
        if self.relay is not None:
            await self.relay.close()

    async def reload(self) -> None:
        """Take over what the file says now. A file that is no good changes nothing; streams under way go on."""
        assert self._read is not None
        try:
            plan = await asyncio.to_thread(self._read)
        except ValueError as error:
            self.counters.reloads["refused"] += 1
            log.warning("configuration file refused, the old one stays in force", extra={"fields": {"why": str(error)}})
            return
        changed = plan != self.plan
        self.counters.reloads["applied" if changed else "unchanged"] += 1
        if changed:
            self.plan = plan
            self.shadow.configure(plan.options)
            log.info("configuration changed", extra={"fields": {"mode": plan.mode, "canary_percent": plan.percent}})

    async def nothing_to_pass(self, model: str | None) -> str | None:
        """What is wrong if the plan passes requests through and the engine does not take them; else None.

        ``model``: the engine's name of it. Nothing is generated: the request asks for no token, which an engine that
        speaks chat refuses (400) and one without a tokenizer cannot even look at (500).
        """
        if not self.plan.passes or self.relay is None or self._speaks_chat:
            return None
        if time.monotonic() - self._asked_at >= ASK_AGAIN:
            self._asked_at = time.monotonic()
            question = {"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 0}
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    status = await self.relay.status_of("/v1/chat/completions", msgspec.json.encode(question))
            except (UpstreamError, TimeoutError):
                return "the engine did not answer a chat request"
            self._speaks_chat = status < 500 and status not in (403, 404, 405)
        return None if self._speaks_chat else NOTHING_TO_PASS
