"""Every row of the recorded corpus where our answer differs from vLLM's, and why.

``Differs``: the fields that differ, with our values. ``Refused``: vLLM's render takes the request, ours does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MISSING = "(missing)"


@dataclass(frozen=True)
class Differs:
    why: str
    ours: dict[str, Any]


@dataclass(frozen=True)
class Refused:
    why: str
    param: str
    message: str


NAMED = "vLLM's error does not name the field; ours does"
OWN_WORDS = "vLLM's error is the text of a library (pydantic, Jinja, transformers), with its own path and type"
CLEARER = "vLLM echoes the client's values, or names another field than the one at fault"
VOCABULARY = "vLLM's engine would refuse the id, but only after the stream has begun; a token-only engine may die of it"
STRICT = "a boolean is no token id"
SIXTEEN = (
    "vLLM leaves out max_tokens where it equals its dataclass default 16, and generate then fills in all that fits"
)
NO_TAG = "we have no structural tags of this family: a forced call is constrained to plain JSON, which the parsers take"
NO_HARMONY_TAG = "a forced call of gpt-oss goes unconstrained: JSON in the place of its channels would break them"
AUTO_TAG = "strict tools and single calls under auto are not constrained without a structural tag of the family"
HARMONY_CUT = "vLLM ignores truncation for gpt-oss"

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}


def _named(param: str) -> Differs:
    return Differs(NAMED, {"error.param": param})


def _words(param: str | None, message: str, *, typed: bool = True) -> Differs:
    """``typed``: vLLM's type is not the usual one either."""
    ours: dict[str, Any] = {"error.param": param, "error.message": message}
    return Differs(OWN_WORDS, ours | ({"error.type": "BadRequestError"} if typed else {}))


def _call(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
        "required": ["name", "parameters"],
    }


def _calls(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": list(calls)}, **more}


def _plain_json(schema: dict[str, Any]) -> Differs:
    at = "sampling_params.structured_outputs"
    return Differs(NO_TAG, {f"{at}.json": schema, f"{at}.structural_tag": None})


_BEYOND = "contain out-of-vocab token ids. Vocabulary size: 151936"
_OF_QWEN3: dict[str, Differs | Refused] = {
    "own template, raises": _named("messages"),
    "own template, broken": _words("chat_template", "The chat template is not a valid Jinja template.", typed=False),
    "own template, undefined": _words("messages", "The chat template cannot be applied to this request.", typed=False),
    "max_tokens 16": Differs(SIXTEEN, {"sampling_params.max_tokens": 16}),
    "text": Differs(SIXTEEN, {"0.sampling_params.max_tokens": 16}),
    "detokenize negative": _words("tokens[0]", "`tokens[0]` must not be negative."),
    "detokenize out of vocabulary": Refused(VOCABULARY, "tokens[0]", _BEYOND),
    "malformed": _words(None, "The request body is not valid JSON."),
    "not an object": _words(None, "The request body must be a JSON object."),
    "no messages field": _words("messages", "`messages` is required."),
    "no messages": _named("messages"),
    "unknown role": Refused("a template silently drops such a message", "messages[0].role", "must be one of system"),
    "unknown part": _words(
        "messages[0].content[0].type",
        "`messages[0].content[0].type` is not a supported content part type. Supported types: text, input_text, "
        "output_text, refusal, thinking, tool_reference.",
        typed=False,
    ),
    "image": Differs(
        CLEARER,
        {
            "error.param": "messages[0].content[0]",
            "error.message": "`messages[0].content[0]`: parts of type image_url are not supported, since this server "
            "takes text only.",
        },
    ),
    "calls that are no objects": _words("messages[0].tool_calls[0]", "`messages[0].tool_calls[0]` must be an object."),
    "temperature as text": _words("temperature", "`temperature` must be a number or null, got a string."),
    "top_k low": _named("top_k"),
    "min_p high": _named("min_p"),
    "presence high": _named("presence_penalty"),
    "repetition zero": _named("repetition_penalty"),
    "n zero": _named("n"),
    "n greedy": _named("n"),
    "max_completion_tokens zero": Differs(
        CLEARER,
        {
            "error.param": "max_completion_tokens",
            "error.message": "max_tokens must be at least 1, got 0. (parameter=max_completion_tokens, value=0)",
        },
    ),
    "min over max": _named("min_tokens"),
    "min_tokens negative": _named("min_tokens"),
    "stop empty": _named("stop[0]"),
    "stop_token_ids negative": Refused(VOCABULARY, "stop_token_ids[0]", "must not be negative"),
    "stop_token_ids beyond": Refused(VOCABULARY, "stop_token_ids[0]", _BEYOND),
    "stop_token_ids boolean": Refused(STRICT, "stop_token_ids[0]", "must be an integer"),
    "stop_token_ids fraction": _words(
        "stop_token_ids[0]", "`stop_token_ids[0]` must be an integer, got a fractional number."
    ),
    "ids exactly all": Differs(
        "vLLM says that max_tokens must be at least 1, whatever was asked for; ours names the lengths",
        {
            "error.message": "This model's maximum context length is 40960 tokens. However, your prompt contains 40960 "
            "input tokens, which leaves no room for max_tokens=16. Please reduce the length of the input prompt. "
            "(parameter=max_tokens, value=16)",
        },
    ),
    "logit_bias key": Differs(
        CLEARER,
        {"error.message": "logit_bias contains key(s) that cannot be converted to integer token IDs: ['a']"},
    ),
    "bad_words empty": Differs(
        CLEARER, {"error.param": "bad_words[0]", "error.message": "bad_words cannot contain an empty string."}
    ),
    "top_logprobs many": Refused(
        "vLLM's engine refuses it, after the stream has begun",
        "top_logprobs",
        "Requested sample logprobs of 30, which is greater than max allowed: 20",
    ),
    "tool without name": _words("tools[0].function.name", "`tools[0].function.name` must be a non-empty string."),
    "tool_choice word": Differs(
        CLEARER,
        {
            "error.message": 'Invalid value for `tool_choice`! Only named tools, "none", "auto" or "required" are '
            "supported."
        },
    ),
    "response type": _words(
        "response_format.type",
        "`response_format.type` must be one of text, json_object, json_schema, structural_tag.",
    ),
    "two constraints": Differs(
        CLEARER,
        {
            "error.param": "structured_outputs",
            "error.message": "`structured_outputs` must have exactly one of json, regex, choice, grammar, "
            "json_object, structural_tag, got 2.",
        },
    ),
    "continued and prompted": _named("continue_final_message"),
    "continued by default": _words(
        "continue_final_message",
        "continue_final_message and add_generation_prompt are not compatible. Set `add_generation_prompt` to false to "
        "have the model continue the final message.",
        typed=False,
    ),
    "prompt of empty list": Differs(
        CLEARER, {"error.param": "prompt[0]", "error.message": "`prompt[0]` must not be empty."}
    ),
    "prompt with an empty list": Differs(
        CLEARER, {"error.param": "prompt[0]", "error.message": "`prompt[0]` must not be empty."}
    ),
    "prompt negative": _words("prompt[0]", "`prompt[0]` must not be negative."),
    "prompt beyond": Refused(VOCABULARY, "prompt[0]", _BEYOND),
    "prompt huge": Refused(VOCABULARY, "prompt[0]", _BEYOND),
    "prompt boolean": Refused(STRICT, "prompt[0]", "an array of token ids (integers)"),
}
_UNTAGGED: dict[str, Differs | Refused] = {
    "tools, strict": Differs(AUTO_TAG, {"sampling_params.structured_outputs": MISSING}),
    "tools, one call": Differs(AUTO_TAG, {"sampling_params.structured_outputs": MISSING}),
    "tools, required": _plain_json(
        _calls(_call("get_weather", WEATHER), _call("add", NUMBERS), _call("now", {"type": "object", "properties": {}}))
    ),
    "tools, required, one call": _plain_json(_calls(_call("get_weather", WEATHER), maxItems=1)),
    "tools, named": _plain_json(WEATHER),
}
_OF_GPTOSS: dict[str, Differs | Refused] = {
    **{row: Differs(NO_HARMONY_TAG, {"sampling_params.structured_outputs": MISSING}) for row in _UNTAGGED},
    "truncated": Differs(HARMONY_CUT, {"token_ids": [30, 130321, 100, 15148, 200007, 200006, 173781]}),
    "truncated right": Differs(HARMONY_CUT, {"token_ids": [200006, 17360, 200008, 3575, 553, 17554, 162016]}),
}
LISTED: dict[tuple[str, str], Differs | Refused] = {
    (server, row): deviation
    for server, rows in (
        ("qwen3", _OF_QWEN3),
        ("gptoss", _OF_GPTOSS),
        ("llama3_1_tool", _UNTAGGED | {"text": Differs(SIXTEEN, {"0.sampling_params.max_tokens": 16})}),
        ("deepseek_r1", _UNTAGGED),
    )
    for row, deviation in rows.items()
}


def of(server: str, row: str) -> Differs | Refused | None:
    """The listed deviation of a row; None: our answer is the same."""
    return LISTED.get((server, row))
