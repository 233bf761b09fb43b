"""Cases on the stateless derender endpoints: one call a chunk, the state carried through JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from tests.faults import cases, checks, checks_derender  # noqa: F401
from tests.faults.cases import Case, Plan, encode
from tests.faults.evidence import Evidence, judge
from tests.faults.exchange import CHAT, COMPLETIONS, Client, Exchange, collected, script
from tests.faults.expectation import check
from tests.faults.fleet import Fleet

CASES = tuple(
    name
    for name in ("derender-01", "derender-03", "derender-07", "ids-01", "leading-space-03")
    if name not in cases.later()
)
WEATHER_CALLS = (
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rom"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Ulm"}}\n</tool_call>'
)
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}]
WINDOW = {
    "prev_tokens": [], "prefix_offset": 0, "read_offset": 0, "role_sent": True, "logprob_context_token_ids": [],
    "logprob_text_offset": 0, "output_token_ids": [], "output_chunk_lens": [], "tools_streamed": False,
    "last_tool_call_ids": [],
}  # fmt: skip
runs = pytest.mark.parametrize


class Stateless:
    """Calls one derender path; keeps answers, states and what every call was."""

    def __init__(
        self,
        client: Client,
        request: dict[str, Any],
        *,
        path: str = CHAT,
        request_id: str = "r",
        repeat: bool = False,
    ) -> None:
        self.client = client
        self.repeat = repeat
        self.path = f"{path}/derender"
        self.request = request
        self.request_id = request_id
        self.state: Any = None
        self.chunks: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []
        self.repeats: list[tuple[bytes, bytes]] = []

    def call(self, ids: list[int], finish: str | None = None, stop_reason: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish, "stop_reason": stop_reason}
        chunk = {"request_id": self.request_id, "choices": [choice]}
        body = {**self.request, "stream": True, "generate_chunk": chunk, "stream_state": self.state}
        first = self.client.http.post(self.client.url + self.path, json=body)
        assert first.status_code == 200, first.text
        answer = first.json()
        if self.repeat:
            again = self.client.http.post(self.client.url + self.path, json=body)
            self.repeats.append((first.content, again.content))
        self.state = json.loads(json.dumps(answer["stream_state"]))
        self.states.append(answer["stream_state"])
        self.chunks.append(answer["chunk"])
        told: dict[str, Any] = answer["chunk"]
        return told

    def stream(self, plan: Plan, finish: str = "stop") -> Exchange:
        pieces = plan.chunks
        for number, ids in enumerate(pieces):
            self.call(ids, finish if number == len(pieces) - 1 and not plan.alone else None)
        if plan.alone:
            self.call([], finish)
        return collected(plan.name, self.chunks)

    def whole(self, ids: list[int], finish: str = "stop", stop_reason: Any = None) -> Exchange:
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish, "stop_reason": stop_reason}
        response = {"request_id": self.request_id, "choices": [choice]}
        answer = self.client.ask({**self.request, "generate_response": response}, path=self.path)
        assert answer.status == 200, answer.body
        return answer


def chat_request(case: Case) -> dict[str, Any]:
    request: dict[str, Any] = {"messages": [{"role": "user", "content": case.prompt}]}
    if case.tools:
        request |= {"tools": case.tools, "tool_choice": case.request.get("tool_choice", "auto")}
    return {**request, **case.request.get("chat_request", {})}


def given(case: Case) -> dict[str, Any]:
    prompt = case.request.get("prompt_tail_ids") or encode(case.tokenizer, case.prompt)
    return {"chat_request": chat_request(case), "prompt_token_ids": prompt}


@runs("name", [name for name in CASES if name == "derender-01"])
def test_characters_over_calls(fleet: Fleet, name: str) -> None:
    case = cases.load()[name]
    client = fleet.for_case(case)
    evidence = Evidence(case, facts={"states": []})
    for plan in case.plans():
        calls = Stateless(client, given(case))
        answer = calls.stream(plan)
        check(case, answer, plan)
        evidence.streamed.append((plan, answer))
        evidence.whole.append((plan, Stateless(client, given(case)).whole(list(plan.ids))))
        evidence.facts["states"] += calls.states
    calls = Stateless(client, given(case))
    for _ in range(2):
        calls.call(list(case.ids))
    before = calls.state
    empty = calls.call([], "stop")
    text = empty["choices"][0]["delta"].get("content") or ""
    evidence.facts["empty finish"] = (text, before, calls.state)
    calls = Stateless(client, given(case))
    sizes = []
    for _ in range(60):
        calls.call(list(case.ids) * 4)
        sizes.append(len(json.dumps(calls.state)))
    evidence.facts["sizes of a long stream"] = (sizes[29], sizes[-1])
    judge(evidence)
    checks.modes_agree(evidence)


@runs("name", [name for name in CASES if name == "derender-03"])
def test_three_ways(fleet: Fleet, name: str) -> None:
    case = cases.load()[name]
    client = fleet.for_case(case)
    evidence = Evidence(case, facts={"calls and state": [], "ids in states": []})
    for plan in case.plans():
        calls = Stateless(client, given(case))
        answer = calls.stream(plan)
        check(case, answer, plan)
        evidence.streamed.append((plan, answer))
        counts = range(1, len(plan.lengths) + 1)
        evidence.facts["calls and state"] += list(zip(counts, calls.states, strict=False))
        evidence.facts["ids in states"].append(pinned(calls, answer))
    body = {**chat_request(case), "vllm_xargs": script(case.ids, finish_reason="stop")}
    for answer in (Stateless(client, given(case)).whole(list(case.ids)), client.ask(body)):
        check(case, answer)
        evidence.whole.append((None, answer))
    judge(evidence)


def pinned(calls: Stateless, answer: Exchange) -> tuple[list[str], list[list[str]]]:
    """The ids that were sent, and those in the state after each call."""
    return [call.id or "" for call in answer.only.calls], [state["last_tool_call_ids"] for state in calls.states]


@runs("name", [name for name in CASES if name == "ids-01"])
def test_ids(fleet: Fleet, name: str) -> None:
    case = cases.load()[name]
    client = fleet.client(fleet.sidecar("qwen3", fleet.simulator("qwen3").url, tool_call_parser="hermes"))
    ids = encode("qwen3", WEATHER_CALLS)
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
    request = {"chat_request": asked, "prompt_token_ids": encode("qwen3", "Hi")}
    evidence = Evidence(case, facts={"ids in states": [], "answers and repeats": []})
    seen = {}
    for request_id in ("one", "two"):
        for length in (1, 3, len(ids)):
            lengths = tuple(len(ids[at : at + length]) for at in range(0, len(ids), length))
            calls = Stateless(client, request, request_id=request_id, repeat=True)
            answer = calls.stream(Plan("", tuple(ids), lengths))
            assert len(answer.only.calls) == 2
            evidence.facts["ids in states"].append(pinned(calls, answer))
            evidence.facts["answers and repeats"] += calls.repeats
            seen[request_id] = [call.id or "" for call in answer.only.calls]
    evidence.facts["ids of two requests"] = (seen["one"], seen["two"])
    judge(evidence)


@runs("name", [name for name in CASES if name == "derender-07"])
def test_stop_strings(fleet: Fleet, name: str) -> None:
    case = cases.load()[name]
    client = fleet.for_case(case)
    ids = list(case.ids)
    evidence = Evidence(case)
    for cause in (None, "blue"):
        answer = Stateless(client, given(case)).whole(ids, "stop", cause)
        check(case, answer)
        evidence.whole.append((None, answer))
    included = given(case)
    included["chat_request"] |= {"include_stop_str_in_output": True}
    evidence.facts["included"] = [Stateless(client, included).whole(ids)]
    evidence.facts["by length"] = [Stateless(client, given(case)).whole(ids, "length")]
    judge(evidence)


def sentencepiece(directory: Path) -> Path:
    """A model directory whose tokenizer strips one space at the start of what it decodes."""
    words = ["<unk>", "<s>", "</s>", "▁go", "▁to", "▁Paris", "▁is", "▁big"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"model_type": "llama", "vocab_size": len(words), "max_position_embeddings": 64, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def ids_of_pieces(model: Path, case: Case) -> list[int]:
    vocabulary = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab()
    return [vocabulary[piece] for piece in case.input["pieces"]]


@runs("name", [name for name in CASES if name == "leading-space-03"])
def test_first_space(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    case = cases.load()[name]
    model = sentencepiece(tmp_path_factory.mktemp("sentencepiece"))
    client = fleet.client(fleet.sidecar(model, fleet.simulator(model).url))
    ids = ids_of_pieces(model, case)
    prompts = {"long": [3, 4] * 6, "last seven": ([3, 4] * 6)[-7:], "none": None}
    plans = [Plan("token", tuple(ids), (1, 1, 1)), Plan("cut", tuple(ids), (2, 1)), Plan("all", tuple(ids), (3,))]
    evidence = Evidence(case, facts={"without prompt": []})
    for kind, prompt in prompts.items():
        for plan in plans:
            request: dict[str, Any] = {"completion_request": {"prompt": "x"}}
            if prompt is not None:
                request["prompt_token_ids"] = prompt
            answer = Stateless(client, request, path=COMPLETIONS).stream(plan)
            if kind == "none":
                evidence.facts["without prompt"].append(answer)
                continue
            assert answer.only.content == case.expected["message"]["text"], (kind, plan)
            evidence.streamed.append((plan, answer))
    judge(evidence)


def test_first_space_through_the_engine(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same text over the ordinary endpoint, where the prompt is always known."""
    case = cases.load()["leading-space-03"]
    model = sentencepiece(tmp_path_factory.mktemp("sentencepiece"))
    client = fleet.client(fleet.sidecar(model, fleet.simulator(model).url))
    ids = ids_of_pieces(model, case)
    for chunk in (1, 2, 3):
        for stream in (True, False):
            body = {"prompt": [3, 4], "max_tokens": 8, "stream": stream, "vllm_xargs": script(ids, chunk=chunk)}
            assert client.ask(body, path=COMPLETIONS).only.content == case.expected["message"]["text"]
