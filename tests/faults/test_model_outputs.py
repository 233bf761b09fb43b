"""Cases that are one model output: every plan, both modes, over HTTP, before the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import cases, checks, checks_details  # noqa: F401  (the latter two fill the table)
from tests.faults.cases import Case, Plan
from tests.faults.evidence import Evidence, judge
from tests.faults.exchange import CHAT, COMPLETIONS, Client, Exchange, script
from tests.faults.expectation import check
from tests.faults.fleet import Fleet
from tests.faults.shape import check_stream

# An engine that obeys stop ids does not send what this one is about: see test_choices.py.
ELSEWHERE = {"mtp-chunk-10"}
CASES = tuple(case for case in cases.model_outputs() if case not in ELSEWHERE)

# Fields of a case's ``request`` that are the request's own.
PASSED = (
    *("tool_choice", "stop", "logprobs", "top_logprobs", "max_tokens", "stop_token_ids", "include_reasoning"),
    *("chat_template_kwargs", "parallel_tool_calls", "include_stop_str_in_output", "return_token_ids"),
)
KNOWN = {*PASSED, "stream", "parsers", "prompt_tail_text", "prompt_tail_ids", "prompt_token_ids", "stream_options"}
METERED = {"include_usage": True, "continuous_usage_stats": True}


def body_of(case: Case, plan: Plan, *, stream: bool, **how: Any) -> dict[str, Any]:
    """The request of ``case``, and in it what the simulator is to answer."""
    request = case.request
    assert set(request) <= KNOWN, request
    body: dict[str, Any] = {name: request[name] for name in PASSED if name in request}
    if "prompt_token_ids" in request:
        body |= {"prompt": request["prompt_token_ids"], "max_tokens": len(plan.ids) + 1}
    else:
        body["messages"] = [{"role": "user", "content": case.prompt}]
        if case.tools:
            body["tools"] = case.tools
    how = {"chunk": plan.lengths, "finish_alone": plan.alone, **how}
    if case.expected.get("finish_reason") == "length":
        how["finish_reason"] = "length"
    body["vllm_xargs"] = script(plan.ids, **how)
    if stream:
        body["stream"] = True
        body["stream_options"] = request.get("stream_options", {"include_usage": True})
    return body


def ask(client: Client, case: Case, plan: Plan, *, stream: bool, **how: Any) -> Exchange:
    path = COMPLETIONS if "prompt_token_ids" in case.request else CHAT
    name = f"{case.id} {plan.name}"
    return client.ask(body_of(case, plan, stream=stream, **how), path=path, name=name, request_id=case.id)


@pytest.mark.parametrize("name", CASES)
def test_case(fleet: Fleet, name: str) -> None:
    case = cases.load()[name]
    client = fleet.for_case(case)
    chat = "prompt_token_ids" not in case.request
    evidence = Evidence(case)
    for plan in case.plans():
        streamed = ask(client, case, plan, stream=True)
        check_stream(streamed, chat=chat, usage=True)
        whole = ask(client, case, plan, stream=False)
        for answer in (streamed, whole):
            try:
                check(case, answer, plan)
            except AssertionError as error:
                mode = "streamed" if answer.streamed else "whole"
                raise AssertionError(f"{plan.name}, {mode}: {error}\n{answer.choices}") from error
        evidence.streamed.append((plan, streamed))
        evidence.whole.append((plan, whole))
    if chat and evidence.streamed:
        evidence.metered = metered(client, case)
    if name == "stop-strings-10":
        evidence.facts["finished by length"] = [
            ask(client, case, plan, stream=stream, finish_reason="length")
            for plan in case.plans()
            for stream in (True, False)
        ]
    judge(evidence)
    # whatever the case is about, these hold of every answer
    checks.modes_agree(evidence)
    checks.no_failure(evidence)


def metered(client: Client, case: Case) -> tuple[Plan, Exchange]:
    """One token per chunk, with usage in every chunk, so that each chunk tells how many tokens it follows."""
    plan = Plan("metered", case.ids, (1,) * len(case.ids))
    body = body_of(case, plan, stream=True) | {"stream_options": METERED}
    answer = client.ask(body, name=f"{case.id} metered", request_id=case.id)
    check_stream(answer, usage=True)
    check(case, answer)
    return plan, answer


@pytest.mark.parametrize("name", [name for name in CASES if "prompt_tail_ids" in cases.load()[name].request])
def test_prompt_tail(fleet: Fleet, name: str) -> None:
    """The engine gets the prompt that the case names, so that its start state is the one tested."""
    case = cases.load()[name]
    client = fleet.for_case(case)
    assert ask(client, case, case.plans()[0], stream=False).status == 200
    asked = fleet.simulator(case.tokenizer).requests(case.id)[-1]
    assert asked["body"]["token_ids"] == case.request["prompt_tail_ids"]
