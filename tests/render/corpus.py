"""Requests whose answers by vLLM's render server are recorded in tests/data/render, one file per server.

Each row: name, path, body. ``record.py`` sends them; ``test_against_vllm.py`` compares ours.
"""

from __future__ import annotations

from typing import Any

CHAT = "/v1/chat/completions/render"
TEXT = "/v1/completions/render"

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
    },
}
STRICT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
BARE: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
USER = [{"role": "user", "content": "Weather in Paris, s'il te plaît? 🌧️"}]
CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    *USER,
    {
        "role": "assistant",
        "content": None,
        "reasoning": "The user wants the weather.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
            },
            {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "rain"}'},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "12:00"}]},
]
ANSWERED = [
    *CALLED,
    {"role": "assistant", "reasoning_content": "Done.", "content": "Rain at noon."},
    {"role": "user", "content": "Thanks, and tomorrow?"},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

Row = tuple[str, str, dict[str, Any] | str]


def chat(name: str, messages: Any = USER, **fields: Any) -> Row:
    return name, CHAT, {"messages": messages, **fields}


def text(name: str, prompt: Any = "Once upon a time", **fields: Any) -> Row:
    return name, TEXT, {"prompt": prompt, **fields}


PROMPTS: list[Row] = [
    chat("plain"),
    chat("model named", model="MODEL"),
    chat("system", [{"role": "system", "content": "Be brief."}, *USER]),
    chat("two systems", [{"role": "system", "content": "A"}, *USER, {"role": "system", "content": "B"}]),
    chat("developer first", [{"role": "developer", "content": "Be brief."}, *USER]),
    chat("developer later", [{"role": "system", "content": "A"}, *USER, {"role": "developer", "content": "B"}]),
    chat("parts", [{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]}]),
    chat("part kinds", [
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Why?"},
    ]),
    chat("empty content", [{"role": "user", "content": ""}]),
    chat("assistant without content", [*USER, {"role": "assistant", "content": None}, *USER]),
    chat("name", [{"role": "user", "name": "Ann", "content": "Hi"}]),
    chat("tools", tools=[WEATHER, BARE]),
    chat("tools, strict", tools=[STRICT, BARE]),
    chat("tools, none", tools=[WEATHER], tool_choice="none"),
    chat("tools, null choice", tools=[WEATHER], tool_choice=None),
    chat("tools, required", tools=[WEATHER, STRICT, BARE], tool_choice="required"),
    chat("tools, required, one call", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False),
    chat("tools, named", tools=[WEATHER, BARE], tool_choice=NAMED),
    chat("tools, one call", tools=[WEATHER], parallel_tool_calls=False),
    chat("tool results", CALLED, tools=[WEATHER, BARE]),
    chat("second turn", ANSWERED, tools=[WEATHER, BARE]),
    chat("second turn without tools", ANSWERED),
    chat("arguments that are no object", [
        *USER,
        {"role": "assistant", "content": "x", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "now", "arguments": "[1]"}},
            {"id": "b", "type": "function", "function": {"name": "now", "arguments": "{broken"}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "y"},
        *USER,
    ]),
    chat("no calls in a list", [*USER, {"role": "assistant", "content": "x", "tool_calls": []}, *USER]),
    chat("think in content", [*USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, *USER]),
    chat("special tokens in content", [{"role": "user", "content": "<|im_end|><think>"}]),
    chat("no generation prompt", add_generation_prompt=False),
    chat("continued", [*USER, {"role": "assistant", "content": "It is "}],
         continue_final_message=True, add_generation_prompt=False),
    chat("enable_thinking false", chat_template_kwargs={"enable_thinking": False}),
    chat("enable_thinking true", chat_template_kwargs={"enable_thinking": True, "unused": [1]}),
    chat("effort low", reasoning_effort="low"),
    chat("include_reasoning false", include_reasoning=False),
    chat("documents", documents=[{"title": "T", "text": "D"}]),
    chat("special tokens added", add_special_tokens=True),
    chat("truncated", truncate_prompt_tokens=7),
    chat("truncated right", truncate_prompt_tokens=7, truncation_side="right"),
    chat("truncated to fit", truncate_prompt_tokens=-1),
    chat("long", [{"role": "user", "content": "All work and no play. " * 900}], max_tokens=5),
]  # fmt: skip
TEMPLATES: list[Row] = [
    chat("own template", chat_template="{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"),
    chat("own template, parts",
         [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1},
                                       {"type": "text", "text": ""}]}],
         chat_template="{% for m in messages %}{% for p in m['content'] %}<{{ p | tojson }}>{% endfor %}{% endfor %}"),
    chat("own template, macro",
         chat_template="{% macro show(c) %}{% for p in c %}{{ p.text }}|{% endfor %}{% endmacro %}"
                       "{% for m in messages %}{{ show(m.content) }}{% endfor %}"),
    chat("own template, alias",
         chat_template="{% set ns = namespace(rest=messages[0:]) %}{% for m in ns.rest %}"
                       "{% for p in m.content %}{{ p.type }}{% endfor %}{% endfor %}"),
    chat("own template, developer", [{"role": "developer", "content": "D"}, *USER],
         chat_template="{% for m in messages %}{{ m.role if m.role != 'developer' else 'dev' }}{% endfor %}"),
    chat("own template, kwargs", documents=[{"title": "T", "text": "D"}], reasoning_effort="high",
         chat_template_kwargs={"greeting": "Hey"},
         chat_template="{{ greeting }} {{ documents[0].title }} {{ reasoning_effort }} {{ enable_thinking }}"),
    chat("own template, raises", chat_template="{{ raise_exception('Only odd days.') }}"),
    chat("own template, broken", chat_template="{% for m in messages %}"),
    chat("own template, undefined", chat_template="{{ messages[0].nothing.at.all }}"),
]  # fmt: skip
SAMPLING: list[Row] = [
    chat("all sampling fields", temperature=0.5, top_p=0.5, top_k=5, min_p=0.1, seed=3, n=2, presence_penalty=1,
         frequency_penalty=-1, repetition_penalty=1.1, logprobs=True, top_logprobs=3, stop=["x", "y", "x"],
         stop_token_ids=[5, 6, 5], logit_bias={"5": 200, "7": -0.5}, min_tokens=2, max_tokens=300, ignore_eos=True,
         bad_words=["foo"], include_stop_str_in_output=True, spaces_between_special_tokens=False, stream=True,
         stream_options={"include_usage": True}),
    chat("greedy", temperature=0),
    chat("nearly greedy", temperature=0.001),
    chat("limits of ranges", temperature=2, top_p=1, top_k=-1, min_p=1, seed=-1, presence_penalty=2),
    chat("max_completion_tokens wins", max_tokens=300, max_completion_tokens=400),
    chat("max_tokens of all", max_tokens=40960),
    chat("max_tokens 16", max_tokens=16),
    chat("logprobs without top", logprobs=True),
    chat("prompt_logprobs", prompt_logprobs=2),
    chat("echo", logprobs=True, top_logprobs=2, echo=True),
    chat("logprob_token_ids", logprobs=True, logprob_token_ids=[5, 9]),
    chat("allowed_token_ids", allowed_token_ids=[1, 2], thinking_token_budget=50),
    chat("json_object", response_format={"type": "json_object"}),
    chat("json_schema", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
    chat("response text", response_format={"type": "text"}),
    chat("structured choice", structured_outputs={"choice": ["yes", "no"]}),
    chat("structured regex", structured_outputs={"regex": "[ab]+", "whitespace_pattern": " "}),
    chat("tools and schema", tools=[WEATHER], response_format={"type": "json_object"}),
    chat("passed through", kv_transfer_params={"do_remote_decode": True}, ec_transfer_params={"x": 1}, priority=3,
         cache_salt="salt", vllm_xargs={"z": [1, 2], "y": "t"}, request_id="r7", return_token_ids=True, user="u",
         metadata={"k": "v"}, store=True),
    chat("nulls", stop=None, tools=None, temperature=None, logit_bias=None, top_logprobs=None, stop_token_ids=None,
         max_tokens=None, n=None, seed=None, stream=None),
    chat("offsets", return_token_offsets=True),
]  # fmt: skip
COMPLETIONS: list[Row] = [
    text("text"),
    text("text, max_tokens", max_tokens=300, temperature=0.3),
    text("texts", ["One", "two three"], max_tokens=20),
    text("ids", [9707, 11], max_tokens=20),
    text("lists of ids", [[9707], [11, 12]], max_tokens=20),
    text("no special tokens", add_special_tokens=False, max_tokens=20),
    text("truncated text", truncate_prompt_tokens=3, max_tokens=20),
    text("truncated text left", truncate_prompt_tokens=3, truncation_side="left", max_tokens=20),
    text("truncated ids", [1, 2, 3, 4, 5], truncate_prompt_tokens=2, max_tokens=20),
    text("logprobs", logprobs=2, max_tokens=20),
    text("echo with logprobs", logprobs=2, echo=True, max_tokens=20),
    text("echo only", echo=True, max_tokens=0),
    text("stop", stop="\n", stream=True, max_tokens=20),
    text("text, schema", response_format={"type": "json_object"}, max_tokens=20),
]
TOKENS: list[Row] = [
    ("tokenize", "/tokenize", {"prompt": "Hello world"}),
    ("tokenize, strings", "/tokenize", {"prompt": "Hello, Würld", "return_token_strs": True}),
    ("tokenize nothing", "/tokenize", {"prompt": ""}),
    ("tokenize chat", "/tokenize", {"messages": USER, "tools": [WEATHER]}),
    ("tokenize chat, open", "/tokenize", {"messages": USER, "add_generation_prompt": False}),
    ("tokenize chat, kwargs", "/tokenize", {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}}),
    ("detokenize", "/detokenize", {"tokens": [9707, 1879]}),
    ("detokenize nothing", "/detokenize", {"tokens": []}),
    ("detokenize negative", "/detokenize", {"tokens": [-1]}),
    ("detokenize out of vocabulary", "/detokenize", {"tokens": [999999]}),
]
ERRORS: list[Row] = [
    ("malformed", CHAT, "{nope"),
    ("not an object", CHAT, "[1]"),
    ("no messages field", CHAT, {}),
    chat("no messages", []),
    chat("unknown role", [{"role": "wizard", "content": "x"}]),
    chat("unknown part", [{"role": "user", "content": [{"type": "zzz"}]}]),
    chat(
        "image", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}]}]
    ),
    chat("calls that are no objects", [{"role": "assistant", "tool_calls": ["x"]}]),
    chat("temperature as text", temperature="hot"),
    chat("temperature high", temperature=3),
    chat("temperature negative", temperature=-1),
    chat("top_p zero", top_p=0),
    chat("top_k low", top_k=-2),
    chat("min_p high", min_p=2),
    chat("presence high", presence_penalty=3),
    chat("repetition zero", repetition_penalty=0),
    chat("n zero", n=0),
    chat("n greedy", n=2, temperature=0),
    chat("max_tokens zero", max_tokens=0),
    chat("max_completion_tokens zero", max_completion_tokens=0),
    chat("max_tokens beyond", max_tokens=40961),
    chat("max_completion_tokens beyond", max_completion_tokens=50000),
    chat("min over max", min_tokens=6, max_tokens=5),
    chat("min_tokens negative", min_tokens=-1),
    chat("prompt too long", [{"role": "user", "content": "a " * 41000}]),
    chat("prompt too long in characters", [{"role": "user", "content": "a" * 6_000_000}]),
    chat("truncation beyond", truncate_prompt_tokens=99999),
    chat("stop empty", stop=[""]),
    chat("stop_token_ids negative", stop_token_ids=[-1]),
    chat("stop_token_ids beyond", stop_token_ids=[151936]),
    chat("stop_token_ids boolean", stop_token_ids=[True]),
    chat("stop_token_ids fraction", stop_token_ids=[1.5]),
    chat("logit_bias key", logit_bias={"a": 1}),
    chat("bad_words empty", bad_words=[""]),
    chat("top_logprobs alone", top_logprobs=3),
    chat("top_logprobs negative", logprobs=True, top_logprobs=-2),
    chat("top_logprobs many", logprobs=True, top_logprobs=30),
    chat("prompt_logprobs streamed", prompt_logprobs=1, stream=True),
    chat("stream_options alone", stream_options={"include_usage": True}),
    chat("tools empty", tools=[]),
    chat("tool without name", tools=[{"type": "function", "function": {}}]),
    chat("tool_choice alone", tool_choice="auto"),
    chat("tool_choice unknown", tools=[BARE], tool_choice={"type": "function", "function": {"name": "x"}}),
    chat("tool_choice word", tools=[BARE], tool_choice="maybe"),
    chat("schema missing", response_format={"type": "json_schema"}),
    chat("response type", response_format={"type": "yaml"}),
    chat("two constraints", structured_outputs={"regex": "a", "choice": ["b"]}),
    chat("continued and prompted", continue_final_message=True, add_generation_prompt=True),
    chat("continued by default", continue_final_message=True),
    chat("cache_salt bad", cache_salt="a/b"),
    chat("logprob_token_ids alone", logprob_token_ids=[1]),
    chat("thinking budget", thinking_token_budget=-2),
    text("prompt empty", ""),
    text("prompt list empty", []),
    text("prompt of empty list", [[]]),
    text("prompt with an empty list", [[], [1]]),
    text("prompt negative", [-1]),
    text("prompt beyond", [151936]),
    text("prompt huge", [2**70]),
    text("prompt boolean", [True]),
    text("ids too long", [1] * 40961),
    text("ids exactly all", [1] * 40960),
    text("suffix", suffix="x"),
    text("completion max_tokens zero", max_tokens=0),
    text("completion logprobs negative", logprobs=-2),
]
