"""Formats whose calls stand between tags, as transcripts: a prompt's end and an output, and what is made of them."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from proxy.derender.derenderer import ChatSettings, Derenderer
from tests import derenders
from tests.generators.base import Generator, Marker, spelled, tools, toy
from tests.generators.check import fold, says
from tests.generators.tagged_families import GENERATORS

GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>")
K2 = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<think>", "</think>",
)  # fmt: skip
K3 = ("<|open|>", "<|close|>", "<|sep|>")
GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
MARK = "]<]minimax[>["
STEP3 = (
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
)

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "integer"},
                "o": {"type": "object", "properties": {"k": {"type": "integer"}}},
                "l": {"type": "array", "items": {"type": "integer"}},
            },
        },
    },
}


def pieces(text: str, markers: tuple[str, ...]) -> list[str]:
    """``text`` with its markers as tokens."""
    out: list[str] = []
    while text:
        at, _, marker = min(((text.find(m), -len(m), m) for m in markers if m in text), default=(len(text), 0, ""))
        out += [text[:at], Marker(marker)] if marker else [text]
        text = text[at + len(marker) :]
    return [piece for piece in out if piece]


def answer(
    reasoning: str | None,
    tool: str,
    markers: tuple[str, ...],
    text: str,
    prompt: str = "",
    finish: str = "stop",
    **knobs: Any,
) -> dict[str, Any]:
    """The folded answer, the same in every cut, with arguments as values where they are JSON."""
    made = toy(markers)
    opener = Derenderer(made.vocabulary, reasoning_parser=reasoning, tool_parser=tool)
    rng = random.Random(0)
    ids = made.encode(pieces(text, markers), rng)
    prompt_ids = [1, *made.encode(pieces(prompt, markers), rng)]
    settings = ChatSettings(tools=(TOOL,), **knobs)
    answers = []
    for lengths in ([len(ids)], [1] * len(ids), derenders.cut(len(ids), rng)):
        stream = opener.chat(settings, request_id="r", prompt_token_ids=prompt_ids)
        message = derenders.run(stream, ids, lengths, finish)
        answers.append(derenders.answer(message) | {"ids": [call["id"] for call in message.tool_calls]})
    assert answers[0] == answers[1] == answers[2]
    said = answers[0]
    said["calls"] = []
    for call in said["tool_calls"]:
        try:
            said["calls"].append((call["name"], json.loads(call["arguments"])))
        except ValueError:
            said["calls"].append((call["name"], call["arguments"]))
    return said


def glm(text: str, prompt: str = "</think>", **more: Any) -> dict[str, Any]:
    return answer("glm45", "glm45", GLM, text, prompt, **more)


def gemma(text: str, **more: Any) -> dict[str, Any]:
    return answer("gemma4", "gemma4", GEMMA, text, **more)


class TestGlm:
    def test_types_come_from_the_schema(self) -> None:
        said = glm(
            "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value> 3 </arg_value>\n<arg_key>n</arg_key>\n"
            "<arg_value>3</arg_value>\n"
            "<arg_key>l</arg_key><arg_value>[1, 2]</arg_value><arg_key>x</arg_key>"
            '<arg_value>{"a": 1}</arg_value></tool_call>'
        )
        assert said["calls"] == [("f", {"s": " 3 ", "n": 3, "l": [1, 2], "x": {"a": 1}})]

    def test_a_closing_marker_inside_a_value_is_data(self) -> None:
        said = glm("<tool_call>f<arg_key>s</arg_key><arg_value>a</tool_call> <arg_key>b</arg_value></tool_call>")
        assert said["calls"] == [("f", {"s": "a</tool_call> <arg_key>b"})]

    def test_unless_the_output_ends_there(self) -> None:
        said = glm("<tool_call>f<arg_key>s</arg_key><arg_value>a</tool_call>\n", tool_call_streaming="complete")
        assert said["calls"] == [("f", {"s": "a"})]
        assert said["content"] is None

    def test_a_repeated_key_is_dropped(self) -> None:
        twice = "<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>s</arg_key><arg_value>b</arg_value>"
        assert glm(f"<tool_call>f{twice}</tool_call>")["calls"] == [("f", {"s": "a"})]

    def test_another_call_ends_one_that_was_not_closed(self) -> None:
        said = glm("<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><tool_call>f</tool_call>")
        assert said["calls"] == [("f", {"n": 1}), ("f", {})]

    def test_prose_behind_the_marker_is_text(self) -> None:
        said = glm("See <tool_call> and so on</tool_call>.")
        assert (said["content"], said["calls"]) == ("See <tool_call> and so on</tool_call>.", [])

    def test_a_cut_leaves_the_prefix(self) -> None:
        said = glm("<tool_call>f<arg_key>s</arg_key><arg_value>half", finish="length")
        assert said["calls"] == [("f", '{"s": "half')]
        assert (
            glm("<tool_call>f<arg_key>s</arg_key><arg_value>half", finish="length", tool_call_streaming="complete")[
                "calls"
            ]
            == []
        )

    def test_reasoning_opens_again(self) -> None:
        said = glm("<think>a\n</think>b<think>c</think>d", prompt="")
        assert (said["reasoning"], said["content"]) == ("ac", "bd")

    def test_a_call_of_a_declared_tool_ends_the_reasoning(self) -> None:
        assert glm("thus<tool_call>f</tool_call>", prompt="<think>")["calls"] == [("f", {})]
        said = glm("thus<tool_call>g</tool_call>", prompt="<think>")
        assert (said["calls"], said["reasoning"]) == ([], "thus<tool_call>g</tool_call>")


class TestKimi:
    def k2(self, text: str, prompt: str = "</think>", **more: Any) -> dict[str, Any]:
        return answer("kimi_k2", "kimi_k2", K2, text, prompt, **more)

    def call(self, header: str, arguments: str = "{}") -> str:
        return f"<|tool_call_begin|>{header}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"

    def test_the_header_is_the_id(self) -> None:
        said = self.k2(f"{K2[0]} noise {self.call('functions.f:7')}\n{self.call('f:8 ')}{K2[1]} After.")
        assert said["ids"] == ["functions.f:7", "f:8"]
        assert (said["content"], len(said["calls"])) == (" After.", 2)

    def test_a_header_without_a_number_is_a_name(self) -> None:
        said = self.k2(K2[0] + self.call("functions.f") + K2[1], history_tool_calls=3)
        assert (said["calls"], said["ids"]) == ([("f", {})], ["functions.f:3"])

    def test_a_call_without_a_section(self) -> None:
        assert self.k2(self.call("functions.f:0", '{"s": "<|tool_call_end|>"}'))["calls"] == [
            ("f", {"s": "<|tool_call_end|>"})
        ]

    def test_an_empty_section_says_nothing(self) -> None:
        assert self.k2(f"Hm. {K2[0]}{K2[1]}")["content"] == "Hm. "

    def test_whitespace_at_the_end_of_the_reasoning(self) -> None:
        assert self.k2("r \n</think>c", "<think>")["reasoning"] == "r"
        assert self.k2("r \n</think>c", "<think>", framing_whitespace="trim")["reasoning"] == "r \n"

    def k3(self, text: str, prompt: str = "<|open|>think<|sep|>", **more: Any) -> dict[str, Any]:
        return answer("kimi_k3", "kimi_k3", K3, text, prompt, **more)

    def test_elements(self) -> None:
        said = self.k3(
            "r<|close|>think<|sep|><|open|>response<|sep|>c<|close|>response<|sep|><|open|>tools<|sep|>"
            '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a &quot;b&quot;" type="string"<|sep|> 1'
            '<|close|>else<|sep|> <|close|>argument<|sep|><|open|>argument key="n" type="number"<|sep|>1'
            "<|close|>argument<|sep|>"
            "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
        )
        assert (said["reasoning"], said["content"]) == ("r", "c")
        assert said["calls"] == [("f", {'a "b"': " 1<|close|>else<|sep|> ", "n": 1})]

    def test_the_prompt_opens_the_first_element(self) -> None:
        assert self.k3("c", "<|open|>response<|sep|>")["content"] == "c"
        assert self.k3("<|open|>response<|sep|>c")["content"] == "c"
        assert self.k3("r ")["reasoning"] == "r "

    def test_a_tag_that_is_cut_off_says_nothing(self) -> None:
        said = self.k3("r<|close|>think<|sep|><|open|>tools<|sep|><|open|>call to", finish="length")
        assert (said["reasoning"], said["content"], said["calls"]) == ("r", None, [])


class TestGemma:
    def test_nested_values(self) -> None:
        said = gemma(
            '<|tool_call>call:f{b:{c:[1,<|"|>x, }<|"|>,{d:null}],e:[]},n:-1e-05,s:<|"|>3<|"|>,t:True}<tool_call|>'
        )
        assert said["calls"] == [
            ("f", {"b": {"c": [1, "x, }", {"d": None}], "e": []}, "n": -1e-05, "s": "3", "t": True})
        ]

    def test_spaces_other_spellings_and_quoted_keys(self) -> None:
        said = gemma('<|tool_call>:f( a key : 1, <|"|>q:k<|"|>: <|"|><|tool_call><|"|> )<tool_call|>')
        assert said["calls"] == [("f", {"a key": 1, "q:k": "<|tool_call>"})]

    def test_the_schema_makes_bare_words_strings(self) -> None:
        assert gemma("<|tool_call>call:f{s:25,n:25}<tool_call|>")["calls"] == [("f", {"s": "25", "n": 25})]

    def test_a_repeated_key_is_dropped_with_all_it_holds(self) -> None:
        said = gemma("<|tool_call>call:f{a:1,a:{b:[2]},c:3}<tool_call|>")
        assert said["calls"] == [("f", {"a": 1, "c": 3})]

    @pytest.mark.parametrize("text", ["call:f{a:[1}}", "call:f{a}", "call:f{a:}", "call:f{a:1"])
    def test_malformed_calls_are_none_where_calls_are_sent_complete(self, text: str) -> None:
        assert gemma(f"<|tool_call>{text}<tool_call|>", tool_call_streaming="complete")["calls"] == []

    def test_no_bracket_no_call(self) -> None:
        said = gemma("<|tool_call>call:f<tool_call|>x")
        assert (said["content"], said["calls"]) == ("<|tool_call>call:fx", [])

    def test_the_label_of_the_channel(self) -> None:
        assert gemma("<|channel>thought\nr\n<channel|>c")["reasoning"] == "r"
        assert gemma("<|channel>thoughts, r<channel|>c")["reasoning"] == "thoughts, r"
        assert gemma("a<|channel>thought\nr<channel|>b")["content"] == "ab"


class TestXml:
    def m2(self, text: str, **more: Any) -> dict[str, Any]:
        return answer(
            "minimax_m2", "minimax_m2", ("<minimax:tool_call>", "</minimax:tool_call>"), text, "</think>", **more
        )

    def test_a_value_ends_at_its_closing_tag(self) -> None:
        said = self.m2(
            '<minimax:tool_call><invoke name="f"><parameter name="s"> </invoke> <parameter name="x">y </parameter>'
            "<parameter name='n'>1</parameter></invoke></minimax:tool_call>"
        )
        assert said["calls"] == [("f", {"s": ' </invoke> <parameter name="x">y ', "n": 1})]

    def test_closing_tags_that_are_missing(self) -> None:
        said = self.m2(
            '<minimax:tool_call><invoke name="f"><parameter name="n">1<parameter name="s">a\n<parameter name="x">b'
            "</invoke>\n</minimax:tool_call>"
        )
        assert said["calls"] == [("f", {"n": 1, "s": "a\n", "x": "b"})]

    def test_a_call_outside_of_a_section_names_a_declared_tool(self) -> None:
        assert self.m2('<invoke name="f"></invoke>')["calls"] == [("f", {})]
        assert self.m2('<invoke name="g"></invoke>')["content"] == '<invoke name="g"></invoke>'

    def test_step_3_strips_values(self) -> None:
        text = (
            '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">'
            '<steptml:parameter name="s">\n a  b \n</steptml:parameter></steptml:invoke>'
            "<｜tool_call_end｜><｜tool_calls_end｜> c"
        )
        said = answer("step3", "step3", STEP3, text, "</think>")
        assert (said["calls"], said["content"]) == ([("f", {"s": "a  b"})], " c")

    def m3(self, text: str) -> dict[str, Any]:
        return answer("minimax_m3", "minimax_m3", (MARK,), text.replace("^", MARK))

    def test_elements_inside_elements(self) -> None:
        said = self.m3(
            '^<tool_call>\n^<invoke name="f">^<s>a ^<b>c^</b> d^</s>^<o>^<k>1^</k>^<m>x^</m>^<m>y^</m>^</o>'
            "^<l>^<item>1^</item>^<item>2^</item>^</l>^</invoke>\n^</tool_call>"
        )
        assert said["calls"] == [("f", {"s": f"a {MARK}<b>c{MARK}</b> d", "o": {"k": 1, "m": ["x", "y"]}, "l": [1, 2]})]

    def test_empty_elements(self) -> None:
        said = self.m3('^<tool_call>^<invoke name="f">^<o>^</o>^<l>^</l>^<s>^</s>^</invoke>^</tool_call>')
        assert said["calls"] == [("f", {"o": {}, "l": [], "s": ""})]

    def test_a_call_without_a_name_is_text_also_when_restored(self) -> None:
        made = toy((MARK,))
        opener = Derenderer(made.vocabulary, tool_parser="minimax_m3")
        text = f"{MARK}<tool_call>{MARK}<invoke name=>{MARK}</invoke>"
        ids = made.encode(pieces(text, (MARK,)), random.Random(0))

        def opened() -> Any:
            return opener.chat(ChatSettings(tools=(TOOL,)), request_id="r", prompt_token_ids=[1])

        assert fold(opened(), ids, [1] * len(ids), "stop", opened)["content"] == text

    def test_a_marker_in_prose_is_text(self) -> None:
        assert self.m3("a ^<b> c")["content"] == f"a {MARK}<b> c"


def test_the_suffix_of_hunyuan_is_read_from_the_vocabulary() -> None:
    markers = ("<tool_calls:ab>", "</tool_calls:ab>", "<tool_call:ab>", "</tool_call:ab>", "<think:ab>", "</think:ab>")
    text = "r</think:ab>c<tool_calls:ab><tool_call:ab>f</tool_call:ab></tool_calls:ab>"
    said = answer("hy_v4", "hy_v4", markers, text, "<think:ab>")
    assert (said["reasoning"], said["content"], said["calls"]) == ("r", "c", [("f", {})])


def test_granite_thinks_between_sentences() -> None:
    said = answer("granite", "granite", (), "Here's my thought process: r Here is my response: c")
    assert (said["reasoning"], said["content"]) == (" r ", " c")


def test_ernie_frames_its_answer() -> None:
    said = answer("ernie45", "ernie45", (), "r\n</think>\n\n<response>\nc\n</response>\n", "<think>")
    assert (said["reasoning"], said["content"]) == ("r\n", "c\n")


def test_minimax_with_its_reasoning_in_the_content() -> None:
    said = answer("minimax_m2_append_think", "minimax_m2", ("<think>", "</think>"), "r\n</think>c", "<think>")
    assert (said["reasoning"], said["content"]) == (None, "<think>r\n</think>c")


# What hy_v4 calls its markers is read from the vocabulary: a suffix cannot be read from text.
WRITTEN = [generator for generator in GENERATORS if "<think:6124c78e>" not in generator.markers]


@pytest.mark.parametrize("generator", WRITTEN, ids=lambda g: f"{g.family} {g.reasoning_parser}")
def test_the_same_where_no_marker_is_a_token(generator: Generator) -> None:
    made = toy(())
    opener = Derenderer(made.vocabulary, reasoning_parser=generator.reasoning_parser, tool_parser=generator.tool_parser)
    for seed in range(15):
        rng = random.Random(seed)
        declared = tools(rng)
        written = generator.write(rng, declared)
        ids = made.encode(spelled(written.pieces, generator.markers), rng)
        prompt = made.encode(spelled(written.prompt, generator.markers), rng)
        settings = ChatSettings(tools=tuple(declared), framing_whitespace="trim")

        def opened(settings: ChatSettings = settings, prompt: list[int] = prompt) -> Any:
            return opener.chat(settings, request_id="r", prompt_token_ids=prompt)

        whole = fold(opened(), ids, [len(ids)], "stop")
        says(written, whole, exact=True)
        assert fold(opened(), ids, derenders.cut(len(ids), rng), "stop", opened) == whole


@pytest.mark.parametrize(
    ("parser", "begin"),
    [
        ("glm45", "</think>"),
        ("glm45", ""),
        ("glm45", "</think><tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call>"),
        ("step3", '</think><｜tool_calls_begin｜><steptml:invoke name="f"><steptml:parameter name="s">x'),
    ],
)
def test_newlines_without_end_are_linear(parser: str, begin: str) -> None:
    made = toy(GLM)
    opener = Derenderer(made.vocabulary, reasoning_parser=parser, tool_parser=parser)

    def seconds(count: int) -> float:
        best = float("inf")
        for _ in range(3):
            stream = opener.chat(ChatSettings(tools=(TOOL,)), request_id="r", prompt_token_ids=[1])
            for token_id in made.encode(pieces(begin, GLM), random.Random(0)):
                stream.feed([token_id])
            start = time.thread_time()
            for _ in range(count):
                stream.feed([10])
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(32000) < 3 * 8 * seconds(4000)


@pytest.mark.parametrize("length", [256, 257, 1024, 1025, 4096, 4097])
@pytest.mark.parametrize(
    ("parser", "markers", "text"),
    [
        ("glm45", GLM, "</think><tool_call>f<arg_key>~</arg_key><arg_value>1</arg_value></tool_call>z"),
        ("minimax_m2", (), '</think><minimax:tool_call><invoke name="f"></invoke><invoke name="~">a</invoke>z'),
        ("minimax_m2", (), '</think><minimax:tool_call><invoke name="f"><parameter name="~">a</parameter></invoke>z'),
        ("minimax_m3", (MARK,), f'{MARK}<tool_call>{MARK}<invoke name="f">{MARK}<~>1{MARK}</~>{MARK}</invoke>z'),
        ("kimi_k3", K3, '<|open|>call tool="f"<|sep|><|open|>argument key="~"<|sep|>1<|close|>argument<|sep|>z'),
        ("gemma4", GEMMA, "<|tool_call>call:~{a:1}<tool_call|>z"),
        ("gemma4", GEMMA, "<|tool_call>call:f{~:1}<tool_call|>z"),
    ],
)
def test_limits_do_not_depend_on_the_cuts(parser: str, markers: tuple[str, ...], text: str, length: int) -> None:
    answer(parser, parser, markers, text.replace("~", "k" * length))
