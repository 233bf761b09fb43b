"""Events of a stream and answers in one piece, as vLLM 0.33 writes them (or leaner, as its Rust frontend does).

Everything of an event but the request id depends on the answer alone, so that a repeated answer costs one ``join``.
"""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import Any

from proxy.simulator.script import Answer
from proxy.simulator.validation import Refusal

DONE = b"data: [DONE]\n\n"
_HEAD = b'data: {"request_id":"'


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Writer:
    """Writes the events of one request. ``k`` logprobs per token (None: none), usage in every event if continuous."""

    def __init__(
        self,
        *,
        prompt: list[int],
        vocab_size: int,
        lean: bool = False,
        logprobs: int | None = None,
        continuous: bool = False,
        cached: int | None = None,
        echo_ids: bool = False,
        pad_bytes: int = 0,
        finish_alone: bool = False,
    ) -> None:
        self.prompt = prompt
        self.vocab_size = vocab_size
        self.lean = lean
        self.k = logprobs
        self.continuous = continuous
        self.cached = cached
        self.echo_ids = echo_ids
        self.pad_bytes = pad_bytes
        self.finish_alone = finish_alone

    def head(self, engine_id: str) -> bytes:
        """How every event of a request begins; ``tails`` are what follows."""
        return _HEAD + json.dumps(engine_id)[1:-1].encode()

    def error_body(self, refusal: Refusal) -> bytes:
        """The body of an answer that is an error."""
        return refusal.body()

    def error_event(self, refusal: Refusal) -> bytes:
        """The whole event of an error in the stream."""
        return refusal.event()

    def abort_tail(self, index: int, total: int) -> bytes:
        """The event of a choice that was aborted after ``total`` ids."""
        return _tail(index, [], ("abort", None), total, self.lean, None, None)

    def tails(self, index: int, answer: Answer) -> list[bytes]:
        """The events of choice ``index``, each without its ``head``."""
        if self.k is None and not self.continuous and not self.pad_bytes and not (self.echo_ids and index == 0):
            cause = answer.stop_reason
            return list(
                _plain(
                    *(index, tuple(answer.ids), tuple(answer.lengths), answer.finish_reason, cause),
                    *(self.lean, self.finish_alone),
                )
            )
        done = 0
        tails: list[bytes] = []
        for length, last in spans(answer.lengths, self.finish_alone):
            ids = answer.ids[done : done + length]
            logprobs = (
                [logprob_entry(token, done + i, self.k, self.vocab_size) for i, token in enumerate(ids)]
                if (self.k is not None)
                else None
            )
            done += length
            usage = self.usage([done], nulls=True) if self.continuous else None
            finish = (answer.finish_reason, answer.stop_reason) if last else None
            tail = _tail(index, ids, finish, done, self.lean, usage, logprobs)
            if self.echo_ids and index == 0 and not tails:
                # Of the first event only, and ahead of output_mode, as the engine orders them.
                key = b',"choices"' if self.lean else b',"output_mode"'
                tail = tail.replace(key, b',"prompt_token_ids":' + dumps(self.prompt) + key, 1)
            if self.pad_bytes:
                tail = tail[:-3] + b',"padding":"' + b"x" * self.pad_bytes + b'"}\n\n'
            tails.append(tail)
        return tails

    def usage(self, counts: list[int], *, nulls: bool) -> dict[str, Any]:
        prompt, completion = len(self.prompt), sum(counts)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": min(self.cached, prompt)}
        elif nulls:
            usage["prompt_tokens_details"] = None
        if nulls:
            usage["completion_tokens_details"] = None
        return usage

    def usage_tail(self, counts: list[int]) -> bytes:
        """The last event, which leaves nulls out."""
        usage = dumps(self.usage(counts, nulls=False))
        return b'","usage":' + usage + (b"" if self.lean else b',"output_mode":"tokens"') + b',"choices":[]}\n\n'

    def prompt_logprobs(self, k: int) -> list[Any]:
        """One entry a prompt token, the first of them null; by id, the prompt's own first."""
        entries = [logprob_entry(token, at, k, self.vocab_size) for at, token in enumerate(self.prompt)]
        return [None] + [
            {
                str(top["token_id"]): {"logprob": top["logprob"], "rank": top["rank"], "decoded_token": None}
                for top in position["top_logprobs"]
            }
            for position in entries[1:]
        ]

    def full(self, engine_id: str, model: str, answers: list[Answer], prompt_logprobs: int | None) -> bytes:
        """The answer in one piece."""
        choices = []
        for index, answer in enumerate(answers):
            entries = (
                None
                if self.k is None
                else [logprob_entry(token, at, self.k, self.vocab_size) for at, token in enumerate(answer.ids)]
            )
            finish = (answer.finish_reason, answer.stop_reason)
            choices.append(_choice(index, answer.ids, finish, len(answer.ids), entries))
        prompt = None if prompt_logprobs is None else self.prompt_logprobs(prompt_logprobs)
        body = {
            "request_id": engine_id,
            "model": model,
            "created": int(time.time()),
            "usage": self.usage([len(answer.ids) for answer in answers], nulls=True),
            "prompt_logprobs": prompt,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": self.prompt if self.echo_ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": choices,
        }
        return dumps(body)


def spans(lengths: list[int] | tuple[int, ...], finish_alone: bool) -> list[tuple[int, bool]]:
    """Length of each event and whether it finishes; an answer without ids is one empty event."""
    spans = [(length, False) for length in lengths]
    if finish_alone or not spans:
        return [*spans, (0, True)]
    return [*spans[:-1], (spans[-1][0], True)]


@lru_cache(maxsize=512)
def _plain(
    index: int,
    ids: tuple[int, ...],
    lengths: tuple[int, ...],
    finish: str,
    cause: int | str | None,
    lean: bool,
    finish_alone: bool,
) -> tuple[bytes, ...]:
    done = 0
    tails: list[bytes] = []
    for length, last in spans(lengths, finish_alone):
        part = list(ids[done : done + length])
        done += length
        tails.append(_tail(index, part, (finish, cause) if last else None, done, lean, None, None))
    return tuple(tails)


def _choice(
    index: int, ids: list[int], finish: tuple[str, int | str | None] | None, total: int, logprobs: list[Any] | None
) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": finish[0] if finish else None,
        "stop_reason": finish[1] if finish else None,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": [{"version": "default", "start": 0, "end": total}] if finish else None,
        "logprobs": None if logprobs is None else {"content": logprobs},
    }


def _tail(
    index: int,
    ids: list[int],
    finish: tuple[str, int | str | None] | None,
    total: int,
    lean: bool,
    usage: dict[str, Any] | None,
    logprobs: list[Any] | None,
) -> bytes:
    choice = _choice(index, ids, finish, total, logprobs)
    if lean:
        choice = {name: value for name, value in choice.items() if value is not None}
        start = b'",' + (b'"usage":' + dumps(usage) + b"," if usage else b"") + b'"choices":['
    else:
        start = b'","usage":' + dumps(usage) + b',"output_mode":"tokens","choices":['
    return start + dumps(choice) + b"]}\n\n"


def logprob_entry(token: int, position: int, k: int, vocab_size: int) -> dict[str, Any]:
    """Made-up logprobs of ``token``: a function of id and position, falling with the rank.

    Most tokens rank first, some third. As in vLLM the sampled token comes first, then the k best without it.
    """
    rank = 3 if (token + position) % 5 == 4 else 1

    def candidate(at: int) -> dict[str, Any]:
        token_id = token if at == rank else (token + (at - rank) * 7_919) % vocab_size
        return {"token_id": token_id, "logprob": -0.25 * at - (token + position) % 16 / 64, "rank": at}

    sampled = candidate(rank)
    others = [candidate(at) for at in range(1, k + 1) if at != rank]
    return {**sampled, "top_logprobs": [sampled, *others]}
