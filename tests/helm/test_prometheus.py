"""A real Prometheus scrapes a real sidecar: every series gets in, the engine's as well, and the rules run over them."""

from __future__ import annotations

import contextlib
import subprocess
import time

import httpx
import pytest
import yaml

from scripts.tools import tool
from tests.e2e.wire import chat_body, post
from tests.servers import ROOT, free_port

RULES = ROOT / "config" / "kubernetes" / "prometheus-rules.yaml"


class Prometheus:
    def __init__(self, folder, target):
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "derender",
                    "static_configs": [
                        {"targets": [target.removeprefix("http://")], "labels": {"namespace": "models", "pod": "a"}}
                    ],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    str(tool("prometheus")), f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, path, **params):
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=10).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def until(self, query):
        """The result of ``query`` once it has one."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError, ValueError):
                if found := self.ask("query", query=query)["result"]:
                    return found
            time.sleep(0.2)
        raise AssertionError(f"no answer to {query}\n{self.log.read_text()}")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, sidecar):
    post(sidecar.url, chat_body("hello"))
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), sidecar.url)
    yield running
    running.stop()


def test_it_takes_the_sidecars_series_and_the_engines(prometheus):
    prometheus.until('up{job="derender"} == 1')
    prometheus.until('derender_requests_total{route="/v1/chat/completions",code="200"} > 0')
    names = set(prometheus.ask("label/__name__/values"))
    assert {"derender_build_info", "derender_streams_active", "derender_added_latency_seconds_bucket"} <= names
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= names


def test_the_help_of_no_family_is_lost(prometheus, sidecar):
    prometheus.until('up{job="derender"} == 1')
    shown = {line.split()[2] for line in httpx.get(f"{sidecar.url}/metrics").text.splitlines() if "# TYPE" in line}
    known = {item["metric"] for item in prometheus.ask("targets/metadata")}
    assert shown <= known


def test_the_rules_run(prometheus, sidecar):
    prometheus.until('up{job="derender"} == 1')
    deadline = time.monotonic() + 60
    while True:
        groups = prometheus.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        if rules and all(rule["health"] == "ok" for rule in rules):
            break
        assert time.monotonic() < deadline, [(rule["name"], rule.get("lastError")) for rule in rules]
        time.sleep(0.2)
    for _ in range(3):
        post(sidecar.url, chat_body("hello"))
    (found,) = prometheus.until("derender:requests:rate5m > 0")
    assert found["metric"] == {"__name__": "derender:requests:rate5m", "namespace": "models", "job": "derender"}
