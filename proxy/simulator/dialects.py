"""How the simulated engine is spoken to, and speaks: one row per kind of server (``--dialect``).

A request of any dialect is brought into the shape of vLLM's generate, checked and scripted as such, and answered by
the dialect's own writer. Fields that the real server would refuse are refused, so that a proxy that sends them fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.simulator import completions, sglang
from proxy.simulator.frames import Writer
from proxy.simulator.model import Model
from proxy.simulator.options import Options
from proxy.simulator.script import Behaviour
from proxy.simulator.validation import Query, Refusal

Fields = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """``translate``: a body into one of vLLM's generate; raises Refusal. ``refusal``: the body of an error.

    ``abort``: route, and field of its body that names the request. ``owner`` is what the list of models says;
    ``lengths``: whether it tells the context length.
    """

    owner: str
    route: str
    translate: Callable[[Fields], Fields]
    refusal: Callable[[Refusal], bytes]
    writer: Callable[[Fields, Query, Behaviour, Model, Options], Writer]
    abort: tuple[str, str] | None = None
    lengths: bool = True
    id_prefix: str = ""


def _as_it_is(body: Fields) -> Fields:
    return body


def _vllm_writer(body: Fields, query: Query, behaviour: Behaviour, model: Model, options: Options) -> Writer:
    return Writer(
        prompt=query.token_ids,
        vocab_size=model.vocab_size,
        lean=options.lean,
        logprobs=query.params.get("logprobs"),
        continuous=query.continuous_usage,
        cached=behaviour.cached_tokens,
        echo_ids=query.return_token_ids,
        pad_bytes=behaviour.pad_bytes,
        finish_alone=behaviour.finish_alone,
    )


DIALECTS = {
    "vllm": Dialect(
        owner="vllm",
        route="/inference/v1/generate",
        translate=_as_it_is,
        refusal=Refusal.body,
        writer=_vllm_writer,
        id_prefix="generate-tokens-",
    ),
    "sglang": Dialect(
        owner="sglang",
        route="/generate",
        translate=sglang.translate,
        refusal=sglang.error_body,
        writer=sglang.SGLangWriter.for_query,
        abort=("/abort_request", "rid"),
    ),
    "vllm-completions": Dialect(
        owner="vllm",
        route="/v1/completions",
        translate=completions.from_vllm,
        refusal=Refusal.body,
        writer=completions.VLLMWriter.for_query,
        id_prefix="cmpl-",
    ),
    "sglang-completions": Dialect(
        owner="sglang",
        route="/v1/completions",
        translate=completions.from_sglang,
        refusal=completions.flat_error,
        writer=completions.SGLangWriter.for_query,
        abort=("/abort_request", "rid"),
    ),
    "tensorrt-llm": Dialect(
        owner="tensorrt_llm",
        route="/v1/completions",
        translate=completions.from_tensorrt,
        refusal=completions.flat_error,
        writer=completions.TensorRTWriter.for_query,
        lengths=False,
        id_prefix="cmpl-",
    ),
}


def parsed(dialect: Dialect, body: bytes) -> tuple[Fields, bytes]:
    """The fields of ``body`` and the body for ``check``; what is no object is left to that."""
    if dialect.translate is _as_it_is:
        return {}, body
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise Refusal("The body is not a JSON object.")
    return fields, json.dumps(dialect.translate(fields)).encode()
