"""Who takes the derender path: shares, stickiness, headers, changes of the file, what happens when it is not there."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import httpx
import pytest

from proxy.errors import RequestError
from proxy.rollout.canary import Breaker, Plan, share
from proxy.rollout.options import parse_options
from tests.e2e.wire import chat_body, completion_body, events
from tests.rollout.wire import Message, Reader, Writer, ask, read_body, request, sidecar_for, until, upstream
from tests.servers import DEMO_MODEL, DEMO_NAME, Process, Sidecar, Simulator

CHAT = "/v1/chat/completions"
NOBODY: dict[str, str] = {}


@pytest.fixture(scope="module")
def coupled():
    with Simulator(DEMO_MODEL, served_model_name=(DEMO_NAME,), coupled=True) as running:
        yield running


# -- the choice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["request-id", "user", "header:x-user"])
@pytest.mark.parametrize("percent", [0, 0.5, 5, 25, 50, 99, 100])
def test_the_share_is_the_one_that_is_set(key, percent):
    """Within one percent over 10,000 requests, whatever the key is."""
    plan = Plan("passthrough", percent, parse_options({"hash": key}))
    chosen = 0
    for number in range(10_000):
        name = f"client-{number}"
        headers = {"x-user": name} if key.startswith("header") else NOBODY
        body = json.dumps({"user": name, "messages": []}).encode() if key == "user" else None
        request_id = name if key == "request-id" else "always-the-same"
        chosen += plan.choose(CHAT, headers, request_id, body) == "derender"
    assert abs(chosen / 100 - percent) <= 1
    if percent in (0, 100):
        assert chosen == 100 * percent


def test_a_client_stays_where_it_is():
    """The same key goes the same way at all times and on all replicas, and a larger share only adds to a smaller."""
    keys = [f"user-{number}" for number in range(2_000)]
    options = parse_options({"hash": "header:x-user"})
    before: set[str] = set()
    for percent in (1, 10, 40, 80):
        plan = Plan("shadow", percent, options)
        chosen = {key for key in keys if plan.choose(CHAT, {"x-user": key}, "r", None) == "derender"}
        assert chosen == {key for key in keys if plan.choose(CHAT, {"x-user": key}, "other", None) == "derender"}
        assert before < chosen
        before = chosen
    assert share("user-1") == 0.5401502507059988  # of every version and machine


def test_without_the_key_the_request_id_decides():
    for options in ({"hash": "user"}, {"hash": "header:x-user"}):
        plan = Plan("passthrough", 50, parse_options(options))
        modes = {plan.choose(CHAT, NOBODY, f"r{number}", body) for number in range(64) for body in (b"{}", b"no json")}
        assert modes == {"derender", "passthrough"}


def test_modes_by_process_and_route():
    routes = parse_options({"routes": {"/v1/completions": "shadow"}})
    for mode in ("derender", "passthrough", "shadow"):
        plan = Plan(mode, None, routes)
        assert plan.choose(CHAT, NOBODY, "r", None) == mode
        assert plan.choose("/v1/completions", NOBODY, "r", None) == "shadow"
    # with a percentage, derender means those and no others
    assert Plan("derender", 0).choose(CHAT, NOBODY, "r", None) == "passthrough"
    assert Plan("shadow", 0).choose(CHAT, NOBODY, "r", None) == "shadow"
    assert not Plan().passes and Plan("derender", 50).passes and not Plan("derender", 100).passes


def test_the_header_chooses_where_it_is_allowed():
    allowed = Plan("derender", None, parse_options({"allow-header": True}))
    assert allowed.choose(CHAT, {"x-derender-mode": "shadow"}, "r", None) == "shadow"
    assert Plan().choose(CHAT, {"x-derender-mode": "shadow"}, "r", None) == "derender"
    with pytest.raises(RequestError, match="x-derender-mode"):
        allowed.choose(CHAT, {"x-derender-mode": "fast"}, "r", None)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"routes": {"/v1/embeddings": "shadow"}}, "one path only"),
        ({"routes": {CHAT: "both"}}, "rollout"),
        ({"hash": "cookie"}, "hash"),
        ({"allow": ["v1"]}, "not a path"),
        ({"allow": ["/*/abort"]}, "not a path"),
        ({"allow": ["/metrics"]}, "never relayed"),
        ({"allow": ["/v1/*"]}, "never relayed"),
        ({"allow": ["/inference/v1/abort_requests"]}, "never relayed"),
        ({"shadow-queue": -1}, "negative"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_options_that_make_no_sense(given, word):
    with pytest.raises(ValueError, match=word):
        parse_options(given)


def test_the_breaker_lets_one_try():
    now = 0.0
    breaker = Breaker(lambda: now)
    assert breaker.admits() and not breaker.open
    breaker.trip(30)
    assert breaker.open and not breaker.admits()
    now = 31.0
    assert breaker.admits() and not breaker.admits()
    breaker.undecided()
    assert breaker.admits()
    breaker.trip(30)
    assert not breaker.admits()
    now = 62.0
    assert breaker.admits()
    breaker.close()
    assert breaker.admits() and breaker.admits() and not breaker.open


# -- over HTTP -------------------------------------------------------------------------------------------------


def test_each_request_is_served_by_the_path_it_was_given(coupled):
    """Real requests: the header tells the mode, the engine saw the route, and the shares add up."""
    flags = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
    with Sidecar(engine_url=coupled.url, canary_percent=30, rollout={"hash": "user"}, **flags) as sidecar:
        plan = sidecar.parts.rollout.plan
        with httpx.Client(base_url=sidecar.url) as client:
            for number in range(60):
                body = chat_body("hi", user=f"u{number}", stream=number % 2 == 0)
                answer = client.post(CHAT, json=body, headers={"x-request-id": f"canary-{number}-"})
                assert answer.status_code == 200
                mode = answer.headers["x-derender-mode"]
                assert mode == plan.choose(CHAT, NOBODY, "", json.dumps({"user": f"u{number}"}).encode())
                (seen,) = coupled.requests(f"canary-{number}-")
                assert (seen.get("path") == CHAT) == (mode == "passthrough")
        text = httpx.get(f"{sidecar.url}/metrics").text
        counts = {
            mode: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            for mode in ("derender", "passthrough")
            if line.startswith("derender_requests_total") and f'mode="{mode}",route="{CHAT}"' in line
        }
        assert sum(counts.values()) == 60 and counts["derender"] > 0 and counts["passthrough"] > 0


def test_the_header_over_http(coupled):
    with Sidecar(engine_url=coupled.url, rollout={"allow-header": True}) as sidecar:
        for path, body in ((CHAT, chat_body("hi")), ("/v1/completions", completion_body("hi"))):
            for mode in ("derender", "passthrough", "shadow"):
                answer = httpx.post(sidecar.url + path, json=body, headers={"x-derender-mode": mode})
                assert (answer.status_code, answer.headers["x-derender-mode"]) == (200, mode)
                assert "x-derender-mode" not in coupled.requests()[-1]["headers"]
            refused = httpx.post(sidecar.url + path, json=body, headers={"x-derender-mode": "x"})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "x-derender-mode"


# -- the file --------------------------------------------------------------------------------------------------


class ConfigMap:
    """A directory as the kubelet makes it: the file is a link into ``..data``, itself a link that is replaced."""

    def __init__(self, root: Path, text: str) -> None:
        self.root = root
        self.versions = 0
        self.write(text)
        (root / "derender.yaml").symlink_to("..data/derender.yaml")
        self.path = str(root / "derender.yaml")

    def write(self, text: str) -> None:
        self.versions += 1
        version = self.root / f"..{self.versions}"
        version.mkdir()
        (version / "derender.yaml").write_text(text)
        (self.root / "..data_tmp").symlink_to(version.name)
        os.replace(self.root / "..data_tmp", self.root / "..data")


async def test_a_change_of_the_file_under_load(coupled, tmp_path):
    """Streams under way when the link is renamed go on to their end, new ones take the new path, none is lost."""
    config = ConfigMap(tmp_path, "canary-percent: 0\n")
    flags = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes", "config": config.path}
    with Sidecar(engine_url=coupled.url, **flags) as sidecar:
        text = "word " * 30
        body = chat_body("<think>\nHm.\n</think>" + text, xargs={"itl": 0.02}, stream=True)
        answers: list[tuple[float, str, str]] = []
        stop = asyncio.Event()

        async def client(http: httpx.AsyncClient) -> None:
            while not stop.is_set():
                began = time.monotonic()
                answer = await http.post(sidecar.url + CHAT, json=body)
                assert answer.status_code == 200
                told = events(answer.text)
                assert told[-1] == "DONE"
                said = "".join(choice["delta"].get("content", "") for event in told[:-1] for choice in event["choices"])
                answers.append((began, answer.headers["x-derender-mode"], said))

        async with httpx.AsyncClient(timeout=30) as http:
            clients = [asyncio.create_task(client(http)) for _ in range(8)]
            await until(lambda: len(answers) >= 8)
            renamed = time.monotonic()
            config.write("canary-percent: 100\n")
            await until(lambda: sidecar.parts.rollout.plan.percent == 100)
            changed = time.monotonic()
            await until(lambda: sum(began > changed for began, _, _ in answers) >= 8, 10)
            stop.set()
            await asyncio.gather(*clients)
        assert changed - renamed < 3
        assert {said for _, _, said in answers} == {text}
        assert {mode for began, mode, _ in answers if began < renamed} == {"passthrough"}
        assert {mode for began, mode, _ in answers if began > changed} == {"derender"}
        assert sidecar.parts.metrics.client_disconnects == 0
        assert not sidecar.parts.metrics.engine_errors
        assert sidecar.parts.rollout.counters.reloads == {"applied": 1}


async def test_files_that_are_no_good_change_nothing(coupled, tmp_path):
    config = ConfigMap(tmp_path, "mode: passthrough\n")
    sidecar = Sidecar(engine_url=coupled.url, config=config.path)
    rollout = sidecar.parts.rollout
    rollout._watch.interval = 0.1
    with sidecar:
        for number, text in enumerate(("mode: sideways\n", "mode: [", "rollout: {allow: [/metrics]}\n"), 1):
            config.write(text)
            await until(lambda expected=number: rollout.counters.reloads["refused"] == expected)
            assert rollout.plan.mode == "passthrough"
        os.remove(tmp_path / "..data")  # gone for a while
        await asyncio.sleep(0.3)
        config.write("mode: shadow\ncanary-percent: 7\nrollout: {hash: user, shadow-samples: 3}\n")
        await until(lambda: rollout.plan.mode == "shadow")
        assert rollout.plan.percent == 7 and rollout.shadow.samples.maxlen == 3
        assert rollout.counters.reloads == {"refused": 3, "applied": 1}


async def test_flags_win_over_the_file_after_a_change_too(coupled, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("canary-percent: 1\n")
    with Sidecar(engine_url=coupled.url, config=str(file), mode="shadow") as sidecar:
        file.write_text("canary-percent: 2\nmode: passthrough\n")  # in place, as an editor may do it
        await until(lambda: sidecar.parts.rollout.plan.percent == 2)
        assert sidecar.parts.rollout.plan.mode == "shadow"


# -- what the engine does not offer ----------------------------------------------------------------------------


class HalfEngine:
    """Chat is answered; ``generate`` is the raw answer to the token route."""

    def __init__(self, generate: bytes) -> None:
        self.generate = generate
        self.routes: list[str] = []

    async def __call__(self, asked: Message, reader: Reader, writer: Writer) -> None:
        await read_body(reader, asked, to_end=False)
        path = asked.start.split(b" ")[1].decode()
        self.routes.append(path)
        if path == "/inference/v1/generate":
            writer.write(self.generate)
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n" + (b"chat" if b"Hi" in asked.body else b"lost")
            )
        await writer.drain()


def refusal(status: int, error: dict[str, object] | None = None) -> bytes:
    body = json.dumps({"error": error} if error else {"detail": "Not Found"}).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


GENERATED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"%x\r\n%s\r\n0\r\n\r\n"
    % (
        len(event := b'data: {"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'),
        event,
    )
)


@pytest.mark.parametrize("status", [403, 404, 501])
async def test_a_path_that_the_engine_does_not_offer(status):
    """Passed through, for this request and the next ones without asking again, until one that tries finds it there."""
    engine = HalfEngine(refusal(status, None if status == 404 else {"message": "", "type": "X", "code": status}))
    body = json.dumps(chat_body("x")).encode()
    async with upstream(engine) as running:
        async with sidecar_for(running.url, canary_percent=100, rollout={"fallback-seconds": 0.4}) as sidecar:
            rollout = sidecar.parts.rollout
            for number in range(3):
                got = await ask(sidecar.url, [request(CHAT, body)])
                assert (got.status, got.body, got.all(b"x-derender-mode")) == (200, b"chat", [b"passthrough"]), number
            assert engine.routes == ["/inference/v1/generate", CHAT, CHAT, CHAT]
            assert rollout.counters.fallbacks == {str(status): 1, "open": 2} and rollout.counters.breaker_open
            engine.generate = GENERATED
            await asyncio.sleep(0.5)
            for stream in (True, False):
                asked = json.dumps(chat_body("x", stream=stream)).encode()
                got = await ask(sidecar.url, [request(CHAT, asked)])
                assert got.status == 200 and got.all(b"x-derender-mode") == [b"derender"]
            assert not rollout.counters.breaker_open and not rollout.breaker.open


@pytest.mark.parametrize(
    ("generate", "status"),
    [
        (refusal(400, {"message": "no", "type": "BadRequestError", "code": 400}), 400),
        (refusal(404, {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}), 404),
        (refusal(500, {"message": "", "type": "InternalServerError", "code": 500}), 502),
        (refusal(503), 503),
    ],
)
async def test_other_failures_are_not_hidden(generate, status):
    engine = HalfEngine(generate)
    async with upstream(engine) as running:
        async with sidecar_for(running.url, canary_percent=100, mode="passthrough") as sidecar:
            got = await ask(sidecar.url, [request(CHAT, json.dumps(chat_body("x")).encode())])
            assert (got.status, got.all(b"x-derender-mode")) == (status, [b"derender"])
            bad = json.dumps(chat_body("x", temperature=9)).encode()
            assert (await ask(sidecar.url, [request(CHAT, bad)])).status == 400
            unknown = json.dumps(chat_body("x", model="nobody")).encode()
            assert (await ask(sidecar.url, [request(CHAT, unknown)])).status == 404
            assert CHAT not in engine.routes and not sidecar.parts.rollout.counters.fallbacks


async def test_without_a_canary_nothing_falls_back():
    """Who asks for the derender path alone has not said that the engine's own answers will do."""
    engine = HalfEngine(refusal(403))
    async with upstream(engine) as running:
        async with sidecar_for(running.url) as sidecar:
            got = await ask(sidecar.url, [request(CHAT, json.dumps(chat_body("x")).encode())])
            assert got.status == 403 and CHAT not in engine.routes


def test_behind_a_token_only_engine_there_is_nothing_to_pass(simulator, coupled):
    """Said by readiness and by ``check``; a coupled engine is fine, and so is a plan that passes nothing through."""
    for flags in ({"mode": "passthrough"}, {"canary_percent": 50}):
        with Sidecar(engine_url=simulator.url, **flags) as sidecar:
            answer = httpx.get(f"{sidecar.url}/ready")
            assert answer.status_code == 503 and "nothing to pass through" in answer.text
    with Sidecar(engine_url=coupled.url, mode="shadow") as sidecar:
        assert httpx.get(f"{sidecar.url}/ready").status_code == 200
    with Sidecar(engine_url=simulator.url) as sidecar:
        assert httpx.get(f"{sidecar.url}/ready").status_code == 200
    with Process("check", str(DEMO_MODEL), "--engine-url", simulator.url, "--mode", "passthrough") as process:
        assert process.wait() == 1
        assert "MISMATCH" in process.output and "nothing to pass through" in process.output
