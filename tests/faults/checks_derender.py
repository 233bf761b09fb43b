"""Sentences about the stateless derender endpoints."""

from __future__ import annotations

import json
import re

from tests.faults.evidence import Evidence, sentence


@sentence("stream_state survives json.dumps/json.loads.")
def state_survives(evidence: Evidence) -> None:
    for state in evidence.fact("states"):
        assert json.loads(json.dumps(state)) == state
    assert evidence.streamed  # every call was made with a state that had been through both


@sentence("stream_state size is bounded (does not grow with the number of calls) when no parser is configured.")
def state_bounded(evidence: Evidence) -> None:
    middle, end = evidence.fact("sizes of a long stream")
    assert end <= 1.1 * middle + 64, (middle, end)


@sentence("An empty token_ids chunk with finish_reason changes no text and leaves the window as it is.")
def empty_finish(evidence: Evidence) -> None:
    text, before, after = evidence.fact("empty finish")
    assert text == ""
    for name in ("prev_tokens", "prefix_offset", "read_offset"):
        assert before[name] == after[name], name


@sentence(
    "Sum of the streamed chunks = answer of the non-streaming derender call for the same ids = answer of "
    "/v1/chat/completions."
)
def three_ways(evidence: Evidence) -> None:
    summaries = [answer.only.summary for answer in evidence.answers]
    assert len(summaries) >= 4
    assert all(summary == summaries[0] for summary in summaries), summaries


@sentence("stream_state.output_chunk_lens has one entry per non-empty call and sums to len(output_token_ids).")
def lengths_add_up(evidence: Evidence) -> None:
    for calls, state in evidence.fact("calls and state"):
        assert len(state["output_chunk_lens"]) == calls
        assert sum(state["output_chunk_lens"]) == len(state["output_token_ids"])


@sentence(
    "Each call has one id in all chunks of a stream, and it equals stream_state.last_tool_call_ids[index].",
    "An id once sent for a call never changes.",
)
def ids_pinned(evidence: Evidence) -> None:
    assert evidence.fact("ids in states")
    for sent, states in evidence.fact("ids in states"):
        assert sent
        for pinned in states:
            assert pinned == sent[: len(pinned)]
        assert states[-1] == sent


@sentence("The repeated request gives the same id for calls already opened in stream_state.")
def repeated_ids(evidence: Evidence) -> None:
    assert evidence.fact("answers and repeats")
    for first, again in evidence.fact("answers and repeats"):
        assert first == again


@sentence("Ids of different requests differ (no index-derived ids such as call_0).")
def ids_of_requests(evidence: Evidence) -> None:
    first, second = evidence.fact("ids of two requests")
    assert len(set(first) | set(second)) == len(first) + len(second)
    assert not any(re.fullmatch(r"call_?\d{1,3}", call_id) for call_id in [*first, *second])


@sentence("Never 500.")
def never_500(evidence: Evidence) -> None:
    assert all(status < 500 for _, status in evidence.fact("statuses"))


@sentence('Answers to stream=true are plain JSON {"chunk":...,"stream_state":...}, not SSE.')
def plain_json(evidence: Evidence) -> None:
    assert evidence.fact("streamed answers")
    for kind, keys in evidence.fact("streamed answers"):
        assert kind.startswith("application/json") and keys == {"chunk", "stream_state"}


@sentence('include_stop_str_in_output=true: content "red green blue".')
def stop_included(evidence: Evidence) -> None:
    for answer in evidence.fact("included"):
        assert (answer.only.content, answer.only.stop_reason) == ("red green blue", "blue")


@sentence('With finish_reason length: content "red green blue", stop_reason null.')
def not_stopped(evidence: Evidence) -> None:
    for answer in evidence.fact("by length"):
        assert (answer.only.content, answer.only.stop_reason) == ("red green blue", None)
        assert answer.only.finish_reason == "length"


@sentence(
    'Without any prompt context (prompt_token_ids not sent) "Paris is big" is the accepted result; inner spaces are '
    "never lost."
)
def without_prompt(evidence: Evidence) -> None:
    assert {answer.only.content for answer in evidence.fact("without prompt")} <= {"Paris is big", " Paris is big"}
