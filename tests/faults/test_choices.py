"""Cases about several choices, finish reasons, field names and usage, and the checker of bad streams."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.raw_server import DONE, Step, event, sse
from tests.faults import cases, checks, checks_details, checks_service  # noqa: F401
from tests.faults.cases import Plan, encode, encode_demo, random_lengths
from tests.faults.evidence import Evidence, judge
from tests.faults.exchange import Client, Exchange, script
from tests.faults.expectation import check, check_choice
from tests.faults.fleet import Fleet, RawEngine, playing
from tests.faults.shape import check_chunk, check_stream, tool_delta_faults
from tests.servers import DEMO_MODEL

CASES = (
    *("mtp-chunk-10", "n-choices-01", "n-choices-03", "finish-reason-01"),
    *("usage-01", "reasoning-boundary-14", "delta-shape-01"),
)
USAGE = {"include_usage": True}
HERMES = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rom"}}\n</tool_call>'


def said(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], **fields}


def both(client: Client, body: dict[str, Any], name: str) -> tuple[Exchange, Exchange]:
    """The streamed answer and the whole one."""
    streamed = client.ask(body | {"stream": True, "stream_options": USAGE}, name=name)
    check_stream(streamed, usage=True)
    return streamed, client.ask(body, name=name)


def test_tokens_past_eos(fleet: Fleet, raw_engine: RawEngine) -> None:
    """An engine that does not cut its block at the end token."""
    case = cases.load()["mtp-chunk-10"]
    client = fleet.for_case(case, raw_engine.url)
    evidence = Evidence(case, facts={"eos position": case.ids.index(151645)})
    for plan in case.plans():
        if plan.alone:
            continue  # one token per chunk without a finish: covered by the plan before it
        raw_engine.play = playing(sse(*events_of(plan, logprobs=True), DONE))
        body = said(case.prompt, logprobs=True, return_token_ids=True)
        streamed, whole = both(client, body, plan.name)
        for answer in (streamed, whole):
            check(case, answer, plan)
        evidence.streamed.append((plan, streamed))
        evidence.whole.append((plan, whole))
    judge(evidence)
    checks.modes_agree(evidence)
    checks.chunkings_agree(evidence)


def events_of(plan: Plan, *, logprobs: bool = False) -> list[bytes]:
    """The events of a plan as an engine sends them, the finish with the last."""
    found = []
    for number, ids in enumerate(plan.chunks):
        raw = event(*ids, finish="stop" if number == len(plan.chunks) - 1 else None)
        if logprobs:
            entries = ",".join(
                f'{{"token_id":{token},"logprob":-0.5,"rank":1,"top_logprobs":[]}}' for token in ids
            )
            raw = raw.replace(b'"logprobs": null', b'"logprobs": {"content": [%s]}' % entries.encode())
        found.append(raw)
    return found


def test_interleaved_choices(fleet: Fleet, raw_engine: RawEngine) -> None:
    """Two choices of one answer, each parsed as if it were alone."""
    case = cases.load()["n-choices-01"]
    client = fleet.for_case(case, raw_engine.url)
    outputs = {choice["index"]: choice["token_ids"] for choice in case.input["choices"]}
    alone = {}
    for index, ids in outputs.items():
        raw_engine.play = playing(sse(event(*ids, finish="stop"), DONE))
        alone[index] = client.ask(said(case.prompt)).only
    orders = [plan["chunks"] for plan in case.raw["chunking"]]
    orders += [interleaved(outputs, seed) for seed in range(6)]
    orders += [interleaved(outputs, 0, single=True)]
    evidence = Evidence(case, facts={"alone": alone})
    for number, order in enumerate(orders):
        raw_engine.play = playing(sse(*choice_events(order, outputs), DONE))
        streamed, whole = both(client, said(case.prompt, n=2), f"order {number}")
        for answer in (streamed, whole):
            check_choices(case.expected, answer)
        evidence.streamed.append((Plan(f"{number}", (), ()), streamed))
        evidence.whole.append((Plan(f"{number}", (), ()), whole))
    judge(evidence)


def interleaved(outputs: dict[int, list[int]], seed: int, *, single: bool = False) -> list[dict[str, Any]]:
    """The choices' ids in random pieces and random order."""
    queues = {}
    for index, ids in outputs.items():
        lengths = (1,) * len(ids) if single else random_lengths(len(ids), f"{seed} {index}")
        queues[index] = Plan("", tuple(ids), lengths).chunks
    order: list[dict[str, Any]] = []
    turns = random_lengths(1_000, f"order {seed}")
    for turn in turns:
        index = turn % 2 if queues[turn % 2] else 1 - turn % 2
        if queues[index]:
            order.append({"index": index, "token_ids": queues[index].pop(0)})
    assert not any(queues.values())
    return order


def choice_events(order: list[dict[str, Any]], outputs: dict[int, list[int]]) -> list[bytes]:
    left = {index: len(ids) for index, ids in outputs.items()}
    found = []
    for chunk in order:
        index = chunk["index"]
        left[index] -= len(chunk["token_ids"])
        found.append(event(*chunk["token_ids"], index=index, finish=None if left[index] else "stop"))
    return found


def check_choices(expected: dict[str, Any], answer: Exchange) -> None:
    assert sorted(answer.choices) == [0, 1]
    for choice in expected["choices"]:
        compare = expected.get("compare", {})
        check_choice({**choice, "compare": compare}, answer.choices[choice["index"]])


def test_one_choice_ends_early(fleet: Fleet, raw_engine: RawEngine) -> None:
    case = cases.load()["n-choices-03"]
    client = fleet.for_case(case, raw_engine.url)
    (plan,) = case.raw["chunking"]
    events = [
        event(*encode("qwen3", chunk["text"]), index=chunk["index"], finish=chunk.get("finish_reason"))
        for chunk in plan["chunks"]
    ]
    evidence = Evidence(case)
    steps: list[list[Step]] = [sse(*events, DONE), sse(b"".join(events) + DONE)]
    for number, played in enumerate(steps):
        raw_engine.play = playing(list(played))
        before = len(raw_engine.asked())
        streamed, whole = both(client, said(case.prompt, n=2), f"{number}")
        assert not any(asked.left.is_set() for asked in raw_engine.asked()[before:])
        for answer in (streamed, whole):
            check_choices(case.expected, answer)
        evidence.streamed.append((None, streamed))
        evidence.whole.append((None, whole))
    judge(evidence)


def test_finish_reasons(fleet: Fleet) -> None:
    """The table: tool_choice, whether there is a call, and the engine's reason decide the client's."""
    case = cases.load()["finish-reason-01"]
    client = fleet.client(fleet.sidecar("qwen3", fleet.simulator("qwen3").url, tool_call_parser="hermes"))
    named = {"type": "function", "function": {"name": "get_time"}}
    forms = {"named": ['{"city": "Rom"}', HERMES], "required": [HERMES, '[{"name": "get_time", "parameters": {}}]']}
    evidence = Evidence(case, facts={"rows": []})
    for choice, has_call, engine, wanted in case.input["rows"]:
        for text in forms.get(choice, [HERMES]) if has_call else ["No call here."]:
            ids = encode("qwen3", text)
            plans: list[Any] = [1, len(ids), list(random_lengths(len(ids), text))]
            for chunk in plans:
                body = said("Hi", tools=case.tools, tool_choice=named if choice == "named" else choice)
                body["vllm_xargs"] = script(ids, chunk=chunk, finish_reason=engine)
                streamed, whole = both(client, body, f"{choice} {has_call} {engine}")
                for answer in (streamed, whole):
                    evidence.facts["rows"].append((answer.name, answer.only.finish_reason, wanted))
                    assert bool(answer.only.calls) == (has_call and choice != "none"), answer.choices
                evidence.streamed.append((None, streamed))
                evidence.whole.append((None, whole))
    judge(evidence)


def test_usage_chunk(fleet: Fleet) -> None:
    case = cases.load()["usage-01"]
    ids = [token for piece in case.input["pieces"] for token in encode("qwen3", piece)]
    client = fleet.for_case(case)
    evidence = Evidence(case)
    for alone in (False, True):
        body = said(case.prompt, stream=True, stream_options=case.request["stream_options"])
        body["vllm_xargs"] = script(ids, finish_alone=alone)
        answer = client.ask(body)
        check_stream(answer, usage=True)
        prompt, count = len(encode("qwen3", case.prompt)), len(ids)
        assert answer.usage is not None
        assert answer.usage["prompt_tokens"] == prompt
        assert answer.usage["completion_tokens"] == count
        assert answer.usage["total_tokens"] == prompt + count
        finish, usage, done = answer.events[-3:]
        wanted = case.expected["last_chunks"]
        assert done == wanted[2] and usage["choices"] == wanted[1]["choices"]
        assert finish["choices"][0]["finish_reason"] == "stop" and finish["choices"][0]["index"] == 0
        if alone:
            assert finish["choices"][0]["delta"] == wanted[0]["choices"][0]["delta"]
        evidence.streamed.append((None, answer))
    judge(evidence)


def test_reasoning_field(fleet: Fleet) -> None:
    case = cases.load()["reasoning-boundary-14"]
    ids = encode_demo(f"<think>{case.input['reasoning_text']}</think>Done.")
    found: dict[str, list[Exchange]] = {}
    for setting in ("reasoning", "reasoning_content", "both"):
        sidecar = fleet.sidecar(
            DEMO_MODEL,
            fleet.simulator(DEMO_MODEL).url,
            reasoning_parser="qwen3",
            tool_call_parser="hermes",
            reasoning_field=setting,
        )
        found[setting] = []
        for chunk in (1, 2, len(ids)):
            body = said("Hi", vllm_xargs=script(ids, chunk=chunk))
            found[setting] += both(fleet.client(sidecar), body, setting)
        for answer in found[setting]:
            assert (answer.only.reasoning, answer.only.content) == (case.input["reasoning_text"], "Done.")
    judge(Evidence(case, facts={"by setting": found}))


def test_bad_streams_are_seen(fleet: Fleet) -> None:
    """The checker that runs on every streamed answer flags each of the sequences, and no good one."""
    case = cases.load()["delta-shape-01"]
    seen = {item["fault"]: tool_delta_faults(item["deltas"]) for item in case.input["sequences"]}
    good = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert tool_delta_faults(good) == []
    evidence = Evidence(case, facts={"flagged": seen})
    parallel = cases.load()["parallel-tools-01"]
    for plan in parallel.plans():
        body = said("Hi", tools=parallel.tools, stream=True, vllm_xargs=script(plan.ids, chunk=plan.lengths))
        evidence.streamed.append((plan, fleet.for_case(parallel).ask(body)))
        check_stream(evidence.streamed[-1][1])
        assert len(evidence.streamed[-1][1].only.calls) == 3
    judge(evidence)


@pytest.mark.parametrize("entries", [2, 3])
def test_entries_of_one_index_are_seen(entries: int) -> None:
    entry = {"index": 0, "function": {"arguments": "x"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [entry] * entries}, "finish_reason": None}]}
    with pytest.raises(AssertionError):
        check_chunk(chunk, usage=False)
