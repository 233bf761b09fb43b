import json

from proxy.errors import RequestError, UpstreamError, body_of, error_body, error_event


def test_a_request_error_is_vllms_object():
    error = RequestError("`n` must be at least 1", "n")
    assert json.loads(body_of(error)) == {
        "error": {"message": "`n` must be at least 1", "type": "BadRequestError", "param": "n", "code": 400}
    }


def test_status_decides_type_and_code_unless_given():
    assert RequestError("x", status=404).type == "NotFoundError"
    assert RequestError("x", status=404).code == 404
    assert RequestError("x", type="Odd", code="odd").code == "odd"
    assert UpstreamError("x", status=503).type == "ServiceUnavailableError"
    assert UpstreamError("x").status == 502 and UpstreamError("x").type == "InternalServerError"


def test_an_error_event_is_followed_by_done():
    event = error_event(UpstreamError("gone", status=502, kind="eof"))
    first, done, rest = event.split(b"\n\n")
    assert json.loads(first.removeprefix(b"data: "))["error"]["message"] == "gone"
    assert (done, rest) == (b"data: [DONE]", b"")


def test_a_failure_of_ours_tells_nothing():
    assert json.loads(error_event(None).split(b"\n\n")[0][6:])["error"] == {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


def test_text_is_escaped():
    assert json.loads(error_body('a "b"\n'))["error"]["message"] == 'a "b"\n'
