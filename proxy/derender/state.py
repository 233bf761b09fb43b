"""``stream_state``: what a client carries from one derender call to the next.

vLLM's fields, so that a stream can move between the two servers at any chunk, and ours behind them:

- ``created``: the time of the first chunk, ``finished`` and ``ended`` (only where true): an answer must not depend on
  whether it comes from a live stream or from a replay.
- ``derender``: ``KIND PAYLOAD.DIGEST.MAC``. KIND is ``f`` (full: the ids are carried too) or ``c`` (compact), PAYLOAD a
  snapshot of the stream (base64 of msgpack; empty where it would be large and a replay is possible), DIGEST the rolling
  digest of ids and chunk lengths, MAC keyed blake2b over all of it, over the ids as they are written, and over the
  *binding*: the digest of everything else that an answer depends on. It is the last field, so that it can be found
  without decoding.

A state is written as ``head ids MID lens tail``. That the client echoes the very bytes is likely and never needed: what
it sends in another spelling is written again our way, and compared then. In a compact state the chunk lengths do not
sum to the ids, so that a vLLM server refuses it instead of going on from nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from proxy.errors import RequestError
from proxy.protocol.decode import in_our_words

MAX_WINDOW = 1024  # vLLM's bound on prev_tokens
CONTEXT = 4  # sampled ids kept for the logprobs of the next chunk, as in vLLM
MAX_CALL_IDS = 65536  # a call takes several tokens; this only keeps a forged list from being long
MAX_OFFSET = 2**53  # what every JSON reader takes for an integer
# Text held back makes a snapshot large; where the ids are carried too, a replay costs less than carrying that text.
MAX_FULL_PAYLOAD = 8192

FULL, COMPACT = "f", "c"
MID = b'],"output_chunk_lens":['
_BLANKS = b" \t\r\n"
_EMPTY = msgspec.Raw(b"[]")

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class Fields(msgspec.Struct):
    """The fields of a state as a client sends them."""

    prev_tokens: list[str] = []
    prefix_offset: int = 0
    read_offset: int = 0
    role_sent: bool = False
    logprob_context_token_ids: list[int] = []
    logprob_text_offset: int = 0
    output_token_ids: msgspec.Raw = _EMPTY
    output_chunk_lens: msgspec.Raw = _EMPTY
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []
    created: int | None = None
    finished: bool = False
    ended: bool = False
    derender: str | None = None


_decode = msgspec.json.Decoder(Fields).decode


class Token(NamedTuple):
    """Field ``derender``, split and not believed: each part is base64 text."""

    kind: str
    payload: str
    digest: str
    mac: str


class Claim:
    """A carried state, decoded but for its lists of ids. ``ids`` and ``lens``: these as written, without blanks."""

    __slots__ = ("fields", "token", "head", "ids", "lens", "tail")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.token = split_token(fields.derender)
        self.ids = _inside(fields.output_token_ids, "output_token_ids")
        self.lens = _inside(fields.output_chunk_lens, "output_chunk_lens")
        self.head = head_bytes(
            fields.prev_tokens,
            fields.read_offset,
            fields.role_sent,
            fields.logprob_context_token_ids,
            fields.logprob_text_offset,
            fields.prefix_offset,
        )
        self.tail = tail_bytes(
            fields.tools_streamed,
            fields.last_tool_call_ids,
            fields.created,
            fields.finished,
            fields.ended,
            fields.derender,
        )

    @property
    def compact(self) -> bool:
        return self.token is not None and self.token.kind == COMPACT

    @property
    def count(self) -> int:
        """How many output ids are carried."""
        return self.ids.count(b",") + 1 if self.ids else 0

    def written(self) -> bytes:
        """The state as we write it."""
        return b"".join((self.head, self.ids, MID, self.lens, self.tail))

    def lists(self, limit: int | None) -> tuple[list[int], list[int]]:
        """The ids and the chunk lengths, which add up. ``limit``: how many there may be; checked before decoding."""
        at = "stream_state.output_token_ids"
        if limit is not None and self.count > limit:
            raise RequestError(f"`{at}` has {self.count} ids, more than max_model_len ({limit}).", param=at)
        ids = _ints(self.fields.output_token_ids, at)
        at = "stream_state.output_chunk_lens"
        if self.lens.count(b",") >= max(1, len(ids)):
            raise RequestError(f"`{at}` has more entries than there are ids.", param=at)
        lens = _ints(self.fields.output_chunk_lens, at)
        if lens and min(lens) <= 0:
            raise RequestError(f"`{at}` must be positive.", param=at)
        if sum(lens) != len(ids):
            raise RequestError(
                f"`{at}` must sum to the number of output_token_ids (sum {sum(lens)}, ids {len(ids)}).", param=at
            )
        return ids, lens


def parse_state(raw: bytes | msgspec.Raw) -> Claim:
    """The carried state in ``raw``; raises RequestError for what no server can have made."""
    at = "stream_state"
    try:
        fields = _decode(raw)
    except msgspec.ValidationError as error:
        raise in_our_words(str(error), at) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("The request body is not valid JSON.") from error
    for name, most in (
        ("prev_tokens", MAX_WINDOW),
        ("logprob_context_token_ids", CONTEXT),
        ("last_tool_call_ids", MAX_CALL_IDS),
    ):
        if len(getattr(fields, name)) > most:
            raise RequestError(f"`{at}.{name}` may have at most {most} entries.", param=f"{at}.{name}")
    for name, highest in (
        ("logprob_text_offset", MAX_OFFSET),
        ("read_offset", len(fields.prev_tokens)),
        ("prefix_offset", fields.read_offset),
        ("created", MAX_OFFSET),
    ):
        if not 0 <= (getattr(fields, name) or 0) <= highest:
            raise RequestError(f"`{at}.{name}` must be between 0 and {highest}.", param=f"{at}.{name}")
    return Claim(fields)


def _inside(raw: msgspec.Raw, name: str) -> bytes:
    """What is between the brackets of a JSON array of numbers, without blanks."""
    text = bytes(raw)
    if not text.startswith(b"["):
        raise RequestError(f"`stream_state.{name}` must be an array.", param=f"stream_state.{name}")
    return text[1:-1].translate(None, _BLANKS)


def _ints(raw: msgspec.Raw, at: str) -> list[int]:
    try:
        return msgspec.json.decode(raw, type=list[int])
    except msgspec.ValidationError as error:
        raise in_our_words(str(error), at) from error


# -- writing ---------------------------------------------------------------------------------------------------


def head_bytes(
    tokens: Sequence[str], read: int, role_sent: bool, context: Sequence[int], offset: int, prefix: int = 0
) -> bytes:
    """Everything in front of the ids."""
    return (
        b'{"prev_tokens":%s,"prefix_offset":%d,"read_offset":%d,"role_sent":%s,"logprob_context_token_ids":%s,'
        b'"logprob_text_offset":%d,"output_token_ids":['
    ) % (
        _encode(tokens) if tokens else b"[]",
        prefix,
        read,
        b"true" if role_sent else b"false",
        _encode(context),
        offset,
    )


def tail_bytes(
    tools_streamed: bool, call_ids: Sequence[str], created: int | None, finished: bool, ended: bool, token: str | None
) -> bytes:
    """Everything behind the chunk lengths."""
    return b'],"tools_streamed":%s,"last_tool_call_ids":%s%s%s%s%s}' % (
        b"true" if tools_streamed else b"false",
        _encode(call_ids) if call_ids else b"[]",
        b"" if created is None else b',"created":%d' % created,
        b',"finished":true' if finished else b"",
        b',"ended":true' if ended else b"",
        b"" if token is None else b',"derender":' + _encode(token),
    )


# -- the token -------------------------------------------------------------------------------------------------


def split_token(token: str | None) -> Token | None:
    """The parts of field ``derender``; None where it is none of ours."""
    if not token or token[0] not in (FULL, COMPACT):
        return None
    parts = token[1:].split(".")
    return Token(token[0], *parts) if len(parts) == 3 else None


def claimed_digest(raw: bytes) -> bytes | None:
    """The digest in a state that ends as ours do, found without decoding; None for any other spelling."""
    # ..."derender":"f<payload>.<24 characters>.<24 characters>"}
    if raw[-2:] == b'"}' and raw[-27:-26] == b"." and raw[-52:-51] == b".":
        return raw[-51:-27]
    return None


def roll(digest: bytes, ids: bytes) -> bytes:
    """The rolling digest (16 bytes) behind one more chunk, whose ids are written ``ids``."""
    return hashlib.blake2b(digest + ids, digest_size=16).digest()


FIRST_DIGEST = bytes(16)


class Seal:
    """Writes and checks the MAC with ``key`` (up to 64 bytes)."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"stream_state").digest()

    def write(self, kind: str, binding: bytes, digest: bytes, payload: bytes, lists: bytes) -> str:
        """The token. ``lists``: digests of the ids and lengths as written, empty in compact states."""
        mac = self._mac(kind, binding, digest, payload, lists)
        return (
            f"{kind}{b2a_base64(payload, newline=False).decode()}.{b2a_base64(digest, newline=False).decode()}"
            f".{b2a_base64(mac, newline=False).decode()}"
        )

    def read(self, token: Token, binding: bytes, lists: bytes) -> tuple[bytes, bytes] | None:
        """Payload and digest, or None: not sealed by this key, or for something else. Nothing is decoded before."""
        try:
            payload, digest, mac = (a2b_base64(part, strict_mode=True) for part in token[1:])
        except (Base64Error, ValueError):
            return None
        if len(digest) != 16 or not hmac.compare_digest(mac, self._mac(token.kind, binding, digest, payload, lists)):
            return None
        return payload, digest

    def _mac(self, kind: str, binding: bytes, digest: bytes, payload: bytes, lists: bytes) -> bytes:
        # every part but the last has a length of its own
        data = b"".join((kind.encode(), binding, digest, b"%d:" % len(lists), lists, payload))
        return hashlib.blake2b(data, digest_size=16, key=self._key).digest()


def pack(position: int, unfed: list[int], saved: list[Any]) -> bytes:
    """The payload of a snapshot."""
    return _pack((position, unfed, saved))


def unpack(payload: bytes) -> tuple[int, list[int], list[Any]]:
    """Raises ValueError; only to be called with what the seal has vouched for."""
    try:
        position, unfed, saved = _unpack(payload)
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        raise ValueError("no snapshot") from error
    if type(position) is not int or not isinstance(unfed, list) or not isinstance(saved, list):
        raise ValueError("no snapshot")
    return position, unfed, saved


def digest_of(text: bytes | bytearray) -> Any:
    """A hash object over ``text``, that more can be added to."""
    return hashlib.blake2b(text, digest_size=16)
