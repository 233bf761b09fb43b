"""SGLang's ``/generate`` in the simulated engine: all ids with every event, or (``incremental``) the new ones."""

from __future__ import annotations

import json
from typing import Any

from proxy.simulator.frames import Writer, dumps, logprob_entry, spans
from proxy.simulator.model import Model
from proxy.simulator.options import Options
from proxy.simulator.script import Answer, Behaviour
from proxy.simulator.validation import Query, Refusal

DEFAULT_NEW_TOKENS = 128
SAMPLING = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "custom_params": "extra_args",
    **{
        name: name
        for name in (
            *("n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "stop_token_ids", "ignore_eos", "logit_bias", "stop"),
        )
    },
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), ""),  # taken, of no effect here
}


def translate(body: dict[str, Any]) -> dict[str, Any]:
    """As a request of vLLM's generate. Raises Refusal for sampling parameters that SGLang does not have."""
    given = body.get("sampling_params") or {}
    for name in given:
        if name not in SAMPLING:
            raise Refusal(f"SamplingParams.__init__() got an unexpected keyword argument '{name}'")
    params = {SAMPLING[name]: value for name, value in given.items() if SAMPLING[name] and value is not None}
    if "max_new_tokens" not in given:
        params["max_tokens"] = DEFAULT_NEW_TOKENS
    if body.get("return_logprob"):
        params["logprobs"] = body.get("top_logprobs_num") or 0
        if body.get("logprob_start_len") == 0:
            params["prompt_logprobs"] = params["logprobs"]
    if params.get("n", 1) > 1 and isinstance(body.get("rid"), str):
        raise Refusal("The rid should be a list for batch processing.")
    return {
        "token_ids": body.get("input_ids"),
        "sampling_params": params,
        "stream": bool(body.get("stream")),
        "request_id": body.get("rid"),
    }


def error_body(refusal: Refusal) -> bytes:
    return dumps({"error": {"message": refusal.error["message"]}})


class SGLangWriter(Writer):
    """Events have no usage of their own; counts are in ``meta_info``."""

    incremental: bool
    engine_id: str
    scripts: dict[int, list[int]]
    n: int

    @classmethod
    def for_query(
        cls, body: dict[str, Any], query: Query, behaviour: Behaviour, model: Model, options: Options
    ) -> SGLangWriter:
        writer = cls(
            prompt=query.token_ids,
            vocab_size=model.vocab_size,
            logprobs=query.params.get("logprobs"),
            cached=behaviour.cached_tokens,
            pad_bytes=behaviour.pad_bytes,
            finish_alone=behaviour.finish_alone,
        )
        writer.incremental = options.incremental
        writer.engine_id = ""
        writer.scripts = {}
        writer.n = query.n
        return writer

    def head(self, engine_id: str) -> bytes:
        self.engine_id = engine_id
        return b"data: {"

    def tails(self, index: int, answer: Answer) -> list[bytes]:
        self.scripts[index] = answer.ids
        done = 0
        tails = []
        for length, last in spans(answer.lengths, self.finish_alone):
            start = done if self.incremental else 0
            done += length
            tails.append(self._event(index, answer, start, done, last))
        return tails

    def _event(self, index: int, answer: Answer, start: int, done: int, last: bool) -> bytes:
        body: dict[str, Any] = {
            "output_ids": answer.ids[start:done],
            "meta_info": self._meta(index, answer, start, done, last),
        }
        if self.n > 1:
            body["index"] = index
        if self.pad_bytes:
            body["padding"] = "x" * self.pad_bytes
        return dumps(body)[1:] + b"\n\n"

    def _meta(self, index: int, answer: Answer, start: int, done: int, last: bool) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.engine_id if self.n == 1 else f"{self.engine_id}{index:02x}",
            "finish_reason": _finish(answer) if last else None,
            "prompt_tokens": len(self.prompt),
            "weight_version": "default",
            "completion_tokens": done,
            "cached_tokens": min(self.cached or 0, len(self.prompt)),
        }
        if self.k is not None:
            entries = [
                logprob_entry(token, start + at, self.k, self.vocab_size)
                for at, token in enumerate(answer.ids[start:done])
            ]
            meta["output_token_logprobs"] = [_triple(entry) for entry in entries]
            meta["output_token_logprobs_length"] = done
            if self.k:
                meta["output_top_logprobs"] = [_best(entry, self.k) for entry in entries]
        if last:
            meta["e2e_latency"] = 0.05
        return meta

    def usage_tail(self, counts: list[int]) -> bytes:
        raise AssertionError("SGLang's generate has no usage event")

    def abort_tail(self, index: int, total: int) -> bytes:
        finish = {"type": "abort", "message": "Abort in the simulated engine", "status_code": None, "err_type": None}
        return self._closing(index, total, finish)

    def _closing(self, index: int, total: int, finish: dict[str, Any]) -> bytes:
        meta = {
            "id": self.engine_id if self.n == 1 else f"{self.engine_id}{index:02x}",
            "finish_reason": finish,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": total,
            "cached_tokens": 0,
        }
        ids = [] if self.incremental else self.scripts.get(index, [])[:total]
        body: dict[str, Any] = {"output_ids": ids, "meta_info": meta}
        if self.n > 1:
            body["index"] = index
        return dumps(body)[1:] + b"\n\n"

    def full(self, engine_id: str, model: str, answers: list[Answer], prompt_logprobs: int | None) -> bytes:
        self.engine_id = engine_id
        bodies = []
        for index, answer in enumerate(answers):
            meta = self._meta(index, answer, 0, len(answer.ids), True)
            if prompt_logprobs is not None:
                entries = [
                    logprob_entry(token, at, prompt_logprobs, self.vocab_size) for at, token in enumerate(self.prompt)
                ]
                own: list[Any] = [_triple(entry) for entry in entries]
                own[0][0] = None
                best: list[Any] = [_best(entry, prompt_logprobs) for entry in entries]
                meta["input_token_logprobs"], meta["input_top_logprobs"] = own, [None, *best[1:]]
            bodies.append({"output_ids": answer.ids, "meta_info": meta})
        return dumps(bodies[0] if self.n == 1 else bodies)

    def error_body(self, refusal: Refusal) -> bytes:
        return error_body(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        """Checks that fail are errors; a failure of the engine is an abort with a status."""
        if refusal.status == 400:
            return b"data: " + error_body(refusal) + b"\n\n"
        finish = {
            "type": "abort",
            "message": refusal.error["message"],
            "status_code": refusal.status,
            "err_type": "InternalServerError",
        }
        return b"data: {" + self._closing(0, 0, finish)


def _finish(answer: Answer) -> dict[str, Any]:
    match answer.finish_reason:
        case "length":
            return {"type": "length", "length": len(answer.ids)}
        case "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return {"type": answer.finish_reason, "matched": answer.stop_reason}


def _triple(entry: dict[str, Any]) -> list[Any]:
    return [entry["logprob"], entry["token_id"], None]


def _best(entry: dict[str, Any], k: int) -> list[list[Any]]:
    """The ``k`` best candidates by rank."""
    best = sorted(entry["top_logprobs"], key=lambda candidate: int(candidate["rank"]))
    return [_triple(candidate) for candidate in best if candidate["rank"] <= k]


def server_info(options: Options) -> bytes:
    return json.dumps({"skip_tokenizer_init": True, "incremental_streaming_output": options.incremental}).encode()
