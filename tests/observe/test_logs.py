import json
import logging

import pytest

from proxy.observe import logs
from proxy.observe.logs import JsonFormatter, Record, TextFormatter


@pytest.fixture
def lines():
    found = []

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(record)

    handler = Keep()
    logs.log.addHandler(handler)
    logs.log.setLevel(logging.INFO)
    yield found
    logs.log.removeHandler(handler)
    logs.log.setLevel(logging.NOTSET)


def record_with(**fields):
    record = logging.LogRecord("derender", logging.INFO, "f", 1, "request", None, None)
    record.fields = fields
    return record


def test_json_is_one_object_a_line():
    line = JsonFormatter().format(record_with(id="a\nb", n=1, ttft=0.25))
    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["level"], found["id"], found["n"], found["ttft"]) == (
        "request", "info", "a\nb", 1, 0.25,
    )  # fmt: skip
    assert found["ts"].endswith("Z")


def test_text_quotes_what_could_be_misread():
    line = TextFormatter().format(record_with(a="x", b="x y", c="", d="x\ny=1"))
    assert line.endswith("request a=x b='x y' c='' d='x\\ny=1'")
    assert "\n" not in line


def test_the_access_line_has_what_is_known(lines):
    logs.access(Record(id="r", method="POST", path="/v1/completions", code=200, ttft=0.123456789, duration=1.0))
    assert lines[0].fields == {
        "id": "r", "method": "POST", "path": "/v1/completions", "mode": "derender", "code": 200, "ttft": 0.123457,
        "duration": 1.0,
    }  # fmt: skip


def test_probes_are_quiet(lines):
    logs.access(Record(path="/health", code=200, probe=True))
    assert lines == []


def test_a_failure_tells_type_and_place_only(lines):
    try:
        raise KeyError("what the user wrote")
    except KeyError as error:
        logs.failure(error, Record(id="r"))
    fields = lines[0].fields
    assert fields["type"] == "KeyError" and "test_logs.py" in fields["at"] and fields["id"] == "r"
    assert "what the user wrote" not in JsonFormatter().format(lines[0])
