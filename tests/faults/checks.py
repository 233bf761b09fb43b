"""The sentences of the cases that answers alone decide, each with its checker."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.faults.cases import NO_WHITESPACE_DELTA, tokenizer
from tests.faults.evidence import Evidence, sentence
from tests.faults.exchange import DONE, Choice, reasoning_of
from tests.faults.expectation import decided_text
from tests.faults.shape import check_headers, check_stream, tool_delta_faults

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# What each family's protocol is written with.
MARKERS = {
    "qwen3": ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>"),
    "qwen3_coder": ("<function=", "</function>", "<parameter=", "</parameter>"),
    "gptoss": (
        *("<|start|>", "<|end|>", "<|message|>", "<|channel|>"),
        *("<|constrain|>", "<|return|>", "<|call|>", "to=functions."),
    ),
    "deepseek_v3": (
        *("<think>", "</think>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁sep｜>", "```json"),
    ),
    "llama3_1": ("<|eot_id|>", "<|python_tag|>", "<tool_call>", "</tool_call>"),
    "kimi": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>", "functions."),
    ),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "glm": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
}
LEAST_FRAGMENT = 3  # "<" and "</" are text as often as not


def texts_of(choice: Choice) -> dict[str, str]:
    """Every channel's whole text."""
    channels = {"content": choice.content, "reasoning": choice.reasoning}
    for call in choice.calls:
        channels[f"name {call.index}"] = call.name or ""
        channels[f"arguments {call.index}"] = call.arguments
    return channels


def pieces_of(delta: dict[str, Any]) -> list[str]:
    """The texts of one delta."""
    found = [delta.get("content") or "", reasoning_of(delta)]
    for entry in delta.get("tool_calls") or ():
        function = entry.get("function", {})
        found += [function.get("name") or "", function.get("arguments") or ""]
    return found


@sentence("stream=true (assembled) and stream=false give the same message and the same finish_reason.")
def modes_agree(evidence: Evidence) -> None:
    wholes = {plan.name if plan else "": answer for plan, answer in evidence.whole}
    assert evidence.streamed and wholes
    for plan, answer in evidence.streamed:
        whole = wholes[plan.name if plan else ""]
        assert list(whole.choices) == sorted(answer.choices)
        for index, choice in answer.choices.items():
            assert choice.summary == whole.choices[index].summary, plan


@sentence(
    "Concatenated deltas equal the expected message for this chunking and for every other chunking of the same ids "
    "(one token per chunk, all in one chunk, random cuts).",
    "Result does not depend on the chunking.",
)
def chunkings_agree(evidence: Evidence) -> None:
    assert evidence.streamed  # that each is the expected message is compared for every answer
    summaries = [answer.only.summary for _, answer in evidence.streamed]
    for summary in summaries[1:]:
        assert summary == summaries[0]


@sentence("No delta contains U+FFFD.")
def no_replacement(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert not any(REPLACEMENT in text for text in texts_of(choice).values())


@sentence("The single U+FFFD for byte 98 is correct here.")
def one_replacement(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.content.count(REPLACEMENT) == 1 and choice.content == "ok \ufffdx then fine"


@sentence("The space may be sent at once or together with the emoji, but exactly once.")
def space_once(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.content.count(" ") == evidence.case.text.count(" ")


@sentence(
    "Text is delivered as it arrives; nothing but the undecidable tail is held back.",
    "Text after the bad byte arrives without delay and undamaged.",
)
def delivered_at_once(evidence: Evidence) -> None:
    assert evidence.metered is not None
    plan, answer = evidence.metered
    stop = evidence.case.request.get("stop", [])
    said, sent = "", {}
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            said += choice["delta"].get("content") or ""
        sent[chunk["usage"]["completion_tokens"]] = said
    for count in range(1, len(plan.ids) + 1):
        so_far = [text for number, text in sent.items() if number <= count]
        due = decided_text(evidence.case.tokenizer, list(plan.ids[:count]), stop)
        assert so_far and so_far[-1].startswith(due), (count, due, so_far[-1:])


@sentence("Body and SSE bytes are valid UTF-8.")
def valid_utf8(evidence: Evidence) -> None:
    for answer in evidence.answers:
        answer.body.decode()


@sentence("completion_tokens counts the undecodable tail as well.", "All generated tokens are counted.")
def all_counted(evidence: Evidence) -> None:
    assert evidence.whole
    for answer in evidence.answers:
        assert answer.usage is None or answer.usage["completion_tokens"] == len(evidence.case.ids)


@sentence(
    "No part of the prompt text appears in any delta (an initial U+FFFD for the broken-off character is tolerable)."
)
def no_prompt(evidence: Evidence) -> None:
    prompt = tokenizer(evidence.case.tokenizer).decode(evidence.case.request["prompt_token_ids"])
    words = [word for word in re.split(r"\W+", prompt) if len(word) > 2]
    assert words
    for choice in evidence.choices:
        assert not any(word in choice.content for word in words), choice.content


@sentence(
    "Text held back (possible marker, stop prefix, partial character) is delivered at the end of the stream, before "
    "or together with finish_reason."
)
def held_text_delivered(evidence: Evidence) -> None:
    for choice in evidence.streamed_choices:
        assert choice.deltas[-1]["finish_reason"] is not None  # nothing comes after it
        if not choice.calls:
            assert choice.content == evidence.case.text


@sentence("No delta of any channel contains a protocol marker or a fragment of one.")
def no_markers(evidence: Evidence) -> None:
    case = evidence.case
    markers = MARKERS[case.tokenizer] + MARKERS.get(case.parsers[1] or "", ())
    # the recipient marker of harmony and the id prefix of kimi are markers only where they are left over whole
    fragments = [
        (marker, marker[:length]) for marker in markers for length in range(LEAST_FRAGMENT, len(marker))
        if marker[0] in "<[" and not marker[1:length].isspace()
    ]  # fmt: skip
    allowed = json.dumps(case.expected.get("message") or {}, ensure_ascii=False)
    for choice in evidence.choices:
        for channel, text in texts_of(choice).items():
            for marker in markers:
                assert marker not in text or marker in allowed, (channel, text)
        for text in [*texts_of(choice).values(), *(piece for delta in choice.deltas for piece in pieces_of(delta))]:
            for marker, fragment in fragments:
                assert not text.endswith(fragment) or fragment in allowed, (marker, text)


@sentence("No exception, no HTTP 5xx, no stream that ends as if it had succeeded.")
def no_failure(evidence: Evidence) -> None:
    assert evidence.answers
    for answer in evidence.answers:
        assert answer.status == 200 and answer.error is None, answer.body
        for choice in answer.choices.values():
            assert choice.finish_reason is not None
        assert not answer.streamed or answer.events[-1] == DONE


@sentence("All reasoning deltas precede the first content or tool_calls delta.")
def reasoning_first(evidence: Evidence) -> None:
    assert evidence.streamed
    for choice in evidence.streamed_choices:
        answering = False
        for delta in choice.deltas:
            assert not (answering and reasoning_of(delta)), choice.deltas
            answering = answering or bool(delta.get("content") or delta.get("tool_calls"))


@sentence("No tool_calls delta is sent and message.tool_calls is absent or empty.")
def no_calls(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.calls == []
        assert not any("tool_calls" in delta for delta in choice.deltas)
        assert not (choice.message or {}).get("tool_calls")


@sentence(NO_WHITESPACE_DELTA)
def no_blank_deltas(evidence: Evidence) -> None:
    for choice in evidence.streamed_choices:
        assert choice.calls
        for delta in choice.deltas:
            content = delta.get("content")
            assert not content or content.strip(), choice.deltas


@sentence(
    "Every tool_calls entry has an integer index; indices are 0,1,2,... in order of appearance; id, type='function' "
    "and function.name appear exactly once, on the first entry of that index; later entries carry only index and "
    "function.arguments (no empty-string or null name/id)."
)
def entries_well_formed(evidence: Evidence) -> None:
    assert evidence.streamed
    for choice in evidence.streamed_choices:
        entries = [entry for delta in choice.deltas for entry in delta.get("tool_calls") or ()]
        assert tool_delta_faults(entries) == [], entries
    for _, answer in evidence.whole:
        for whole in answer.choices.values():
            for entry in (whole.message or {}).get("tool_calls") or ():
                assert isinstance(entry["id"], str) and entry["id"] and entry["type"] == "function"


@sentence(
    "Per index the concatenated function.arguments is exactly one JSON document equal to the expected value; no part "
    "is sent twice, none is missing."
)
def arguments_whole(evidence: Evidence) -> None:
    if "arguments" in evidence.facts:  # a case with generated calls
        for found, wanted in evidence.fact("arguments"):
            assert json.loads(found) == wanted
        return
    expected = evidence.case.expected["message"]["tool_calls"]
    for choice in evidence.choices:
        assert len(choice.calls) == len(expected)
        for call in choice.calls:
            assert isinstance(json.loads(call.arguments), dict)  # equality is compared for every answer


@sentence("One SSE chunk has at most one tool_calls entry per index.")
def one_entry_per_index(evidence: Evidence) -> None:
    for choice in evidence.streamed_choices:
        for delta in choice.deltas:
            indices = [entry["index"] for entry in delta.get("tool_calls") or ()]
            assert len(indices) == len(set(indices)), delta


@sentence("finish_reason is non-null exactly once per choice, in its last chunk; nothing more is sent for that choice.")
def finish_once(evidence: Evidence) -> None:
    assert evidence.streamed
    for choice in evidence.streamed_choices:
        finishes = [number for number, delta in enumerate(choice.deltas) if delta["finish_reason"] is not None]
        assert finishes == [len(choice.deltas) - 1]


@sentence("delta.role='assistant' is sent exactly once per choice, in its first chunk.")
def role_once(evidence: Evidence) -> None:
    assert evidence.streamed
    for choice in evidence.streamed_choices:
        assert [delta.get("role") for delta in choice.deltas] == ["assistant"] + [None] * (len(choice.deltas) - 1)


@sentence("data: [DONE] is sent exactly once, as the last event.")
def done_once(evidence: Evidence) -> None:
    assert evidence.streamed
    for _, answer in evidence.streamed:
        assert answer.events.count(DONE) == 1 and answer.events[-1] == DONE


@sentence("finish_reason is length in both modes.")
def length_in_both(evidence: Evidence) -> None:
    assert evidence.streamed and evidence.whole
    assert {choice.finish_reason for choice in evidence.choices} == {"length"}


@sentence("object is chat.completion.chunk; id, created and model are the same in all chunks.")
def chunks_alike(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        assert {chunk["object"] for chunk in answer.chunks} == {"chat.completion.chunk"}
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in answer.chunks}) == 1


@sentence("A chunk with an empty delta is sent only for finish, usage, logprobs or continuous usage.")
def no_empty_chunks(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        check_stream(answer, usage=True)  # one of its rules


@sentence(
    "Headers: content-type text/event-stream (with charset=utf-8 or none), cache-control no-cache, x-accel-buffering: "
    "no; no content-length; no content-encoding."
)
def headers_unbuffered(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        check_headers(answer)
