"""The scripts that run in the pods, run here: the engine's preStop and the pod of `helm test`, before real servers."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.e2e.wire import chat_body
from tests.helm.chart import CHART, container, one, render
from tests.servers import DEMO_MODEL, Process, free_port

WAIT = CHART / "files" / "wait_for_drain.py"
API = CHART / "files" / "api_test.py"


def wait_for_drain(url, *, window=0.0, timeout=20.0):
    """Run the hook; its seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(WAIT), f"--metrics={url}/metrics", f"--window={window}", f"--timeout={timeout}"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return time.monotonic() - began


def test_the_engine_outlives_open_streams(sidecar):
    """The hook returns after the last stream has ended, not before."""
    ended = []

    def stream():
        body = chat_body("word " * 40, xargs={"itl": 0.05}, stream=True)
        with httpx.stream("POST", f"{sidecar.url}/v1/chat/completions", json=body, timeout=30) as answer:
            for _ in answer.iter_lines():
                pass
        ended.append(time.monotonic())

    thread = threading.Thread(target=stream)
    thread.start()
    while sidecar.parts.metrics.streams_active == 0:
        time.sleep(0.01)
    wait_for_drain(sidecar.url)
    returned = time.monotonic()
    thread.join()
    assert 0 <= returned - ended[0] < 5


def test_a_pod_ends_in_order(simulator):
    """All preStop hooks at once; each returns after the last stream, then the sidecar ends with 0."""
    (_, command) = container(render({"model": "m"}), "derender-proxy")["lifecycle"]["preStop"]["exec"]["command"]
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    with Process(
        "serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", port, "--engine-url", simulator.url,
        "--shutdown-window", "0.5", "--shutdown-timeout", "30",
    ) as sidecar:  # fmt: skip
        sidecar.wait_for_url(f"{url}/ready")
        body = chat_body("word " * 60, xargs={"itl": 0.05}, stream=True)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            script = [sys.executable, str(WAIT), f"--metrics={url}/metrics", "--window=0.5", "--timeout=60"]
            with Process(command, "--port", port) as drain, subprocess.Popen(script) as engine:
                time.sleep(1.5)
                assert httpx.get(f"{url}/ready").status_code == 503
                assert drain.process.poll() is None and engine.poll() is None
                assert [line for line in lines if line][-1] == "data: [DONE]"
                assert drain.wait(30) == 0 and engine.wait(30) == 0
        sidecar.process.terminate()
        assert sidecar.wait(20) == 0


def test_the_window_is_waited_out(sidecar):
    assert wait_for_drain(sidecar.url, window=1.5) >= 1.5


def test_a_sidecar_that_is_gone_is_not_waited_for():
    assert wait_for_drain(f"http://127.0.0.1:{free_port()}") < 10


@pytest.fixture
def stuck():
    """A server whose sidecar never drains: ``answer`` is what its /metrics says."""
    answers = {"body": b"derender_streams_active 1.0\n"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers["body"])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_timeout_ends_the_wait(stuck):
    url, answers = stuck
    assert 1.5 <= wait_for_drain(url, timeout=1.5) < 10
    answers["body"] = b"# nothing of ours\n"  # cannot say: not taken for drained
    assert 1.5 <= wait_for_drain(url, timeout=1.5) < 10


def test_workers_are_counted_together(stuck):
    url, answers = stuck
    answers["body"] = b'derender_streams_active{pid="1"} 0.0\nderender_streams_active{pid="2"} 1.0\n'
    assert wait_for_drain(url, timeout=1.5) >= 1.5
    answers["body"] = b'derender_streams_active{pid="1"} 0.0\nderender_streams_active{pid="2"} 0.0\n'
    assert wait_for_drain(url, timeout=60) < 30


@pytest.mark.parametrize("shape", ["sidecar", "standalone"])
def test_the_grace_period_is_long_enough(shape):
    """Of preStop hooks, the engine and the sidecar after one another, with a margin."""
    values = {
        "shape": shape, "model": "m", "settings": {"max-model-len": 4096},
        "shutdown": {"window": 7, "timeout": 100, "engineTimeout": 20, "margin": 5},
    }  # fmt: skip
    objects = render(values)
    (spec,) = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
    given = container(objects, "derender-proxy")["args"]
    assert "--shutdown-window=7" in given and "--shutdown-timeout=100" in given
    if shape == "standalone":
        assert spec["terminationGracePeriodSeconds"] == 7 + 100 + 5
        return
    assert spec["terminationGracePeriodSeconds"] == 7 + 100 + 20 + 5
    engine = container(objects, "engine")
    hook = engine["lifecycle"]["preStop"]["exec"]["command"]
    assert "--window=7" in hook and "--timeout=100" in hook and "--shutdown-timeout=20" in engine["args"]
    shown = one(objects, "ConfigMap")["data"]["wait_for_drain.py"]
    assert shown.rstrip() == WAIT.read_text().rstrip()
    # The script is in the ConfigMap under the name by which the hook calls it, and the volume is mounted there.
    assert "/etc/derender-proxy/wait_for_drain.py" in hook
    assert {"name": "derender-config", "mountPath": "/etc/derender-proxy", "readOnly": True} in engine["volumeMounts"]


def api_test(url, **env):
    script = one(render({"model": "m"}), "Pod")["spec"]["containers"][0]["args"][0]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "BASE_URL": url, "TIMEOUT": "2", **env},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_helm_test_passes_before_a_good_sidecar(sidecar):
    assert api_test(sidecar.url) == (0, "models: demo\nok\n")


def test_helm_test_uses_a_key(sidecars):
    locked = sidecars(api_key=["one", "two"])
    assert api_test(locked.url, API_KEY='["one", "two"]')[0] == 0
    assert api_test(locked.url, API_KEY="two,three")[0] == 0
    code, output = api_test(locked.url)
    assert code == 1 and "/v1/models: HTTP Error 401" in output


def test_helm_test_fails_where_nothing_answers():
    code, output = api_test(f"http://127.0.0.1:{free_port()}")
    assert code == 1 and "/live: " in output
