"""Three ways back to a stream that is not in memory: its snapshot, its window, a replay of its ids.

All give the stream that a live one would be (see ``ChatStream``), so that an answer does not tell which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proxy.derender import state
from proxy.derender.live import Live
from proxy.derender.state import FULL, Claim, Seal
from proxy.derender.vocabulary import Vocabulary
from proxy.derender.window import Window, unfinished
from proxy.errors import RequestError

# ids between two looks at the clock; feeding so many takes 0.05 ms
STRIDE = 48


def from_snapshot(live: Live, claim: Claim, seal: Seal) -> bool:
    """Make ``live`` (fresh) go on from the snapshot in ``claim``.

    False, and ``live`` is spoilt: there is no snapshot, it is not sealed by us, or for another stream.
    """
    token = claim.token
    if token is None:
        return False
    lists = b""
    if token.kind == FULL:
        lists = state.digest_of(claim.ids).digest() + state.digest_of(claim.lens).digest()
    opened = seal.read(token, live.binding, lists)
    if opened is None or not opened[0]:
        return False
    try:
        position, live.unfed, saved = state.unpack(opened[0])
        live.stream.load(saved)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False  # it was sealed, so it is ours: perhaps of another version
    live.carry(claim, position, opened[1])
    return True


def from_window(live: Live, claim: Claim, vocabulary: Vocabulary, skip_special: bool) -> None:
    """Make ``live``, a stream of plain text, go on from vLLM's decode window. The position is not known then.

    Raises RequestError for a window that is not of this vocabulary.
    """
    fields = claim.fields
    if not all(map(vocabulary.spells, fields.prev_tokens)):
        at = "stream_state.prev_tokens"
        raise RequestError(f"`{at}` has tokens that are not of this model's vocabulary.", param=at)
    window = Window.carried(vocabulary, skip_special, fields.prev_tokens, fields.prefix_offset, fields.read_offset)
    live.window = window
    if fields.prev_tokens or fields.logprob_context_token_ids:  # else nothing has been decoded yet
        ids = [vocabulary.id_of(vocabulary.token_bytes(token)) for token in window.tokens[window.read :]]
        live.unfed = [token_id for token_id in ids if token_id is not None]
        if len(live.unfed) < len(ids):  # tokens of somebody's own making
            live.unfed = []
        live.stream.resume(b"" if live.unfed else window.pending, fields.ended)
    live.carry(claim, 0, state.roll(state.FIRST_DIGEST, claim.head))


def replay(
    live: Live, claim: Claim, ids: list[int], lens: Sequence[int], vocabulary: Vocabulary, whole: bool
) -> Iterator[None]:
    """Feed ``live`` (fresh) all ids again, in their chunks; yields every so often, so that others get their turn.

    ``whole``: the parser looks at how ids are cut, so that a long chunk must not be fed in pieces.
    """
    feed, roll = live.stream.feed, state.roll
    written = claim.ids.split(b",")
    digest = state.FIRST_DIGEST
    start = done = 0
    fed = len(ids) - (0 if whole else unfinished(vocabulary, ids))
    live.unfed = ids[fed:]
    for length in lens:
        end = start + length
        if length == 1:
            if start < fed:
                feed((ids[start],))
            digest = roll(digest, written[start])
        else:
            stride = length if whole else STRIDE
            for begin in range(start, end, stride):
                feed(ids[begin : min(begin + stride, end, fed)])
                if length > stride:
                    yield
            digest = roll(digest, b",".join(written[start:end]))
        start = end
        done += length
        if done >= STRIDE:
            done = 0
            yield
    live.carry(claim, len(ids), digest)
