"""Sentences of single cases: calls, reasoning, usage, logprobs, stop strings."""

from __future__ import annotations

import json
import re

from tests.faults.checks import texts_of
from tests.faults.evidence import Evidence, sentence
from tests.faults.exchange import DONE, reasoning_of
from tests.faults.expectation import same


@sentence("The two ids differ.", "Three different ids.")
def ids_differ(evidence: Evidence) -> None:
    expected = len(evidence.case.expected["message"]["tool_calls"])
    for choice in evidence.choices:
        assert len({call.id for call in choice.calls}) == expected


@sentence("If name, arguments and finish come in the same SSE chunk or in several is free; none may be missing.")
def nothing_missing(evidence: Evidence) -> None:
    for choice in evidence.choices:
        (call,) = choice.calls
        assert call.name and call.arguments and choice.finish_reason


@sentence(
    "Nothing after the end token is sent; it is neither counted in completion_tokens nor present in logprobs.",
)
def nothing_after_end(evidence: Evidence) -> None:
    ids = evidence.case.ids
    end = evidence.fact("eos position")
    for answer in evidence.answers:
        choice = answer.only
        assert choice.content == evidence.case.expected["message"]["content"]
        assert answer.usage is not None and answer.usage["completion_tokens"] == end + 1
        assert choice.logprobs is not None and len(choice.logprobs) <= end + 1
        assert choice.token_ids is not None and choice.token_ids == list(ids[: len(choice.token_ids)])
        assert len(choice.token_ids) <= end + 1


@sentence("reasoning_tokens never exceeds completion_tokens.")
def reasoning_bounded(evidence: Evidence) -> None:
    for answer in evidence.answers:
        assert answer.usage is not None
        details = answer.usage["completion_tokens_details"]
        assert 0 <= details["reasoning_tokens"] <= answer.usage["completion_tokens"]


@sentence("No reasoning field with text in any delta.")
def no_reasoning(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.reasoning == ""


@sentence("No reasoning delta with non-whitespace text; reasoning is null or empty in the final message.")
def blank_reasoning(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.reasoning.strip() == ""
    for _, answer in evidence.whole:
        assert not (answer.only.message or {}).get("reasoning")


@sentence("No reasoning field in any delta, no logprobs entry for a reasoning token.")
def reasoning_hidden(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.reasoning == ""
        assert not any("reasoning" in delta or "reasoning_content" in delta for delta in choice.deltas)
        hidden = {"plan", "\n", "</think>"}
        assert not any(entry["token"] in hidden for entry in choice.logprobs or ())


@sentence("The role chunk and the finish chunk are still sent; empty keep-alive deltas are allowed.")
def frame_still_sent(evidence: Evidence) -> None:
    for choice in evidence.streamed_choices:
        assert choice.deltas[0].get("role") == "assistant" and choice.deltas[-1]["finish_reason"] == "stop"


@sentence('content is null or "" in the final message.')
def no_content(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.content == ""


@sentence('The wrapper (brackets, "name", "parameters") never shows in content or arguments.')
def no_wrapper(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.content == ""
        for call in choice.calls:
            assert '"parameters"' not in call.arguments and '"name"' not in call.arguments


@sentence(
    "Either the model's escapes or the plain characters are sent, one or the other consistently; never a lone "
    "surrogate as a character."
)
def escapes_consistent(evidence: Evidence) -> None:
    for choice in evidence.choices:
        text = choice.calls[0].arguments
        text.encode()  # no lone surrogates
        assert ("\\u00f6" in text and "\\ud83d\\ude00" in text) != ("ö" in text and "😀" in text), text
    for choice in evidence.streamed_choices:
        for delta in choice.deltas:
            for entry in delta.get("tool_calls") or ():
                entry["function"]["arguments"].encode()


@sentence("The name delta comes first, even if arguments have to be held until the name is known.")
def name_first(evidence: Evidence) -> None:
    for choice in evidence.streamed_choices:
        entries = [entry for delta in choice.deltas for entry in delta.get("tool_calls") or ()]
        assert entries[0]["function"]["name"] == "get_time"


@sentence("Only index 0 ever appears.")
def only_first(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert [call.index for call in choice.calls] == [0]


@sentence(
    "No invented closing of the JSON: the concatenated arguments are a prefix of what the model was writing."
)
def no_invented_end(evidence: Evidence) -> None:
    (prefix,) = evidence.case.expected["tool_calls_prefix"]
    for choice in evidence.choices:
        for call in choice.calls:
            assert prefix["arguments_is_prefix_of"].startswith(call.arguments)


@sentence("No call with an incomplete or unknown name is sent.")
def no_partial_name(evidence: Evidence) -> None:
    declared = {tool["function"]["name"] for tool in evidence.case.tools or ()}
    for choice in evidence.choices:
        assert all(call.name in declared for call in choice.calls)


@sentence('The concatenated arguments are "{}", not "".')
def empty_object(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert [call.arguments for call in choice.calls] == ["{}"]


@sentence("The digits 9007199254740993 appear unchanged in function.arguments.")
def digits_kept(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert "9007199254740993" in choice.calls[0].arguments


@sentence("The well-formed second call survives.")
def second_survives(evidence: Evidence) -> None:
    wanted = evidence.case.expected["must_include_call"]["arguments_json"]
    for choice in evidence.choices:
        assert wanted in [json.loads(call.arguments or "{}") for call in choice.calls]


@sentence("index is local to this answer (0,1); the id is the one the model wrote.")
def ids_of_model(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert [(call.index, call.id) for call in choice.calls] == list(enumerate(evidence.case.expected["ids"]))


@sentence("The stray text is in no channel.")
def no_stray_text(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert not any("stray" in text for text in texts_of(choice).values())


@sentence("Ids match ^[A-Za-z0-9]{9}$, in stream and non-stream.")
def nine_characters(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert all(re.fullmatch("[A-Za-z0-9]{9}", call.id or "") for call in choice.calls)


@sentence(
    "No piece of the stop string is ever sent.",
    "Nothing after the match is sent, even if the engine delivers more tokens.",
)
def stop_string_cut(evidence: Evidence) -> None:
    (stop,) = evidence.case.request["stop"]
    before = evidence.case.text[: evidence.case.text.index(stop)]
    for choice in evidence.choices:
        assert choice.content == before


@sentence('Same ids with engine finish_reason=length: content "left right up", stop_reason null.')
def text_at_length(evidence: Evidence) -> None:
    for answer in evidence.fact("finished by length"):
        choice = answer.only
        assert (choice.content, choice.stop_reason) == ("left right up", None)
        assert choice.finish_reason == "length"


@sentence(
    "Concatenating logprobs.content over all chunks gives one entry per generated token, in order, each once - "
    "including the tokens of markers."
)
def entry_per_token(evidence: Evidence) -> None:
    tokens = evidence.case.expected["logprobs"]["tokens"]
    for choice in evidence.choices:
        assert [entry["token"] for entry in choice.logprobs or ()] == tokens


@sentence("The bytes lists concatenated are the UTF-8 bytes of the text.")
def bytes_of_text(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert b"".join(bytes(entry["bytes"]) for entry in choice.logprobs or ()) == evidence.case.text.encode()


@sentence("token is a string for every entry; for partial characters its spelling is free.")
def tokens_are_strings(evidence: Evidence) -> None:
    for choice in evidence.choices:
        assert choice.logprobs
        for entry in choice.logprobs:
            assert all(isinstance(top["token"], str) for top in [entry, *entry["top_logprobs"]])
            assert len(entry["top_logprobs"]) >= evidence.case.request["top_logprobs"]


@sentence("No entry for a token whose text begins after the match.")
def no_entry_after_match(evidence: Evidence) -> None:
    for choice in evidence.choices:
        text = "".join(entry["token"] for entry in choice.logprobs or ())
        (stop,) = evidence.case.request["stop"]
        assert evidence.case.text.startswith(text)
        last = (choice.logprobs or [])[-1]["token"]
        assert len(text) - len(last) < evidence.case.text.index(stop) + len(stop)
        assert choice.token_ids == list(evidence.case.ids[: len(choice.logprobs or ())])


@sentence("Within a chunk, text and logprobs may differ by the held tail only; in total they agree.")
def logprobs_keep_up(evidence: Evidence) -> None:
    (stop,) = evidence.case.request["stop"]
    for _, answer in evidence.streamed:
        text = tokens = ""
        for chunk in answer.chunks:
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                tokens += "".join(entry["token"] for entry in (choice.get("logprobs") or {}).get("content", ()))
            assert tokens.startswith(text)
            held = tokens[len(text) :]
            assert stop.startswith(held.lstrip()) or text == evidence.case.text[: evidence.case.text.index(stop)], held
        assert tokens.removesuffix(stop) == text


@sentence("choices is present and [] in the usage chunk; it is the last event before [DONE].")
def usage_chunk(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        assert answer.events[-1] == DONE
        usage = answer.events[-2]
        assert usage["choices"] == [] and usage["usage"]
        assert all(chunk["choices"] for chunk in answer.chunks[:-1])


@sentence("All earlier chunks have usage null or no usage key.")
def no_early_usage(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        assert all(chunk.get("usage") is None for chunk in answer.chunks[:-1])


@sentence(
    "Every chunk has usage; completion_tokens never decreases and equals the number of tokens received from the "
    "engine so far for that choice."
)
def usage_everywhere(evidence: Evidence) -> None:
    for plan, answer in evidence.streamed:
        assert plan is not None
        received = {0}
        for length in plan.lengths:
            received.add(max(received) + length)
        counts = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks]
        assert counts == sorted(counts) and set(counts) <= received and counts[-1] == sum(plan.lengths)


@sentence("The last value equals the final usage chunk.")
def last_usage_is_final(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        last, final = answer.chunks[-2:]
        assert final["choices"] == [] and last["choices"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last["usage"][name] == final["usage"][name]


@sentence("total_tokens = prompt_tokens + completion_tokens in every chunk.")
def totals_add_up(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        for chunk in answer.chunks:
            usage = chunk["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@sentence("Each choice gives the same as if it were alone, for every interleaving.")
def as_if_alone(evidence: Evidence) -> None:
    alone = evidence.fact("alone")
    for answer in evidence.answers:
        for index, choice in answer.choices.items():
            assert choice.summary == alone[index].summary


@sentence("Choices are in index order in the non-streamed answer.")
def choices_in_order(evidence: Evidence) -> None:
    for _, answer in evidence.whole:
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1]


@sentence("One field name per server configuration, the same in stream and non-stream.")
def one_field(evidence: Evidence) -> None:
    for setting, answers in evidence.fact("by setting").items():
        names = {"reasoning", "reasoning_content"} if setting == "both" else {setting}
        for answer in answers:
            deltas = [choice.message or {} for choice in answer.choices.values()]
            if answer.streamed:
                deltas = [delta for delta in answer.only.deltas if reasoning_of(delta)]
            assert deltas
            for delta in deltas:
                assert {name for name in ("reasoning", "reasoning_content") if delta.get(name)} == names, setting


@sentence("If both names are offered, each carries the full text (never a part in one and a part in the other).")
def both_full(evidence: Evidence) -> None:
    text = evidence.case.input["reasoning_text"]
    for answer in evidence.fact("by setting")["both"]:
        choice = answer.only
        sources = choice.deltas if answer.streamed else [choice.message or {}]
        for name in ("reasoning", "reasoning_content"):
            assert same("".join(source.get(name) or "" for source in sources), text, "strip")


@sentence("reasoning is absent or null in chunks that carry content.")
def never_both(evidence: Evidence) -> None:
    for answers in evidence.fact("by setting").values():
        for answer in answers:
            for delta in answer.only.deltas:
                assert not (delta.get("content") and reasoning_of(delta))
