"""Derender answers in one piece: a whole generate response in, the chat or text completion out, by the same core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.derender.logprobs import LogprobFormatter
from proxy.derender.message import MessageBuilder
from proxy.errors import RequestError
from proxy.protocol import derender as wire
from proxy.protocol.derender import NULL, WholeChatCall, WholeChoice, WholeCompletionCall, WholeResponse
from proxy.routes.context import Parts
from proxy.routes.derender_tier import PARSER_NEEDS_REQUEST, Asked, Tier
from proxy.routes.sse_chunks import completion_logprobs

# vLLM's bound on choices and on responses (VLLM_MAX_N_SEQUENCES).
MAX_SEQUENCES = 16384


async def answer(parts: Parts, body: bytes, chat: bool) -> bytes:
    """The JSON of a ``chat.completion`` or ``text_completion``; raises RequestError."""
    return await (_chat(parts, body) if chat else _completion(parts, body))


async def _chat(parts: Parts, body: bytes) -> bytes:
    call = wire.parse_whole(body, WholeChatCall)
    tier = parts.tier
    asked = tier.asked_chat(call.chat_request)
    model, _ = await parts.models.resolve(call.model)
    response = call.generate_response
    _check(parts, response, "generate_response")
    _check_prompt(parts, call.prompt_token_ids, "prompt_token_ids")
    if tier.derenderer.parses and bytes(call.chat_request) == NULL:
        raise RequestError(PARSER_NEEDS_REQUEST, param="chat_request")
    prompt = call.prompt_token_ids if call.prompt_token_ids is not None else response.prompt_token_ids
    choices = []
    for n, choice in enumerate(response.choices):
        ids = _ids(choice, f"generate_response.choices[{n}]")
        message = await _message(tier, True, asked, response.request_id or "", choice, ids, prompt)
        told: dict[str, Any] = {
            "role": "assistant",
            "content": message.content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if message.tool_calls:
            told["tool_calls"] = [
                {
                    "id": made["id"],
                    "type": "function",
                    "function": {"name": made["name"], "arguments": made["arguments"]},
                }
                for made in message.tool_calls
            ]
        field = parts.settings.reasoning_field
        if field != "reasoning_content":
            told["reasoning"] = message.reasoning
        if field != "reasoning":
            told["reasoning_content"] = message.reasoning
        choices.append(
            {
                "index": choice.index,
                "message": told,
                "logprobs": None if message.logprobs is None else {"content": message.logprobs},
                "finish_reason": message.finish_reason,
                "stop_reason": message.stop_reason,
                "token_ids": ids if asked.return_token_ids else None,
                "routed_experts": None,
                "weight_versions": None,
            }
        )
    return wire.dumps(
        {
            "id": response.request_id or "",
            "object": "chat.completion",
            "created": response.created or 0,
            "model": model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(call.prompt_tokens or 0, [response]),
            "prompt_logprobs": response.prompt_logprobs,
            "prompt_token_ids": response.prompt_token_ids if asked.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": response.kv_transfer_params,
            "ec_transfer_params": None,
            "metrics": response.metrics,
        }
    )


async def _completion(parts: Parts, body: bytes) -> bytes:
    call = wire.parse_whole(body, WholeCompletionCall)
    tier = parts.tier
    asked = tier.asked_completion(call.completion_request)
    model, _ = await parts.models.resolve(call.model)
    responses = call.generate_responses
    if not responses:
        raise RequestError("generate_responses must not be empty", param="generate_responses")
    if len(responses) > MAX_SEQUENCES:
        raise RequestError(
            f"generate_responses count ({len(responses)}) exceeds server maximum ({MAX_SEQUENCES}).",
            param="generate_responses",
        )
    for name in ("prompt_tokens", "prompt_token_ids"):
        given = getattr(call, name)
        if given is not None and len(given) != len(responses):
            raise RequestError(
                f"{name} length ({len(given)}) must equal generate_responses length ({len(responses)})", param=name
            )
    for n, response in enumerate(responses):
        _check(parts, response, f"generate_responses[{n}]")
        if call.prompt_token_ids is not None:
            _check_prompt(parts, call.prompt_token_ids[n], f"prompt_token_ids[{n}]")
    choices: list[dict[str, Any]] = []
    for n, response in enumerate(responses):
        prompt = call.prompt_token_ids[n] if call.prompt_token_ids is not None else None
        if prompt is None:
            prompt = response.prompt_token_ids
        for m, choice in enumerate(response.choices):
            ids = _ids(choice, f"generate_responses[{n}].choices[{m}]")
            message = await _message(tier, False, asked, response.request_id or "", choice, ids, prompt)
            logprobs = None if message.logprobs is None else completion_logprobs(message.logprobs, 0)
            choices.append(
                {
                    "index": len(choices),
                    "text": message.content or "",
                    "logprobs": logprobs,
                    "finish_reason": message.finish_reason,
                    "stop_reason": message.stop_reason,
                    "token_ids": ids if asked.return_token_ids else None,
                    "prompt_logprobs": None,
                    "prompt_token_ids": response.prompt_token_ids if asked.return_token_ids else None,
                    "routed_experts": None,
                    "weight_versions": None,
                }
            )
    transfers = {bytes(response.kv_transfer_params) for response in responses}
    first = responses[0]
    return wire.dumps(
        {
            "id": first.request_id or "",
            "object": "text_completion",
            "created": first.created or 0,
            "model": model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(sum(call.prompt_tokens or ()), responses),
            "kv_transfer_params": first.kv_transfer_params if len(transfers) == 1 else None,
            "ec_transfer_params": None,
            "metrics": first.metrics if len(responses) == 1 else None,
        }
    )


def _check(parts: Parts, response: WholeResponse, at: str) -> None:
    """The bounds of one response, all of them before anything is decoded."""
    if len(response.choices) > MAX_SEQUENCES:
        raise RequestError(
            f"choices count ({len(response.choices)}) exceeds server maximum ({MAX_SEQUENCES}).",
            param=f"{at}.choices",
        )
    limit, size = parts.models.max_model_len, parts.tier.vocab_size
    for n, choice in enumerate(response.choices):
        here = f"{at}.choices[{n}]"
        ids = choice.token_ids or []
        if limit is not None and len(ids) > limit:
            raise RequestError(
                f"token_ids length ({len(ids)}) exceeds max_model_len ({limit}).", param=f"{here}.token_ids"
            )
        wire.check_ids(ids, f"{here}.token_ids", size)
        content = choice.logprobs.content if choice.logprobs is not None else None
        if content:
            wire.check_logprobs(content, f"{here}.logprobs", len(ids), parts.settings.max_logprobs, size)
    if limit is not None and len(response.prompt_logprobs or ()) > limit:
        raise RequestError(
            f"prompt_logprobs length ({len(response.prompt_logprobs or ())}) exceeds max_model_len ({limit}).",
            param=f"{at}.prompt_logprobs",
        )
    _check_prompt(parts, response.prompt_token_ids, f"{at}.prompt_token_ids")


def _check_prompt(parts: Parts, ids: list[int] | None, at: str) -> None:
    limit = parts.models.max_model_len
    if ids is not None and limit is not None and len(ids) > limit:
        raise RequestError(f"prompt_token_ids length ({len(ids)}) exceeds max_model_len ({limit}).", param=at)
    wire.check_ids(ids or [], at, parts.tier.vocab_size)


def _ids(choice: WholeChoice, at: str) -> list[int]:
    if not choice.token_ids:
        raise RequestError(f"choice {choice.index} has empty or null token_ids", param=f"{at}.token_ids")
    return choice.token_ids


async def _message(
    tier: Tier,
    chat: bool,
    asked: Asked,
    request_id: str,
    choice: WholeChoice,
    ids: list[int],
    prompt: Sequence[int] | None,
) -> MessageBuilder:
    """The whole answer of one choice: what a stream of its chunks would add up to."""
    finish, stop = choice.finish_reason, choice.stop_reason
    if finish == "length" and asked.settings.stop:
        # the whole answer is there: an engine that matches stop strings itself did not stop at one
        asked = replace(asked, settings=replace(asked.settings, stop=()))
    stream = tier.open(chat, asked, request_id, choice.index, prompt)
    if finish is not None:
        stop, _ = tier.ending(asked, finish, stop, ids)
    message = MessageBuilder()
    # a choice that did not end is told as far as it goes, like one that was cut
    for delta in await tier.feed_long(stream, ids, finish or "length", stop):
        message.add(delta)
    if finish is None and not stream.stopped:
        message.finish_reason = message.stop_reason = None
    if choice.logprobs is not None and not asked.hidden:
        formatter = LogprobFormatter(tier.vocabulary, asked.top, asked.as_ids, whole=True)
        content = choice.logprobs.content or []
        if stream.stopped:
            content = content[: stream.completion_tokens]
        message.logprobs = [formatter.entry(item.token_id, item) for item in content]
    return message


def _usage(prompt_tokens: int, responses: Sequence[WholeResponse]) -> dict[str, object]:
    completion = sum(len(choice.token_ids or ()) for response in responses for choice in response.choices)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
