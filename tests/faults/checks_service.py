"""Sentences about the service: errors, transport, validation, time."""

from __future__ import annotations

import json
from typing import Any

from tests.faults.evidence import Evidence, sentence
from tests.faults.exchange import DONE

TRACES = ("Traceback", 'File "', "Error(", "proxy/", "aiohttp", "httpx", "<tool_call>", "token_ids")


@sentence("A checker built from these rules must flag every listed sequence.")
def sequences_flagged(evidence: Evidence) -> None:
    flagged = evidence.fact("flagged")
    assert len(flagged) == len(evidence.case.input["sequences"])
    for fault, found in flagged.items():
        assert found, fault


@sentence("Each row holds for stream and for non-stream.")
def rows_hold(evidence: Evidence) -> None:
    rows = evidence.fact("rows")
    assert len(rows) >= 2 * len(evidence.case.input["rows"])
    for name, found, wanted in rows:
        assert found == wanted, (name, found, wanted)


@sentence(
    'The error event is an object with the top-level key "error" (no choices), which makes openai-python raise '
    "APIError."
)
def error_event_shape(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        (event,) = [event for event in answer.events if isinstance(event, dict) and "error" in event]
        assert set(event) == {"error"} and set(event["error"]) == {"message", "type", "param", "code"}
    assert evidence.fact("raised by openai") == "APIError"


@sentence(
    "No finish_reason stop is ever sent for the broken choice; tokens decoded before the fault are delivered first.",
)
def delivered_before_fault(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        choice = answer.only
        assert choice.content == "Hello,"
        assert all(delta["finish_reason"] is None for delta in choice.deltas)


@sentence("The text of the error holds no stack trace and no raw tool markup.")
def error_text_clean(evidence: Evidence) -> None:
    for answer in evidence.answers:
        assert answer.error is not None
        assert not any(word in json.dumps(answer.error) for word in TRACES), answer.error


@sentence("The status line is sent only after the first engine event (or its failure) is known.")
def status_waits(evidence: Evidence) -> None:
    first_event, headers = evidence.fact("first event and headers")
    assert headers >= first_event
    assert evidence.fact("failed first event") == 400


@sentence("Engine unreachable: HTTP 502/503, not 200.")
def unreachable(evidence: Evidence) -> None:
    assert set(evidence.fact("unreachable")) <= {502, 503}


@sentence("The client sees an error event, not finish_reason stop.")
def error_not_stop(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        assert answer.error is not None and answer.events[-1] == DONE
        assert answer.only.finish_reason is None


@sentence("Non-stream: HTTP 502.")
def bad_gateway(evidence: Evidence) -> None:
    assert evidence.whole
    assert {answer.status for _, answer in evidence.whole} == {502}


@sentence("The client request does not hang.")
def no_hang(evidence: Evidence) -> None:
    assert evidence.fact("seconds") < 5


@sentence("The engine sees its connection closed (or an abort call) within 1 s in both cases.")
def aborted_in_time(evidence: Evidence) -> None:
    seconds = evidence.fact("seconds to abort")
    assert {"streamed", "whole"} <= set(seconds)
    assert all(taken <= 1.0 for taken in seconds.values()), seconds


@sentence("With n=2 or several prompts, all engine requests of that client request are aborted.")
def all_aborted(evidence: Evidence) -> None:
    for found in evidence.fact("engine requests").values():
        assert found and all(request["aborted"] for request in found)
    assert len(evidence.fact("engine requests")["prompts"]) == 3


@sentence("The ordinary request succeeds; no task or buffer is left.")
def nothing_left(evidence: Evidence) -> None:
    assert evidence.fact("ordinary").only.finish_reason == "stop"
    assert evidence.fact("tasks left") == set()
    assert evidence.fact("active streams") == 0
    assert evidence.fact("running at the engine") == []


@sentence(
    "Either the rest is delivered as content, or an error event is sent. Never a silent gap with finish_reason stop."
)
def no_silent_gap(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        broken = answer.choices[0]
        assert answer.error is not None and broken.finish_reason is None
    for _, answer in evidence.whole:
        assert answer.status == 500 and answer.error is not None


@sentence("The other choices of the same response are unaffected.")
def others_unaffected(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        assert answer.choices[1].summary == evidence.fact("alone").summary


@sentence("Each event is delivered as soon as its blank line is complete, not at the end of the stream.")
def events_at_once(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        times = [
            when
            for event, when in zip(answer.events, answer.times, strict=True)
            if isinstance(event, dict) and event.get("choices") and event["choices"][0]["delta"].get("content")
        ]
        assert times[-1] - times[0] > evidence.fact("pause") / 2


@sentence("The event is parsed as one.")
def parsed_as_one(evidence: Evidence) -> None:
    assert evidence.answers
    for answer in evidence.answers:
        assert answer.only.content == "Hello"


@sentence(
    "The same characters in generated text reach the client; recommended: escape U+2028/2029/0085 as \\u2028 etc. in "
    "outgoing SSE for clients with this fault."
)
def separators_arrive(evidence: Evidence) -> None:
    text, answers = evidence.fact("separators")
    for answer in answers:
        assert answer.only.content == text
        assert not any(char.encode() in answer.body for char in "\u2028\u2029\x85")


@sentence("Comments produce nothing (or a comment) for the client; they do reset an idle timeout.")
def comments_reset(evidence: Evidence) -> None:
    assert {answer.only.content for answer in evidence.answers} == {"Hello"}
    quiet, timeout, answer = evidence.fact("quiet, timeout, answer")
    assert quiet > timeout
    assert answer.error is None and answer.only.finish_reason == "stop"
    assert evidence.fact("without comments").error is not None


@sentence(
    "Search for line ends does not rescan the buffer from its start at every read (time linear in the size)."
)
def line_search_linear(evidence: Evidence) -> None:
    short, long = evidence.fact("seconds for one and four")
    assert long <= 8 * short + 0.05, (short, long)


@sentence("A configurable upper bound exists and leads to an error event, not to unbounded memory.")
def frames_bounded(evidence: Evidence) -> None:
    for answer in evidence.fact("too long"):
        assert answer.error is not None
        assert answer.status == (200 if answer.streamed and answer.choices else 502)


@sentence(
    "Response headers arrive before the first token or with it; each chunk arrives within 100 ms after its token."
)
def chunks_in_time(evidence: Evidence) -> None:
    sent: list[float] = evidence.fact("sent")
    for _, answer in evidence.streamed:
        arrived = [
            when
            for event, when in zip(answer.events, answer.times, strict=True)
            if isinstance(event, dict) and event.get("choices") and event["choices"][0]["delta"].get("content")
        ]
        assert len(arrived) == len(sent) and answer.headers_at <= arrived[0] + 0.01
        late = [got - gave for got, gave in zip(arrived, sent, strict=True)]
        assert max(late) <= 0.1, late


@sentence("The proxy reads the engine stream unbuffered as well.")
def unbuffered(evidence: Evidence) -> None:
    chunks_in_time(evidence)  # an engine event that waits in a buffer is a late chunk


@sentence("The upstream [DONE] is consumed, never handed to a derender call or parsed as JSON.")
def done_consumed(evidence: Evidence) -> None:
    for answer in evidence.answers:
        assert answer.error is None
        assert not answer.streamed or answer.body.count(b"[DONE]") == 1


@sentence("Order: finish chunk, usage chunk, [DONE].")
def order_of_end(evidence: Evidence) -> None:
    for _, answer in evidence.streamed:
        finish, usage, done = answer.events[-3:]
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert usage["choices"] == [] and usage["usage"] and done == DONE


@sentence(
    "Time for 4N is at most 6 times the time for N (linear, with slack); 131072 characters under 2 s on one core."
)
def time_linear(evidence: Evidence) -> None:
    timings: dict[str, dict[int, float]] = evidence.fact("seconds by size")
    assert len(timings) == 9
    for name, seconds in timings.items():
        sizes = sorted(seconds)
        assert sizes == [8192, 32768, 131072]
        for small, large in zip(sizes, sizes[1:], strict=False):
            assert seconds[large] <= 6 * seconds[small] + 0.01, (name, seconds)
        assert seconds[131072] < 2, (name, seconds)


@sentence("No single step blocks the event loop for more than 50 ms.")
def no_long_step(evidence: Evidence) -> None:
    assert max(evidence.fact("longest steps")) < 0.05


@sentence("Never HTTP 500, and the engine is not called for a 400.")
def refused_before_engine(evidence: Evidence) -> None:
    for what, status, asked in evidence.fact("statuses"):
        assert status in (200, 400), (what, status)
        assert bool(asked) == (status == 200), (what, status)


@sentence("The highest valid id is vocab_size - 1.")
def highest_id(evidence: Evidence) -> None:
    size = evidence.fact("vocab size")
    statuses = status_of(evidence)
    assert statuses[("prompt", size - 1)] == 200 and statuses[("prompt", size)] == 400


@sentence("Same rule for prompt, stop_token_ids, allowed_token_ids, logit_bias keys, bad_words ids.")
def same_rule(evidence: Evidence) -> None:
    statuses = status_of(evidence)
    fields = {field for field, _ in statuses}
    assert fields == {"prompt", "stop_token_ids", "allowed_token_ids", "logit_bias"}
    for (field, token), status in statuses.items():
        assert status == statuses[("prompt", token)], (field, token, status)
    # bad_words are strings here as in vLLM: ids are a wrong type
    assert evidence.fact("bad_words ids") == 400


def status_of(evidence: Evidence) -> dict[tuple[str, int], int]:
    found: dict[Any, int] = {what: status for what, status, _ in evidence.fact("statuses")}
    return found


@sentence("/inference/v1/generate: token_ids needs at least one entry.")
def generate_needs_ids(evidence: Evidence) -> None:
    assert evidence.fact("generate without ids") == 400


@sentence("A batch with one empty member is refused as a whole.")
def batch_refused(evidence: Evidence) -> None:
    assert evidence.fact("batch") == (400, 0)


@sentence("prompt + max_tokens == max_model_len is allowed.")
def equality_allowed(evidence: Evidence) -> None:
    assert {status for prompt, limit, status in evidence.fact("lengths") if limit and prompt + limit == 16} == {200}


@sentence("The message names max_model_len, the prompt length and max_tokens.")
def message_names(evidence: Evidence) -> None:
    for prompt, limit, message in evidence.fact("messages"):
        assert "16" in message and str(prompt) in message, message
        assert limit is None or prompt >= 16 or str(limit) in message, message


@sentence("The prompt length is taken after the template and all added tokens.")
def length_of_rendered(evidence: Evidence) -> None:
    fits, status, message = evidence.fact("rendered lengths and message")
    assert fits == 15 and status == 400 and "contains 16 input tokens" in message, (fits, status, message)
