"""The middleware alone, around tiny applications; through the whole sidecar they are tested in tests/e2e."""

import asyncio
import json

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from proxy.errors import RequestError
from proxy.observe.metrics import Metrics
from proxy.routes.middleware import ApiKeys, BodyLimit, Front, StreamLimit
from proxy.routes.responses import ClientLeft, error_response


async def hello(scope, receive, send):
    await PlainTextResponse("hello")(scope, receive, send)


async def echo(scope, receive, send):
    """What a route does with a failure, in small."""
    try:
        body = await Request(scope, receive).body()
    except RequestError as error:
        await error_response(error)(scope, receive, send)
    else:
        await PlainTextResponse(body)(scope, receive, send)


def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://t")


def front(app, metrics=None, routes=("/v1/models",)):
    return Front(app, header="x-request-id", routes=routes, metrics=metrics or Metrics())


async def test_a_good_request_id_is_kept_and_a_bad_one_replaced():
    async with client(front(hello)) as http:
        kept = await http.get("/v1/models", headers={"x-request-id": "abc-1.2:3"})
        assert kept.headers["x-request-id"] == "abc-1.2:3"
        seen = set()
        for bad in ("", "a b", 'a"b', "x" * 129, "é".encode()):
            response = await http.get("/v1/models", headers={"x-request-id": bad})
            seen.add(response.headers["x-request-id"])
        assert len(seen) == 5 and all(len(made) == 32 for made in seen)
        assert len((await http.get("/v1/models")).headers["x-request-id"]) == 32


async def test_an_exception_becomes_a_plain_500(capsys, caplog):
    async def broken(scope, receive, send):
        raise ValueError("the secret prompt")

    metrics = Metrics()
    async with client(front(broken, metrics)) as http:
        response = await http.get("/v1/models")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "Internal server error"
    assert response.headers["x-request-id"]
    assert metrics.requests["/v1/models", "derender", "500"] == 1
    assert any("ValueError" in str(getattr(r, "fields", "")) for r in caplog.records)
    assert "secret" not in str([r.__dict__ for r in caplog.records])


async def test_an_exception_after_the_headers_ends_the_stream_as_a_failure():
    async def broken(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        raise ValueError("x")

    async with client(front(broken)) as http:
        text = (await http.get("/v1/models")).text
    first, error, done, rest = text.split("\n\n")
    assert json.loads(error[6:])["error"]["code"] == 500
    assert (done, rest) == ("data: [DONE]", "")


async def test_a_client_that_left_is_counted():
    async def left(scope, receive, send):
        raise ClientLeft

    metrics = Metrics()
    await front(left, metrics)({"type": "http", "method": "GET", "path": "/x", "headers": []}, None, None)
    assert metrics.client_disconnects == 1
    assert metrics.requests["other", "derender", "499"] == 1


async def test_unknown_paths_share_one_label():
    metrics = Metrics()
    async with client(front(hello, metrics)) as http:
        for path in ("/a", "/b", "/c"):
            await http.get(path)
    assert dict(metrics.requests) == {("other", "derender", "200"): 3}


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer ", 401),
        ("Basic one", 401),
        ("one", 401),
        ("Bearer one", 200),
        ("bearer two", 200),
    ],
)
async def test_keys(header, status):
    async with client(ApiKeys(hello, keys=["one", "two"])) as http:
        response = await http.get("/v1/models", headers={"authorization": header} if header else {})
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["type"] == "AuthenticationError"


async def test_where_keys_are_asked_for():
    async with client(ApiKeys(hello, keys=["one"])) as http:
        for path in ("/live", "/health", "/ready", "/metrics", "/version"):
            assert (await http.get(path)).status_code == 200
        for path in ("/v1/models", "/inference/v1/generate", "/tokenize", "/detokenize", "/v1//models"):
            assert (await http.get(path)).status_code == 401
        assert (await http.options("/v1/models")).status_code == 200
    async with client(ApiKeys(hello, keys=[])) as http:
        assert (await http.get("/v1/models")).status_code == 200


async def test_a_declared_length_over_the_limit_is_refused_unread():
    async with client(BodyLimit(echo, limit=10)) as http:
        assert (await http.post("/", content=b"x" * 10)).text == "x" * 10
        response = await http.post("/", content=b"x" * 11)
    assert response.status_code == 413
    assert "10 bytes" in response.json()["error"]["message"]


async def test_a_body_without_a_length_is_refused_where_it_exceeds_the_limit():
    async def pieces():
        for _ in range(4):
            yield b"xxx"

    async with client(BodyLimit(echo, limit=10)) as http:
        response = await http.post("/", content=pieces())
    assert response.status_code == 413


async def test_streams_over_the_limit_come_back_later():
    metrics, entered, gate = Metrics(), asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        entered.set()
        await gate.wait()
        await hello(scope, receive, send)

    async with client(StreamLimit(slow, limit=1, metrics=metrics)) as http:
        first = asyncio.create_task(http.post("/v1/chat/completions"))
        await entered.wait()
        refused = await http.post("/v1/completions")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert (await http.get("/v1/models")).status_code == 200
        assert (await first).status_code == 200
        assert (await http.post("/v1/completions")).status_code == 200
    assert metrics.streams_active == 0
