"""Where our answers to the recorded exchanges differ from vLLM's on purpose, each with the reason.

An exchange whose status differs is listed in ``STATUSES``; where both succeed, ``BODIES`` lists the paths of the
values that differ. Not compared at all: ids that are drawn (of tool calls, of rendered requests), ``created`` (vLLM's
clock at each call; here the caller's own, so that a repeated call gives the same bytes), and the words of errors, whose
``param`` is checked against ``FIELDS`` instead.
"""

from __future__ import annotations

from typing import NamedTuple

ONE_FIELD = "an error names the one field at fault; vLLM lists the complaints of two request types"


class Status(NamedTuple):
    theirs: int
    ours: int
    reason: str


_VOCABULARY = "ids that are not in the vocabulary have no text: the field is named, rather than empty text sent"
_STOPS = "stop strings are honoured while streaming: what may become one is held back in the state"

STATUSES: dict[str, Status] = {
    "GET /ping": Status(200, 404, "SageMaker's probe is not served here; /live and /health are"),
    "GET /load": Status(200, 404, "the load of this process is in /metrics"),
    "state out-of-vocab replay ids": Status(200, 400, _VOCABULARY),
    "state negative replay ids": Status(200, 400, _VOCABULARY),
    "chunk out-of-vocab id": Status(200, 400, _VOCABULARY),
    "chunk id 2**63": Status(200, 400, _VOCABULARY),
    "chunk negative id": Status(200, 400, _VOCABULARY),
    "nonstream out-of-vocab": Status(200, 400, _VOCABULARY),
    "nonstream 2**63": Status(200, 400, _VOCABULARY),
    "ERR completions out-of-vocab": Status(200, 400, _VOCABULARY),
    "ERR completions 2**63": Status(200, 400, _VOCABULARY),
    "ERR stop strings (stream)": Status(400, 200, _STOPS),
    "ERR completions stop strings stream": Status(400, 200, _STOPS),
    "ERR completions bad state offsets": Status(
        200, 400, "offsets outside of the window: a state that does not add up"
    ),
}

_MERGED = "the entries of one call in one chunk are merged"
_WHITESPACE = "whitespace inside arguments is sent when it comes; vLLM holds it until the next token"
_OWN_RULE = "whole answers follow the rule of streamed ones: a call that was cut stays a partial call"
_NO_CONTENT = "whole answers follow the rule of streamed ones: content that was never written is null, not empty"
_TEMPLATE = "vLLM adds a variable for Cohere's templates to those of every template"
_CONSTRAINT = "a token-only engine cannot constrain: required and named choices are parsed, not enforced"

BODIES: dict[str, dict[str, str]] = {
    "stream chat chunk 39": {"chunk.choices[0].delta.tool_calls": _WHITESPACE},
    "stream chat chunk 40": {"chunk.choices[0].delta.tool_calls[0].function.arguments": _WHITESPACE},
    "stream chat one chunk": {"chunk.choices[0].delta.tool_calls": _MERGED},
    "stream chat length finish mid tool": {"chunk.choices[0].delta.tool_calls": _MERGED},
    "nonstream chat length": {
        "choices[0].message.content": _OWN_RULE,
        "choices[0].message.tool_calls": _OWN_RULE,
    },
    "nonstream required": {"choices[0].message.content": _NO_CONTENT},
    "nonstream named": {"choices[0].message.content": _NO_CONTENT},
    "GET /version": {"version": "our own"},
    "GET /v1/models": {
        "data[0].owned_by": "our own name",
        "data[0].permission": "permissions that nobody grants are not listed",
        "data[0].root": "where the files are",
    },
    **{
        f"render chat{name}": {
            "parse_context.chat_template_kwargs.cohere_format": _TEMPLATE,
            "reasoning_parser_kwargs.chat_template_kwargs.cohere_format": _TEMPLATE,
            **({"sampling_params.structured_outputs": _CONSTRAINT} if name in (" required", " named") else {}),
        }
        for name in ("", " thinking off", " n=3", " required", " named")
    },
}

# The field that each error names.
FIELDS: dict[str, str | None] = {
    "GET /ping": None,
    "GET /load": None,
    "GET /tokenizer_info": None,
    "render chat no messages": "messages",
    "render chat empty messages": "messages",
    "render chat unknown model": "model",
    "render chat beam": "use_beam_search",
    "render chat too long": "input_tokens",
    "render chat max_tokens too big": "max_tokens",
    "ERR missing chat_request (stream)": "chat_request",
    "ERR missing prompt_token_ids (stream)": "prompt_token_ids",
    "ERR over max_model_len (stream)": "prompt_token_ids",
    "ERR two choices in a chunk": "generate_chunk.choices",
    "ERR unknown model": "model",
    "ERR state lens mismatch": "stream_state.output_chunk_lens",
    "ERR state chunk_len 0": "stream_state.output_chunk_lens",
    "ERR state wrong type": "stream_state.output_token_ids",
    "state out-of-vocab replay ids": "stream_state.output_token_ids[0]",
    "state negative replay ids": "stream_state.output_token_ids[0]",
    "chunk out-of-vocab id": "generate_chunk.choices[0].token_ids[0]",
    "chunk id 2**63": "generate_chunk.choices[0].token_ids[0]",
    "chunk negative id": "generate_chunk.choices[0].token_ids[0]",
    "state prev_tokens > 1024": "stream_state.prev_tokens",
    "ERR output_mode text chunk": "generate_chunk.output_mode",
    "ERR no generate_chunk": "generate_chunk",
    "ERR bad json": None,
    "ERR empty body": None,
    "ERR wrong content type": "content-type",
    "ERR {}": "generate_response",
    "ERR GET": None,
    "ERR chat_request invalid (messages missing)": "chat_request.messages",
    "chat_request tool_choice required w/o tools": "chat_request.tool_choice",
    "ERR token_ids strings": "generate_chunk.choices[0].token_ids[0]",
    "ERR nonstream missing chat_request": "chat_request",
    "ERR nonstream missing generate_response": "generate_response",
    "ERR nonstream empty token_ids": "generate_response.choices[0].token_ids",
    "ERR nonstream n beyond max (16385)": "generate_response.choices",
    "ERR nonstream token_ids over max_model_len": "generate_response.choices[0].token_ids",
    "ERR nonstream prompt over max_model_len": "prompt_token_ids",
    "ERR nonstream unknown model": "model",
    "nonstream out-of-vocab": "generate_response.choices[0].token_ids[0]",
    "nonstream 2**63": "generate_response.choices[0].token_ids[0]",
    "ERR nonstream negative": "generate_response.choices[0].token_ids[0]",
    "ERR top_logprobs > max_logprobs": "generate_response.choices[0].logprobs.content[0].top_logprobs",
    "ERR completions prompt_tokens length": "prompt_tokens",
    "ERR completions empty list": "generate_responses",
    "ERR completions bad state offsets": "stream_state.read_offset",
    "ERR completions negative offset": "stream_state.prefix_offset",
    "ERR completions out-of-vocab": "generate_chunk.choices[0].token_ids[0]",
    "ERR completions 2**63": "generate_chunk.choices[0].token_ids[0]",
    "ERR completions two choices": "generate_chunk.choices",
}

# Fields of ours behind vLLM's in a state.
OURS = {"stream_state.derender", "stream_state.created", "stream_state.finished"}
