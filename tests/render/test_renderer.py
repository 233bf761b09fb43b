"""The renderer beyond vLLM's answers: what a token-only engine gets, bounds of the model, switches of the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.errors import RequestError
from proxy.protocol.openai import parse_chat, parse_completion, parse_detokenize, parse_tokenize
from proxy.render.model import Model
from proxy.render.rendered import RESERVED, Rendered
from proxy.render.renderer import INLINE_CHARS, Renderer
from tests.render.corpus import ANSWERED, BARE, NAMED, WEATHER
from tests.render.ours import options, renderer
from tests.tokenizers import tokenizer_dir

USER = [{"role": "user", "content": "Hi"}]
EOS = [151645, 151643]


def make(**changes: Any) -> Renderer:
    # loading a tokenizer takes a second: one for all tests that change nothing of it
    model = None if "generation_config" in changes else renderer("qwen3").model
    return Renderer(options("qwen3", engine_has_tokenizer=False, **changes), model)


TOKEN_ONLY = make()


async def chat(one: Renderer = TOKEN_ONLY, **fields: Any) -> Rendered:
    return await one.chat(parse_chat(json.dumps({"messages": USER, **fields}).encode()))


async def completion(one: Renderer = TOKEN_ONLY, **fields: Any) -> list[Rendered]:
    return await one.completion(parse_completion(json.dumps({"prompt": "Hi", **fields}).encode()))


async def refused(param: str | None, one: Renderer = TOKEN_ONLY, *, call: Any = chat, **fields: Any) -> str:
    with pytest.raises(RequestError) as caught:
        await call(one, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    return caught.value.message


async def test_a_token_only_engine_gets_what_it_can_take() -> None:
    rendered = await chat(stop=["x"], include_stop_str_in_output=True, skip_special_tokens=False, stream=True, seed=7)
    assert rendered.sampling_params == {
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "seed": 7,
        "stop_token_ids": EOS,
    }
    assert rendered.settings.stop == ("x",)
    assert rendered.settings.include_stop_str_in_output
    assert not rendered.settings.skip_special_tokens


async def test_eos_ids_are_stop_ids_unless_ignored() -> None:
    assert (await chat(stop_token_ids=[5, EOS[0]])).sampling_params["stop_token_ids"] == [5, *EOS]
    ignoring = await chat(stop_token_ids=[5], ignore_eos=True)
    assert ignoring.sampling_params["stop_token_ids"] == [5]
    assert ignoring.sampling_params["ignore_eos"] is True
    assert ignoring.settings.stop_token_ids == (5,)
    assert TOKEN_ONLY.eos_token_ids == tuple(EOS)


async def test_max_tokens_goes_along_only_if_asked_for() -> None:
    assert "max_tokens" not in (await chat()).sampling_params
    assert (await chat()).max_tokens == 40960 - 9
    assert (await chat(max_tokens=16)).sampling_params["max_tokens"] == 16
    assert (await chat(max_completion_tokens=40960)).sampling_params["max_tokens"] == 40960 - 9
    assert (await completion())[0].sampling_params["max_tokens"] == 16


async def test_unknown_context_length_leaves_the_check_to_the_engine() -> None:
    one = make(max_model_len=None)
    assert (await chat(one)).max_tokens is None
    assert (await chat(one, max_tokens=10**6)).sampling_params["max_tokens"] == 10**6
    one.max_model_len = 20
    await refused("input_tokens", one, messages=[{"role": "user", "content": "word " * 30}])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"bad_words": ["x"]}, "bad_words"),
    ],
)
async def test_an_engine_without_tokenizer_cannot_constrain(fields: dict[str, Any], param: str) -> None:
    assert "without a tokenizer" in await refused(param, **fields)
    assert "without a tokenizer" in await refused(param, call=completion, **fields)
    assert (await chat(renderer("qwen3"), **fields)).sampling_params


async def test_forced_calls_go_unconstrained_without_a_tokenizer() -> None:
    for choice in ("required", NAMED):
        rendered = await chat(tools=[WEATHER], tool_choice=choice, response_format={"type": "text"})
        assert "structured_outputs" not in rendered.sampling_params
        assert rendered.settings.tool_choice == choice
    constrained = await chat(renderer("qwen3"), tools=[WEATHER], tool_choice="required")
    assert list(constrained.sampling_params["structured_outputs"]) == ["structural_tag"]


async def test_forced_calls_need_no_parser() -> None:
    one = make(tool_call_parser=None)
    for choice in ("required", NAMED):
        rendered = await chat(one, tools=[WEATHER], tool_choice=choice)
        assert rendered.settings.tool_choice == choice
        assert "structured_outputs" not in rendered.sampling_params
        one.engine_has_tokenizer = True
        constrained = await chat(one, tools=[WEATHER], tool_choice=choice)
        assert constrained.sampling_params["structured_outputs"]["json"] is not None
        one.engine_has_tokenizer = False


async def test_settings_of_a_chat() -> None:
    kwargs = {"enable_thinking": False}
    settings = (
        await chat(
            messages=ANSWERED, tools=[WEATHER, BARE], parallel_tool_calls=False, include_reasoning=False,
            chat_template_kwargs=kwargs, min_tokens=3, logprobs=True, top_logprobs=2, return_token_ids=True,
        )
    ).settings  # fmt: skip
    assert [tool["function"]["name"] for tool in settings.tools] == ["get_weather", "now"]
    assert settings.tool_choice == "auto"
    assert settings.chat_template_kwargs["enable_thinking"] is False
    assert (settings.parallel_tool_calls, settings.include_reasoning) == (False, False)
    assert (settings.history_tool_calls, settings.min_tokens, settings.logprobs) == (2, 3, 2)
    assert settings.return_token_ids


async def test_settings_of_a_completion_have_no_tools() -> None:
    settings = (await completion(logprobs=0, stop="a"))[0].settings
    assert (settings.tools, settings.logprobs, settings.stop) == ((), 0, ("a",))


async def test_echo_only() -> None:
    rendered = (await completion(echo=True, max_tokens=0))[0]
    assert rendered.echo_only and rendered.sampling_params["max_tokens"] == 1
    assert (rendered.prompt_text, rendered.prompt_token_ids) == ("Hi", [13048])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [1, 151936]}, "stop_token_ids[1]"),
        ({"allowed_token_ids": [151936]}, "allowed_token_ids[0]"),
        ({"logprobs": True, "logprob_token_ids": [10**40]}, "logprob_token_ids[0]"),
        ({"logit_bias": {"151936": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"max_tokens": 40961}, "max_tokens"),
        ({"truncate_prompt_tokens": 40961}, "truncate_prompt_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"n": 2, "temperature": 0}, "n"),
    ],
)
async def test_bounds_of_the_model(fields: dict[str, Any], param: str) -> None:
    await refused(param, **fields)


async def test_ids_of_the_models_vocabulary_beyond_the_tokenizers_are_fine() -> None:
    assert len(TOKEN_ONLY.tokenizer) < 151935
    assert (await chat(stop_token_ids=[151935])).sampling_params["stop_token_ids"][0] == 151935
    assert (await completion(prompt=[151935]))[0].prompt_token_ids == [151935]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([1, 151936], "prompt[1]"),
        ([[1], [2, 151936]], "prompt[1][1]"),
        ([[10**5000 // 10**4970]], "prompt[0][0]"),
        (["", "a"], "prompt"),
    ],
)
async def test_prompts_of_other_ids(prompt: Any, param: str) -> None:
    await refused(param, call=completion, prompt=prompt)


async def test_an_id_of_thousands_of_digits() -> None:
    for body in (
        b'{"prompt":[%s]}',
        b'{"prompt":"a","stop_token_ids":[%s]}',
        b'{"prompt":"a","logprob_token_ids":[%s]}',
    ):
        with pytest.raises(RequestError):
            await TOKEN_ONLY.completion(parse_completion(body % (b"9" * 5000)))
    with pytest.raises(RequestError):
        await TOKEN_ONLY.detokenize(parse_detokenize(b'{"tokens":[%s]}' % (b"9" * 5000)))


async def test_logit_bias_is_clamped() -> None:
    bias = (await chat(logit_bias={"5": 1000, "007": -1000, "9": 1})).sampling_params["logit_bias"]
    assert bias == {"5": 100.0, "7": -100.0, "9": 1.0}


async def test_unknown_fields_go_along_but_none_that_the_engine_reads() -> None:
    unread: dict[str, Any] = dict.fromkeys(RESERVED - set(chat_fields()), 5)
    rendered = await chat(future=1, **unread)
    assert rendered.extra == {"future": 1}


def chat_fields() -> tuple[str, ...]:
    return parse_chat(json.dumps({"messages": USER}).encode()).__struct_fields__


async def test_request_templates_need_trust() -> None:
    one = make(trust_request_chat_template=False)
    assert "--trust-request-chat-template" in await refused("chat_template", one, chat_template="x")
    assert "trust" in await refused("chat_template", one, chat_template_kwargs={"chat_template": "x"})


async def test_the_servers_template_and_defaults(tmp_path: Any) -> None:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}{{ word }}"
    file = tmp_path / "t.jinja"
    file.write_text(text)
    for given in (text, str(file)):
        one = make(chat_template=given, default_chat_template_kwargs={"word": "served"})
        assert (await chat(one)).prompt_text == "Hiserved"
        assert (await chat(one, chat_template_kwargs={"word": "asked"})).prompt_text == "Hiasked"
        assert (await chat(one, chat_template_kwargs={"word": None})).prompt_text == "Hiserved"


async def test_a_template_that_raises_speaks_for_itself() -> None:
    one = make(chat_template="{{ raise_exception('Roles must alternate.') }}")
    assert await refused("messages", one) == "Roles must alternate."
    for broken in ("{{ messages.x.y.z }}", "{{ 1 / 0 }}", "{{ messages[99]['role'] }}", "{{ 'a' + 1 }}"):
        message = await refused("messages", make(chat_template=broken))
        assert message == "The chat template cannot be applied to this request."


async def test_forced_content_format() -> None:
    template = "{{ messages[0].content is string }}"
    assert (await chat(make(chat_template=template))).prompt_text == "True"
    forced = make(chat_template=template, chat_template_content_format="openai")
    assert (await chat(forced)).prompt_text == "False"


async def test_no_template() -> None:
    one = Renderer(options("llama3_1_tool"))
    one.tokenizer.chat_template = None
    assert "no chat template" in await refused("messages", one)


async def test_generation_config(tmp_path: Any) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.1, "max_new_tokens": 50, "eos_token_id": 7}')
    one = make(generation_config=str(tmp_path))
    params = (await chat(one)).sampling_params
    assert (params["temperature"], params["max_tokens"], params["stop_token_ids"]) == (0.1, 50, [151645, 7])
    assert (await chat(one, max_tokens=60)).sampling_params["max_tokens"] == 50
    neutral = (await chat(make(generation_config="vllm"))).sampling_params
    assert (neutral["temperature"], neutral["top_p"], "top_k" in neutral) == (1.0, 1.0, False)
    assert neutral["stop_token_ids"] == EOS


def test_the_models_vocabulary_may_stand_in_text_config(tmp_path: Any) -> None:
    source = tokenizer_dir("qwen3")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(source / name)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "text_config": {"vocab_size": 160000}}')
    assert Model.load(str(tmp_path), tokenizer=None).vocab_size == 160000


async def test_bos_is_kept_when_the_left_is_cut() -> None:
    one = renderer("llama3_1_tool")
    full = (await completion(one, prompt="one two three four"))[0].prompt_token_ids
    cut = (await completion(one, prompt="one two three four", truncate_prompt_tokens=3))[0].prompt_token_ids
    assert cut == [128000, *full[-2:]]
    left = await completion(one, prompt="one two three four", truncate_prompt_tokens=3, truncation_side="left")
    assert left[0].prompt_token_ids == full[-3:]


async def test_long_prompts_leave_the_loop_and_give_the_same_ids() -> None:
    text = "All work and no play makes Jack a dull boy.\n" * 2000
    assert len(text) > INLINE_CHARS
    ticks = 0

    async def ticking() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticker = asyncio.create_task(ticking())
    ids = (await completion(prompt=text, max_tokens=1))[0].prompt_token_ids
    ticker.cancel()
    assert ids == TOKEN_ONLY.model.encode(text, add_special_tokens=True)
    assert ticks > 0


async def test_reasoning_ends_in_this_turn_only() -> None:
    one = renderer("qwen3")
    thought = [*USER, {"role": "assistant", "content": "<think>\nx\n</think>\n\ny"}, *USER]
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    template = "{% for m in messages %}" + turn + "{% endfor %}<|im_start|>assistant\n"
    assert (await chat(one, messages=thought, chat_template=template)).reasoning_ended is False
    assert (await chat(one, messages=thought, chat_template=template + "<think>\n\n</think>")).reasoning_ended is True
    assert (await chat(make(reasoning_parser=None))).reasoning_ended is None


async def test_tokenize_and_detokenize() -> None:
    answer = await TOKEN_ONLY.tokenize(parse_tokenize(b'{"prompt": "Hi there", "return_token_strs": true}'))
    assert answer == {"count": 2, "max_model_len": 40960, "tokens": [13048, 1052], "token_strs": ["Hi", "Ġthere"]}
    assert await TOKEN_ONLY.detokenize(parse_detokenize(b'{"tokens": [13048, 151645]}')) == {"prompt": "Hi<|im_end|>"}


async def test_the_input_is_not_changed() -> None:
    request = parse_chat(json.dumps({"messages": ANSWERED, "tools": [WEATHER]}).encode())
    await TOKEN_ONLY.chat(request)
    assert request.messages == ANSWERED
