"""How calls are written, family by family, as transcripts: pieces in, deltas out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.derender.deltas import Delta
from proxy.derender.derenderer import Derenderer
from proxy.derender.parsing.arguments.json_value import ValueReader
from proxy.derender.settings import ChatSettings
from tests.generators.base import Marker, toy

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in ("f", "g")
]
M = Marker


def feed(
    tool_parser: str,
    pieces: Sequence[str],
    markers: tuple[str, ...] = (),
    finish: str = "stop",
    reasoning_parser: str | None = None,
    special: tuple[str, ...] | None = None,
    **knobs: str,
) -> list[list[Delta]]:
    """What each piece gives, and then the end."""
    made = toy(tuple(map(str, markers)), tuple(map(str, markers)) if special is None else special)
    opener = Derenderer(made.vocabulary, reasoning_parser=reasoning_parser, tool_parser=tool_parser, **knobs)
    stream = opener.chat(ChatSettings(tools=TOOLS), request_id="r", prompt_token_ids=[1])
    out = []
    for piece in pieces:
        ids = [made.vocabulary.added[piece]] if isinstance(piece, Marker) else list(piece.encode())
        out.append(stream.feed(ids))
    return [*out, stream.feed([], finish)]


def arguments(deltas: Sequence[Sequence[Delta]]) -> list[str]:
    """The fragments of arguments, in order."""
    calls = [call for step in deltas for delta in step for call in delta.tool_calls or ()]
    return [call.arguments for call in calls if call.arguments]


def answer(deltas: Sequence[Sequence[Delta]]) -> tuple[str, list[tuple[str, str]]]:
    content = "".join(delta.content or "" for step in deltas for delta in step)
    calls: list[list[str]] = []
    for call in (call for step in deltas for delta in step for call in delta.tool_calls or ()):
        if call.name is not None:
            calls.append([call.name, ""])
        calls[call.index][1] += call.arguments or ""
    return content, [(name, text) for name, text in calls]


# -- Python's syntax -------------------------------------------------------------------------------------


def test_a_python_string_streams_while_it_is_written() -> None:
    got = feed("pythonic", ["[f(city='Par", "is\\", "n ", "is'", ", n=3)]"])
    assert arguments(got) == ['{"city": "Par', "is", "\\n ", "is", '", "n": 3}']


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("None", None),
        ("true", True),
        ("-5", -5),
        ("+5", 5),
        ("1_000", 1000),
        ("0x10", 16),
        (".5", 0.5),
        ("1e21", 1e21),
        ("123456789012345678901", 123456789012345678901),
        ("word", "word"),
        ("'it\\'s'", "it's"),
        ("'a' \"b\"", "ab"),
        ("''", ""),
        ("'''a'b\n'''", "a'b\n"),
        ("r'\\d'", "\\d"),
        ("'\\d\\x41\\u00e9\\U0001F600\\101\\N{BULLET}'", "\\dAé😀A•"),
        ("'\\1z'", "\x01z"),
        ("'a\\\nb'", "ab"),
        ("[1, 'x', [], ()]", [1, "x", [], []]),
        ("(1, 2,)", [1, 2]),
        ("{'a': {'b': None}, 1: 'c', True: []}", {"a": {"b": None}, "1": "c", "true": []}),
        ("{}", {}),
        ("{'a', 'b'}", ["a", "b"]),
        ("{(1, 2)}", [[1, 2]]),
    ],
)
def test_python_literals(written: str, said: Any) -> None:
    content, calls = answer(feed("pythonic", [f"[f(n={written})]"]))
    assert (content, [name for name, _ in calls]) == ("", ["f"])
    assert json.loads(calls[0][1]) == {"n": said}


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[]", "[f]", "[f(1)]", "[h(n=1)]", "[f(n=1", "f(n=1)", "[f (", "x [f(n=1)]"]
)
def test_other_lists_are_text(text: str) -> None:
    declared = text != "[f(n=1"
    assert answer(feed("pythonic", [text], finish="stop"))[0] == (text if declared else "")


def test_a_list_that_does_not_close_has_no_calls_where_they_are_sent_complete() -> None:
    text = "[f(city='a'), g(city='b"
    assert [name for name, _ in answer(feed("pythonic", [text], finish="length"))[1]] == ["f", "g"]
    assert answer(feed("pythonic", [text], finish="length", tool_call_streaming="complete")) == ("", [])
    closed = answer(feed("pythonic", [text + "')]"], tool_call_streaming="complete"))
    assert closed == ("", [("f", '{"city": "a"}'), ("g", '{"city": "b"}')])


_MARKS = {
    "<|python_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "[TOOL_CALLS]",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
}
_LISTS = [  # parser, what opens the list, a call, what stands between two, what closes the list and the frame
    ("pythonic", "[", "f(n=1)", ", ", "]", ""),
    ("llama4_pythonic", "[", "f(n=1)", ", ", "]", M("<|python_end|>")),
    ("lfm2", M("<|tool_call_start|>") + "[", "f(n=1)", ", ", "]", M("<|tool_call_end|>")),
    ("olmo3", "<function_calls>", "f(n=1)", "\n", "", "</function_calls>"),
    ("jamba", "<tool_calls>[", '{"name": "f", "arguments": {"n": 1}}', ", ", "]", "</tool_calls>"),
    ("granite", "<tool_call>[", '{"name": "f", "arguments": {"n": 1}}', ", ", "]", ""),
    ("hunyuan_a13b", "<tool_calls>[", '{"name": "f", "arguments": {"n": 1}}', ", ", "]", "</tool_calls>"),
    ("xlam", "[", '{"name": "f", "arguments": {"n": 1}}', ", ", "]", ""),
    ("phi4_mini_json", "functools[", '{"name": "f", "arguments": {"n": 1}}', ", ", "]", ""),
    ("mistral", M("[TOOL_CALLS]") + "[", '{"name": "f", "arguments": {"n": 1}}', ", ", "]", ""),
    ("apertus", M("<|tools_prefix|>") + "[", '{"f": {"n": 1}}', ", ", "]", M("<|tools_suffix|>")),
    (
        "cohere_command3",
        M("<|START_ACTION|>") + "[",
        '{"tool_name": "f", "parameters": {"n": 1}}',
        ", ",
        "]",
        M("<|END_ACTION|>"),
    ),
]
_BROKEN_ITEMS = ["oops", "{oops", '{"nam', '{"x": [1, "}', "7", "g", "g(", "g(7)", "x" * 300, "x" * 5000, '{"name": 3}']


@pytest.mark.parametrize("written", _LISTS, ids=[row[0] for row in _LISTS])
def test_what_breaks_a_list_is_text_and_the_calls_before_it_stay(written: tuple[str, ...]) -> None:
    parser, begin, call, between, end, close = written
    marks = tuple(mark for mark in (begin.rstrip("["), close) if mark in _MARKS)
    begins = [begin[: -len("[")], "["] if begin.endswith("[") and begin[:-1] in _MARKS else [begin]
    pieces = [M(piece) if piece in _MARKS else piece for piece in begins if piece]
    calls = [("f", '{"n": 1}')]
    for item in _BROKEN_ITEMS:
        if parser == "apertus" and item.startswith(('{"x"', '{"name"')):
            continue  # calls of ``x`` and ``name`` there
        for tail in ("", end):
            broken = feed(parser, [*pieces, call + between + item + tail], marks)
            assert answer(broken) == (item + tail, calls), (item, tail)
            framed = [*pieces, call, between, *item, tail, *([M(close) if close in _MARKS else close] if close else [])]
            # in an open string the closing tag is data
            open_string = parser != "olmo3" and item.count('"') % 2 == 1 and close not in _MARKS
            assert answer(feed(parser, framed, marks)) == (item + tail + close * open_string, calls), (item, tail)
            # a marker breaks it as well
            if len(item) <= 4 and "(" not in item:
                again = feed(parser, [*pieces, call + between + item, M("<|odd|>")], (*marks, "<|odd|>"))
                assert answer(again) == (item, calls)
    # cut by a limit, it may have become a call: not text, as for the first one
    assert answer(feed(parser, [*pieces, call, between, item[:4]], marks, finish="length"))[1] == calls
    # whole lists, and those with a comma too many
    assert answer(feed(parser, [*pieces, call, between, call, end], marks)) == ("", calls * 2)
    assert answer(feed(parser, [*pieces, call, between, end], marks)) == ("", calls)


_A, _B, _S, _E, _Z = map(M, (
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
))  # fmt: skip
_K = [M(f"<|tool_{name}|>") for name in (
    "calls_section_begin", "call_begin", "call_argument_begin", "call_end", "calls_section_end",
)]  # fmt: skip
_P = [M(f"<|plamo:{name}:plamo|>") for name in (
    "begin_tool_requests", "begin_tool_request", "begin_tool_name", "end_tool_name", "begin_tool_arguments",
    "end_tool_arguments", "end_tool_request", "end_tool_requests",
)]  # fmt: skip
_JSON = _P[4] + "<|plamo:constrain|>json<|plamo:msg|>"
_H = [M(f"<|{name}|>") for name in ("channel", "message", "call", "start", "end", "constrain")]
_I = [M(f"<|{name}|>") for name in ("content_invoke_tool_json", "end_message", "content_text", "message_model")]
_AROUND: list[tuple[str, str | None, tuple[str, ...], list[str], list[str], list[str], str]] = [
    # parsers, markers, what begins, a call up to its arguments, what ends it, and the text that is to be told
    ("deepseek_v31", None, (_A, _B, _S, _E, _Z), [_A], [_B, "f", _S], [_E, _Z], ""),
    ("deepseek_v3", None, (_A, _B, _S, _E, _Z), [_A], [_B, "function", _S, "f\n```json\n"], ["\n```", _E, _Z], ""),
    ("kimi_k2", None, tuple(_K), [_K[0]], [_K[1], "functions.f:0", _K[2]], [_K[3], _K[4]], ""),
    ("plamo3", None, tuple(_P), [_P[0]], [_P[1], _P[2], "f", _P[3], _JSON], _P[5:8], ""),
    ("openai", "openai_gptoss", tuple(_H), [], [_H[0], "commentary to=functions.f", _H[1]], [_H[2]], ""),
    ("inkling", "inkling", tuple(_I), [], [_I[0], '{"name": "f", "args": '], ["}", _I[1]], "}"),
]


@pytest.mark.parametrize("row", _AROUND, ids=[row[0] for row in _AROUND])
def test_text_behind_the_arguments_of_a_call_is_content(row: Any) -> None:
    tools, reasoning_parser, marks, begin, call, end, left = row
    more: dict[str, Any] = {"reasoning_parser": reasoning_parser}
    whole = feed(tools, [*begin, *call, '{"n": 1}', *end], marks, **more)
    assert answer(whole) == ("", [("f", '{"n": 1}')])
    junk = [*begin, *call, '{"n": 1} ', "some", " junk", *end]
    for mode in ("incremental", "complete"):
        content, calls = answer(feed(tools, junk, marks, **more, tool_call_streaming=mode))
        called = not left or mode == "incremental"  # a call that does not close is none where it is sent complete
        assert (content.strip(), calls) == ("some junk" + left, [("f", '{"n": 1}')] * called)


@pytest.mark.parametrize(
    ("parser", "written", "tail"),
    [
        ("olmo3", "<function_calls>f(n=1)\n", "<"),
        ("olmo3", "<function_calls>f(n=1)\n", "</func"),
        ("jamba", '<tool_calls>[{"name": "f", "arguments": {"n": 1}}]', " </tool_"),
        ("jamba", '<tool_calls>[{"name": "f", "arguments": {"n": 1}}]</tool_calls>', " <tool"),
        ("hunyuan_a13b", '<tool_calls>[{"name": "f", "arguments": {"n": 1}}]</tool_calls>', " <"),
        ("xlam", '[{"name": "f", "arguments": {"n": 1}}]', " </tool_"),
    ],
)
def test_what_begins_as_a_marker_behind_a_call_is_text_once_it_ends(parser: str, written: str, tail: str) -> None:
    calls = [("f", '{"n": 1}')]
    assert answer(feed(parser, [written, *tail])) == (tail, calls)
    assert answer(feed(parser, [written + tail + "x"])) == (tail + "x", calls)
    content, found = answer(feed(parser, [written, " \n"]))
    assert (content.strip(), found) == ("", calls)
    # cut by a limit it may have become one
    cut = answer(feed(parser, [written, *tail], finish="length"))
    assert cut[1] == calls and (cut[0] == "" or "</tool_calls>" in written)


def test_text_between_the_calls_of_deepseek_v3_is_content() -> None:
    call = [_B, "f", _S, '{"n": 1}', _E]
    pieces = [_A, "a", *call, "\n", *call, "b ", *call, _Z, "c"]
    assert answer(feed("deepseek_v31", pieces, (_A, _B, _S, _E, _Z))) == ("ab c", [("f", '{"n": 1}')] * 3)


def test_a_label_of_inkling_is_text_unless_a_block_follows() -> None:
    model, text, end = M("<|message_model|>"), M("<|content_text|>"), M("<|end_message|>")
    assert answer(feed("inkling", ["all ", "of it", end, model, "label", text, "!", end], (model, text, end)))[0] == (
        "all of it!"
    )


def test_llama_4_frames_the_list_now_and_then() -> None:
    begin, end = M("<|python_start|>"), M("<|python_end|>")
    got = feed("llama4_pythonic", [begin, "[f(n=1)]", end, " and more"], (begin, end))
    assert answer(got) == (" and more", [("f", '{"n": 1}')])


# -- DSML ------------------------------------------------------------------------------------------------

_D = "｜DSML｜"


def _invoke(*parameters: str, space: str = "") -> str:
    body = "".join(f"<{_D}{space}parameter {text}</{_D}{space}parameter>\n" for text in parameters)
    return f'<{_D}{space}invoke name="f">\n{body}</{_D}{space}invoke>\n'


def test_dsml_strings_stream_and_end_at_their_own_tag_only() -> None:
    begin = f'\n\n<{_D}tool_calls>\n<{_D}invoke name="f">\n<{_D}parameter name="city" string="true">'
    got = feed("deepseek_v4", [begin + "a", f' <b> <{_D}invoke name="g">', "\n", f"</{_D}par", "ameter>\n"])
    assert arguments(got) == ['{"city": "a', f' <b> <{_D}invoke name=\\"g\\">', "\\n", '"']


@pytest.mark.parametrize(
    ("name", "outer", "space"),
    [("deepseek_v32", "function_calls", ""), ("deepseek_v4", "tool_calls", ""), ("deepseek_v41", "calls", " ")],
)
@pytest.mark.parametrize("special", [(), (_D,)])
def test_dsml_dialects(name: str, outer: str, space: str, special: tuple[str, ...]) -> None:
    text = _invoke(
        'name="city" string="true"> x ', 'name="n" string="false">3', 'name="city" string="true">y', space=space
    )
    pieces = f"Hi\n\n<{_D}{space}{outer}>\n{text}</{_D}{space}{outer}>".split(_D)
    tokens = [part for piece in pieces for part in (piece, M(_D))][:-1]
    got = feed(name, tokens, (_D,), special=special)
    assert answer(got) == ("Hi\n\n", [("f", '{"city": " x ", "n": 3}')])


@pytest.mark.parametrize(
    ("attributes", "written", "said"),
    [
        ('name="n" string="false"', '{"a": [1]}', {"a": [1]}),
        ('name="n" string="false"', "no JSON", "no JSON"),
        ('name="city"', "3", "3"),
        ('name="n"', "3", 3),
        ('name="other"', "null", None),
    ],
)
def test_dsml_types(attributes: str, written: str, said: Any) -> None:
    text = f"<{_D}tool_calls>{_invoke(f'{attributes}>{written}')}</{_D}tool_calls>"
    ((_, given),) = answer(feed("deepseek_v4", [text]))[1]
    assert list(json.loads(given).values()) == [said]


@pytest.mark.parametrize("end", ["/>", "></｜DSML｜invoke>", ">\n\n</｜DSML｜invoke>"])
def test_dsml_without_parameters(end: str) -> None:
    got = feed("deepseek_v4", [f'<{_D}tool_calls>\n<{_D}invoke name="f"{end}\n</{_D}tool_calls>'])
    assert answer(got) == ("", [("f", "{}")])


def test_dsml_without_its_outer_element_has_to_name_a_declared_tool() -> None:
    call = _invoke('name="n" string="false">3')
    assert answer(feed("deepseek_v4", [call])) == ("", [("f", '{"n": 3}')])
    assert answer(feed("deepseek_v4", [call.replace('"f"', '"h"')])) == (call.replace('"f"', '"h"'), [])


# -- a name in front of JSON -----------------------------------------------------------------------------

_CALLS, _ARGS, _ID = M("[TOOL_CALLS]"), M("[ARGS]"), M("[CALL_ID]")
_MISTRAL = (_CALLS, _ARGS, _ID)


def test_mistral_generations() -> None:
    plain = ("", [("f", '{"n": 1}'), ("g", "{}")])
    v11 = [_CALLS, "f", _ARGS, '{"n": 1}', _CALLS, "g", _ARGS, "{}"]
    assert answer(feed("mistral", v11, _MISTRAL)) == plain
    assert answer(feed("mistral", [_CALLS, 'f{"n": 1}', _CALLS, "g{}"], _MISTRAL)) == plain
    v3 = [_CALLS, ' [{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]']
    assert answer(feed("mistral", v3, _MISTRAL)) == plain
    spelled = ["[TOOL_CALLS]f[ARGS]", '{"n": 1}', "[TOOL_CALLS]g[AR", "GS]{}"]
    assert answer(feed("mistral", spelled)) == plain


def test_mistral_ids() -> None:
    got = feed("mistral", [_CALLS, "f", _ID, "a1b2c3d4e", _ARGS, "{}", _CALLS, "g", _ARGS, "{}"], _MISTRAL)
    ids = [call.id for step in got for delta in step for call in delta.tool_calls or () if call.id]
    assert ids[0] == "a1b2c3d4e"
    assert len(ids[1]) == 9 and ids[1].isalnum()


@pytest.mark.parametrize(
    ("pieces", "content"),
    [
        ([_CALLS], ""),
        (["hi", _CALLS], "hi"),
        ([_CALLS, " not json at all"], " not json at all"),
        ([_CALLS, "f"], "f"),
        ([_CALLS, _CALLS, "f", _ARGS, "{}"], ""),
        (["[TOOL_CALLS]f[ARGS]{}"], "[TOOL_CALLS]f[ARGS]{}"),
    ],
)
def test_mistral_markers_that_are_no_call(pieces: list[str], content: str) -> None:
    assert answer(feed("mistral", pieces, _MISTRAL))[0] == content


# -- objects without a frame -------------------------------------------------------------------------------


def test_a_json_answer_streams_once_a_key_shows_that_it_is_no_call() -> None:
    got = feed("llama3_json", ['{"type": "object", ', '"answer": "x', "y", '"}'])
    assert [delta.content for step in got for delta in step][:3] == ['{"type": "object", "answer": "x', "y", '"}']


def test_keys_in_front_of_the_name() -> None:
    got = feed("llama3_json", ['{"type": "function", "id": "1", "parameters": {"n": 1}, "name": "f"}'])
    assert answer(got) == ("", [("f", '{"n": 1}')])


# -- reasoning ---------------------------------------------------------------------------------------------


def reasoning(deltas: Sequence[Sequence[Delta]]) -> str:
    return "".join(delta.reasoning or "" for step in deltas for delta in step)


def test_a_call_of_a_declared_tool_ends_the_reasoning_of_deepseek_v4() -> None:
    think, end = M("<think>"), M("</think>")
    call = f"\n\n<{_D}tool_calls>\n{_invoke()}</{_D}tool_calls>"
    got = feed("deepseek_v4", [think, "so ", call], (think, end), reasoning_parser="deepseek_v4")
    assert (reasoning(got), *answer(got)) == ("so", "", [("f", "{}")])
    other = call.replace('"f"', '"h"')
    got = feed("deepseek_v4", [think, "so ", other, " x", end, "a"], (think, end), reasoning_parser="deepseek_v4")
    assert (reasoning(got), *answer(got)) == ("so " + other + " x", "a", [])


def test_mistral_reasoning_holds_markers_of_calls_and_may_be_spelled_out() -> None:
    think, end = M("[THINK]"), M("[/THINK]")
    pieces = [think, "a ", _CALLS, "f", _ARGS, "{} \n", end, "hi", _CALLS, "f", _ARGS, "{}"]
    got = feed("mistral", pieces, (*_MISTRAL, think, end), reasoning_parser="mistral")
    assert (reasoning(got), *answer(got)) == ("a [TOOL_CALLS]f[ARGS]{}", "hi", [("f", "{}")])
    got = feed("mistral", ["<think>a</th", "ink>b"], _MISTRAL, reasoning_parser="mistral")
    assert (reasoning(got), *answer(got)) == ("a", "b", [])


# -- arguments that are encoded twice ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (r'"{\"city\": \"Rom\"}"', '{"city": "Rom"}'),
        (r'"\n {\"city\": \"K\u00f6ln \ud83d\ude00 \\\"x\\\\\"}"', '\n {"city": "Köln 😀 \\"x\\\\"}'),
        (r'"{\"a\": \"\\u00e9\\n\"}"', '{"a": "\\u00e9\\n"}'),
        ('""', "{}"),
        ('"  "', "{}"),
        ('"str"', '"str"'),
        (r'"\"quoted\""', r'"\"quoted\""'),
        (r'"[1, 2]"', '"[1, 2]"'),
        ("null", "{}"),
        ("{}", "{}"),
        ("nothing", "nothing"),
    ],
)
def test_a_string_that_holds_an_object_is_that_object(written: str, expected: str) -> None:
    """In any cut: the pieces go out as they come, with no escape torn."""
    for step in (1, 2, 3, 5, 100):
        reader, said = ValueReader(), Said()
        for at in range(0, len(written), step):
            saved = json.loads(json.dumps(reader.save()))
            reader = ValueReader()
            reader.load(saved)
            reader.text(written[at : at + step], said)
        if not reader.done:
            reader.finish(said)
        assert "".join(said.parts) == expected
        assert said.ended == [True]


class Said:
    """What a reader says."""

    named = ""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.ended: list[bool] = []

    def begin(self, name: str, call_id: str = "") -> bool:
        return True

    def arguments(self, text: str) -> None:
        self.parts.append(text)

    def end(self, closed: bool, listed: bool = False) -> None:
        self.ended.append(closed)

    def end_list(self, closed: bool) -> None:
        self.ended.append(closed)

    def further(self) -> None:
        pass

    def schema(self, name: str) -> dict[str, object]:
        return {}
