"""The command, as processes."""

import json
import signal
import subprocess
import sys
import time

import httpx
import pytest

from proxy import __version__
from proxy.cli import build_parser
from proxy.config import EX_USAGE, Settings, flag_of
from tests.e2e.wire import chat_body, events, post
from tests.servers import DEMO_MODEL, DEMO_NAME, ROOT, Process, free_port, listening_socket


def run(*arguments, env=None, seconds=60):
    with Process(*arguments, env=env) as process:
        code = process.wait(seconds)
        return code, process.output


@pytest.fixture(scope="module")
def engine():
    """The simulator as a process; its URL."""
    port = free_port()
    with Process("simulate", str(DEMO_MODEL), "--port", str(port), "--served-model-name", DEMO_NAME) as process:
        process.wait_for_url(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"


def sidecar(engine, *flags):
    return Process(
        "serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", "0", "--engine-url", engine, "--log-format", "json",
        *flags,
    )  # fmt: skip


def url_of(process):
    line = json.loads(process.wait_for_line('"listening"'))
    url = f"http://{line['host']}:{line['port']}"
    process.wait_for_url(f"{url}/ready")
    return url


def test_version():
    assert run("version") == (0, __version__)


def test_help_names_every_flag():
    parser = build_parser()
    text = subprocess.run([sys.executable, "-m", "proxy", "serve", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert text.returncode == 0
    for name in Settings.model_fields:
        assert (flag_of(name) if name != "model" else "MODEL") in text.stdout
    for command in ("serve", "simulate", "check", "version"):
        assert command in parser.format_help()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        ([str(DEMO_MODEL), "--port", "x"], "--port"),
        ([], "MODEL: required"),
        ([str(DEMO_MODEL), "--canary-percent", "101"], "--canary-percent"),
        ([str(DEMO_MODEL), "--tool-call-parser", "nope"], "nope"),
        ([str(DEMO_MODEL), "--reasoning-parser", "nope"], "nope"),
        (["/no/such/model"], "/no/such/model"),
        ([str(ROOT / "tests")], "cannot be loaded"),
        ([str(DEMO_MODEL), "--chat-template", "/no/such/file"], "cannot be loaded"),
    ],
)
def test_a_bad_configuration_ends_with_64_before_a_port_is_bound(flags, text):
    port = free_port()
    more = [] if "--port" in flags else ["--port", str(port)]
    code, output = run("serve", *flags, *more, env={"HF_HUB_OFFLINE": "1"})
    assert code == EX_USAGE, output
    assert text in output.splitlines()[-1]
    assert "Traceback" not in output
    assert '"listening"' not in output and "listening host" not in output


def test_an_address_in_use_is_told():
    with listening_socket() as taken:
        taken.listen()
        code, output = run("serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
    assert code == EX_USAGE and "--host/--port: cannot listen" in output and "Traceback" not in output


def test_a_script_that_cannot_be_read_is_told():
    code, output = run("simulate", str(DEMO_MODEL), "--script", "/no/such/script")
    assert code == EX_USAGE and "/no/such/script" in output and "Traceback" not in output


def test_serve_logs_its_settings_once_without_secrets_and_no_content(engine):
    with sidecar(engine, "--api-key", "hunter2", "--tool-call-parser", "hermes") as process:
        url = url_of(process)
        body = chat_body("the secret answer", messages=[{"role": "user", "content": "the secret question"}])
        response = post(url, body, headers={"authorization": "Bearer hunter2", "x-request-id": "cli-1"})
        assert response.status_code == 200
        process.wait_for_line("cli-1")
        lines = [json.loads(line) for line in process.lines]
    (starting,) = [line for line in lines if line["message"] == "starting"]
    assert starting["tool_call_parser"] == "hermes" and starting["api_key"] == ["***"]
    (request,) = [line for line in lines if line["message"] == "request" and line["id"] == "cli-1"]
    assert request["code"] == 200 and request["completion_tokens"] > 0
    assert "hunter2" not in process.output and "secret" not in process.output


def test_environment_and_file_reach_the_server(engine, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(f"model: {DEMO_MODEL}\nserved-model-name: [from-file]\nport: 1\n")
    env = {"DERENDER_ENGINE_URL": engine, "DERENDER_PORT": "0", "DERENDER_LOG_FORMAT": "json"}
    with Process("serve", "--host", "127.0.0.1", "--config", str(file), env=env) as process:
        url = url_of(process)
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "from-file"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_run_to_their_end_after_a_signal(engine, how):
    with sidecar(engine) as process:
        url = url_of(process)
        body = chat_body("word " * 40, xargs={"itl": 0.03}) | {"stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
            reads = response.iter_text()
            text = next(reads)
            process.process.send_signal(how)
            text += "".join(reads)
        found = events(text)
        assert found[-1] == "DONE" and found[-2]["choices"][0]["finish_reason"] == "stop"
        assert process.wait(10) == 0
        assert "Traceback" not in process.output


def test_an_idle_server_stops_at_once(engine):
    with sidecar(engine) as process:
        url_of(process)
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 3


def test_check(engine):
    code, output = run(
        "check", str(DEMO_MODEL), "--engine-url", engine, "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes"
    )
    assert code == 0, output
    for text in ("qwen3", "hermes", "demo", "32768"):
        assert text in output
    code, output = run("check", str(DEMO_MODEL), "--engine-url", engine, "--max-model-len", "1000000")
    assert code == 1 and "MISMATCH" in output
    code, output = run("check", str(DEMO_MODEL), "--engine-url", f"http://127.0.0.1:{free_port()}")
    assert code == 1 and "does not answer" in output


def test_demo():
    """``make demo`` runs this script."""
    demo = subprocess.run(
        [sys.executable, "config/demo.py"], capture_output=True, text=True, timeout=90, cwd=ROOT, check=False
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert '{"reasoning": ' in demo.stdout and '"finish_reason": "tool_calls"' in demo.stdout
    assert '"arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"' in demo.stdout
