"""What the derender endpoints share: requests read once, streams opened or resumed, replays in turn."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from proxy import __version__
from proxy.config import Settings
from proxy.derender.cache import LiveCache
from proxy.derender.deltas import Delta
from proxy.derender.derenderer import ChatSettings, Derenderer
from proxy.derender.live import Live
from proxy.derender.resume import from_snapshot, from_window, replay
from proxy.derender.state import Claim, Seal
from proxy.derender.stream import ChatStream
from proxy.derender.window import Window, unfinished
from proxy.errors import RequestError
from proxy.observe import logs
from proxy.observe.metrics import Metrics
from proxy.protocol import derender as wire
from proxy.protocol.checks import Limits
from proxy.protocol.decode import json_object
from proxy.protocol.derender import GenerateChunk
from proxy.protocol.openai import parse_chat, parse_completion
from proxy.render.context import template_kwargs
from proxy.render.renderer import Renderer, chat_settings

# Replays that may wait for one another; each runs in slices of a millisecond, one slice per turn of the event loop.
MAX_REPLAYS = 256
SLICE = 0.001  # seconds
# A chunk of more ids than LONG is fed in pieces, with others in between.
LONG, PIECE = 512, 128
# Requests that are kept parsed, so that a stream's is parsed once.
MAX_REQUEST_BYTES = 32 * 1024 * 1024

PARSER_NEEDS_REQUEST = (
    "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak "
    "raw parser markup into content."
)
PARSER_NEEDS_PROMPT = (
    "prompt_token_ids is required when a tool or reasoning parser is configured. Without it nobody can tell whether "
    "the prompt left reasoning open, and reasoning would be taken for content."
)
UNUSABLE = (
    "This stream_state is compact and cannot be used here: it was made for another request, by another version, or "
    "with another --state-key. It carries no ids, so nothing can be rebuilt from it."
)

_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class Asked:
    """What a ``chat_request`` or ``completion_request`` means for derendering. ``top``: candidates to show, -1 all.

    ``settings`` are for answers chunk by chunk, to which logprobs and ids are added here, so that the stream need not
    go token by token; ``shown`` for a stream that has them in its deltas.
    """

    settings: ChatSettings
    shown: ChatSettings
    n: int
    digest: bytes
    top: int
    as_ids: bool
    return_token_ids: bool
    hidden: bool  # logprobs and ids would tell the reasoning that is not to be shown
    windowed: bool  # plain text, of which vLLM's decode window is all the state


class Tier:
    """One per process."""

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        renderer: Renderer,
        derenderer: Derenderer,
        metrics: Metrics,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.derenderer = derenderer
        self.vocabulary = derenderer.vocabulary
        self.vocab_size = self.vocabulary.size
        self.renderer = renderer
        self.metrics = metrics
        self.compact = settings.derender_state == "compact"
        key = settings.state_secret
        self.seal = Seal(secrets.token_bytes(32) if key is None else key)
        self.cache = LiveCache(
            ttl=settings.cache_ttl,
            max_entries=settings.cache_max_entries,
            max_bytes=settings.cache_max_bytes,
            timer=timer,
            evictions=metrics.cache_evictions,
        )
        metrics.cache = self.cache
        self._limits = limits
        self.lookups = metrics.cache_lookups
        self._requests = _Requests()
        self._replays = 0
        self._turn = asyncio.Lock()
        identity = (
            __version__, self.vocabulary.fingerprint, self.vocab_size, settings.chat_template,
            getattr(renderer.tokenizer, "chat_template", None), settings.parser_names, settings.tool_call_streaming,
            settings.framing_whitespace, derenderer.eos_token_ids, settings.default_chat_template_kwargs,
        )  # fmt: skip
        self._fingerprint = hashlib.blake2b(_sorted(identity), digest_size=32)

    # -- requests ------------------------------------------------------------------------------------------

    def asked_chat(self, raw: msgspec.Raw) -> Asked:
        """What ``chat_request`` asks for; raises RequestError that names its field."""
        return self._asked(b"c", raw, "chat_request")

    def asked_completion(self, raw: msgspec.Raw) -> Asked:
        return self._asked(b"t", raw, "completion_request")

    def _asked(self, kind: bytes, raw: msgspec.Raw, at: str) -> Asked:
        text = bytes(raw)
        key = kind + hashlib.blake2b(text, digest_size=16).digest()
        found = self._requests.get(key)
        if found is None:
            try:
                found = self._read(kind, text)
            except RequestError as error:
                error.param = f"{at}.{error.param}" if error.param else at
                raise
            self._requests.add(key, found, len(text))
        return found

    def _read(self, kind: bytes, text: bytes) -> Asked:
        settings, top, n = ChatSettings(), -1, 1
        if text != wire.NULL:
            # messages and prompt are not rendered here: a request may leave them out
            data = json_object(text)
            if kind == b"c":
                if data.get("messages") == []:
                    data["messages"] = [{"role": "user", "content": ""}]
                chat = parse_chat(msgspec.json.encode(data), self._limits, media=True)
                settings = chat_settings(
                    chat, template_kwargs(chat, self.renderer.options.default_chat_template_kwargs)
                )
                n = chat.n or 1
                top = -1 if settings.logprobs is None or chat.logprob_token_ids else settings.logprobs
            else:
                if data.get("prompt") is None:
                    data["prompt"] = "-"
                text_request = parse_completion(msgspec.json.encode(data), self._limits)
                settings = chat_settings(text_request, {})
                if settings.logprobs is not None and settings.logprobs >= 0 and not text_request.logprob_token_ids:
                    top = settings.logprobs + 1  # OpenAI's convention for completions: the sampled token comes on top
        parsed = kind == b"c" and self.derenderer.parses
        plain = not parsed and not settings.forced and not settings.stop and self.vocabulary.decode is None
        digest = hashlib.blake2b(kind + _sorted(settings), digest_size=16).digest()
        return Asked(
            settings=replace(settings, logprobs=None, return_token_ids=False, report_eos=True),
            shown=settings,
            n=n,
            digest=digest,
            top=top,
            as_ids=settings.return_tokens_as_token_ids,
            return_token_ids=settings.return_token_ids and not (parsed and not settings.include_reasoning),
            hidden=parsed and not settings.include_reasoning,
            windowed=plain,
        )

    def binding(self, asked: Asked, model: str, request_id: str, index: int, prompt: bytes) -> bytes:
        """The digest of everything that the answers of a stream depend on but its ids; ``prompt`` as JSON text."""
        name, told = model.encode(), request_id.encode(errors="surrogatepass")
        digest = self._fingerprint.copy()
        digest.update(b"%b%d:%b%d:%b%d:" % (asked.digest, len(name), name, len(told), told, index))
        digest.update(prompt)
        return digest.digest()

    def ending(
        self, asked: Asked, finish: str, stop: int | str | None, ids: Sequence[int]
    ) -> tuple[int | str | None, int]:
        """The stop reason to tell, and how many of the last ids are text. Older engines do not name the stop token."""
        if finish != "stop" or not ids or isinstance(stop, str):
            return stop, len(ids)
        last, settings = ids[-1], asked.settings
        eos = () if settings.ignore_eos else self.derenderer.eos_token_ids
        if stop is None and last not in eos[:1] and (last in settings.stop_token_ids or last in eos):
            stop = last
        dropped = last == stop or last in eos[:1]
        return stop, len(ids) - (dropped and not settings.include_stop_str_in_output)

    # -- streams -------------------------------------------------------------------------------------------

    def open(self, chat: bool, asked: Asked, request_id: str, index: int, prompt: Sequence[int] | None) -> ChatStream:
        opener = self.derenderer.chat if chat else self.derenderer.text
        return opener(asked.settings, request_id=request_id, prompt_token_ids=prompt, index=index)

    def fresh(
        self, chat: bool, asked: Asked, binding: bytes, chunk: GenerateChunk, index: int, prompt: Sequence[int] | None
    ) -> Live:
        """A stream at its first chunk. No clock is asked: another replica has to give the same bytes."""
        window = None
        if asked.windowed and not self.compact:
            window = Window(self.vocabulary, asked.settings.skip_special_tokens, prompt or ())
        stream = self.open(chat, asked, chunk.request_id or "", index, prompt)
        return Live(binding, stream, window, compact=self.compact, created=chunk.created or 0, role_sent=False)

    async def resume(
        self,
        chat: bool,
        asked: Asked,
        binding: bytes,
        claim: Claim,
        chunk: GenerateChunk,
        index: int,
        prompt: Sequence[int] | None,
        room: int | None,
    ) -> Live:
        """The stream that ``claim`` is a state of, by the cheapest way there is. ``room``: ids it may have had.

        Raises RequestError: 400 for what does not add up, 409 for a compact state of no use, 503 for too many replays.
        """

        def fresh() -> Live:
            live = self.fresh(chat, asked, binding, chunk, index, prompt)
            live.compact = live.compact or claim.compact
            live.created = live.created if claim.fields.created is None else claim.fields.created
            return live

        lists: tuple[list[int], list[int]] = ([], [])
        if not claim.compact:
            lists = claim.lists(room)
        live = fresh()
        if from_snapshot(live, claim, self.seal):
            if live.window is not None:
                fields = claim.fields
                live.window = Window.carried(
                    self.vocabulary,
                    asked.settings.skip_special_tokens,
                    fields.prev_tokens,
                    fields.prefix_offset,
                    fields.read_offset,
                )
            self.cache.stale(binding, live.position)
            self.lookups["snapshot"] += 1
            return live
        if claim.compact:
            raise RequestError(UNUSABLE, param="stream_state", status=409)
        self.lookups["replay_mismatch" if self.cache.knows(binding) else "replay_absent"] += 1
        live = fresh()
        if asked.windowed and not lists[0]:
            from_window(live, claim, self.vocabulary, asked.settings.skip_special_tokens)
            self.cache.stale(binding, None)
            return live
        live.window = None
        wire.check_ids(lists[0], "stream_state.output_token_ids", self.vocab_size)
        await self._replay(live, claim, *lists)
        self.cache.stale(binding, live.position)
        return live

    async def _replay(self, live: Live, claim: Claim, ids: list[int], lens: list[int]) -> None:
        if self._replays >= MAX_REPLAYS:
            raise RequestError(
                "This server is replaying too many streams. Try again later.", status=503, headers={"retry-after": "1"}
            )
        self._replays += 1
        began = time.perf_counter()
        try:
            await self.in_turn(replay(live, claim, ids, lens, self.vocabulary, self.derenderer.depends_on_chunks))
        except RequestError:
            raise
        except Exception as error:  # of a parser, on ids that the client chose
            logs.failure(error)
            raise RequestError("`stream_state` cannot be replayed.", param="stream_state") from error
        finally:
            self._replays -= 1
            self.metrics.replay_tokens += len(ids)
            self.metrics.replay_seconds.observe(time.perf_counter() - began)

    async def feed(self, live: Live, ids: list[int], finish: str | None, stop: int | str | None) -> list[Delta]:
        """Feed a chunk, but for tokens at its end that are half a character; those of the chunk before come first."""
        stream, held = live.stream, live.unfed
        if finish is None and not self.derenderer.depends_on_chunks:
            count = unfinished(self.vocabulary, [*held, *ids] if held else ids)
            if held or count:
                ids = [*held, *ids]
                ids, live.unfed = ids[: len(ids) - count], ids[len(ids) - count :]
            return stream.feed(ids) if len(ids) <= LONG else await self.feed_long(stream, ids, None, stop)
        live.unfed = []
        before = stream.feed(held) if held else []
        return before + await self.feed_long(stream, ids, finish, stop)

    async def feed_long(
        self, stream: ChatStream, ids: Sequence[int], finish: str | None, stop: int | str | None
    ) -> list[Delta]:
        """``stream.feed`` for many ids, with turns for others in between."""
        if self.derenderer.depends_on_chunks:
            return stream.feed(ids, finish, stop)
        out: list[Delta] = []

        def pieces() -> Iterator[None]:
            last = max(0, (len(ids) - 1) // PIECE) * PIECE
            for start in range(0, last, PIECE):
                out.extend(stream.feed(ids[start : start + PIECE]))
                yield
            out.extend(stream.feed(ids[last:], finish, stop))

        if len(ids) <= LONG:
            out = stream.feed(ids, finish, stop)
        else:
            await self.in_turn(pieces())
        return out

    async def in_turn(self, work: Iterator[None]) -> None:
        """Run ``work`` in slices of a millisecond, of which the event loop gets one per turn: live chunks go first."""
        clock = time.perf_counter
        while True:
            async with self._turn:
                await asyncio.sleep(0)
                end = clock() + SLICE
                for _ in work:
                    if clock() >= end:
                        break
                else:
                    return


class _Requests:
    """Parsed requests by the digest of their JSON; the oldest go first, and are parsed again if need be.

    A dict, since a lookup is part of every chunk and costs a tenth of one in a cache that orders by use.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[Asked, int]] = {}
        self._weight = 0

    def get(self, key: bytes) -> Asked | None:
        found = self._found.get(key)
        return None if found is None else found[0]

    def add(self, key: bytes, asked: Asked, size: int) -> None:
        # a parsed request is several times its JSON, and never less than a page
        weight = 4 * size + 4096
        while self._found and self._weight + weight > MAX_REQUEST_BYTES:
            self._weight -= self._found.pop(next(iter(self._found)))[1]
        if weight <= MAX_REQUEST_BYTES:
            self._found[key] = asked, weight
            self._weight += weight
