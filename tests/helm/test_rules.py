"""Rules and dashboard over the metrics that exist, read by Prometheus' own tool; every alert fires when it should."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from proxy.observe.metrics import Metrics
from proxy.rollout.counters import Counters
from scripts.tools import tool
from tests.helm.chart import CHART, case, one, render
from tests.servers import ROOT

DASHBOARD = CHART / "dashboards" / "derender-proxy.json"
NAME = re.compile(r"\b(derender_[a-z_]+)")
# What users, alerts and boards of their own rely on.
PUBLIC = {
    "derender_requests_total", "derender_streams_active", "derender_tokens_total",
    "derender_time_to_first_token_seconds", "derender_inter_token_seconds", "derender_added_latency_seconds",
    "derender_cache_entries", "derender_cache_bytes", "derender_cache_lookups_total", "derender_cache_evictions_total",
    "derender_replay_tokens_total", "derender_replay_seconds", "derender_engine_errors_total",
    "derender_client_disconnects_total", "derender_shadow_compared_total", "derender_shadow_mismatch_total",
    "derender_build_info",
}  # fmt: skip
SUFFIXES = ("_bucket", "_sum", "_count")


def promtool(*arguments, folder):
    done = subprocess.run(
        [str(tool("promtool")), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def exposed():
    """The series that a sidecar shows, by the names that queries use."""
    families = [family for collector in (Metrics(), Counters()) for family in collector.collect()]
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def queries():
    """Every expression of the dashboard, with its variables filled in."""
    board = json.loads(DASHBOARD.read_text())
    found = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$pod", ".*")
            assert "$" not in text, text
            found[f"{panel['title']} {target['refId']}"] = text
    return found


@pytest.fixture
def rules(tmp_path):
    """The rules of the chart with the defaults, as a file for promtool."""
    groups = one(render({"model": "m", "monitoring": {"rules": {"enabled": True}}}), "PrometheusRule")["spec"]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(groups))
    return path


def alerts(groups):
    return {rule["alert"]: rule for group in groups["groups"] for rule in group["rules"] if "alert" in rule}


def test_prometheus_reads_the_rules(rules):
    code, output = promtool("check", "rules", "--lint=all", "--lint-fatal", rules.name, folder=rules.parent)
    assert code == 0 and "SUCCESS" in output, output


def test_every_series_of_the_rules_exists(rules):
    names = {name for rule in _rules(rules) for name in NAME.findall(rule["expr"])}
    assert {_family(name) for name in names} <= exposed()


def test_every_public_series_is_on_the_dashboard_and_exists():
    used = {_family(name) for text in queries().values() for name in NAME.findall(text)}
    assert used <= exposed() and used >= PUBLIC


def test_prometheus_reads_the_dashboard(tmp_path):
    groups = {
        "groups": [
            {
                "name": "dashboard",
                "rules": [
                    {"record": f"panel:{number}", "expr": text} for number, text in enumerate(queries().values())
                ],
            }
        ]
    }
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump(groups))
    code, output = promtool("check", "rules", "dashboard.yaml", folder=tmp_path)
    assert code == 0, output


def test_the_dashboard_is_one():
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"], panel["title"]
    assert {item["name"] for item in board["templating"]["list"]} == {"datasource", "namespace", "pod"}
    (shown,) = one(case("sidecar-full"), "ConfigMap", "r-derender-proxy-dashboard")["data"].values()
    assert json.loads(shown) == board


def test_the_board_covers_what_is_watched():
    rows = [panel["title"] for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] == "row"]
    assert rows == ["At a glance", "Traffic", "Latency", "Engine", "Stateless derender", "Roll-out", "Saturation"]


def test_thresholds_labels_and_leaving_out(rules):
    values = {
        "model": "m",
        "settings": {"max-concurrent-streams": 100, "workers": 4},
        "monitoring": {
            "rules": {
                "enabled": True,
                "thresholds": {"errorShare": 0.5},
                "alertLabels": {"team": "inference", "severity": "page"},
                "disabled": ["DerenderVersionsDiffer"],
            }
        },
    }
    found = alerts(one(render(values), "PrometheusRule")["spec"])
    assert "DerenderVersionsDiffer" not in found
    assert found["DerenderErrorsHigh"]["expr"].endswith("> 0.5")
    assert found["DerenderErrorsHigh"]["labels"] == {"team": "inference", "severity": "page"}
    assert found["DerenderStreamsSaturated"]["expr"].endswith("> 85")
    assert found["DerenderCpuSaturated"]["expr"].endswith("> 3.6")
    values["settings"] = {"max-concurrent-streams": 0}
    unlimited = alerts(one(render(values), "PrometheusRule")["spec"])
    assert unlimited["DerenderStreamsSaturated"]["expr"].endswith("> Inf")


def test_rules_without_helm_are_the_same(rules):
    plain = yaml.safe_load((ROOT / "config" / "kubernetes" / "prometheus-rules.yaml").read_text())
    assert plain == yaml.safe_load(rules.read_text())


POD = 'namespace="models",job="derender",pod="a"'


def counter(name, labels, per_minute, start=0):
    return {"series": f"{name}{{{POD}{',' if labels else ''}{labels}}}", "values": f"{start}+{per_minute}x90"}


def histogram(name, fast, slow, bound):
    """``slow`` of the observations a minute above ``bound``, the others below."""
    return [
        counter(f"{name}_bucket", f'le="{bound}"', fast),
        counter(f"{name}_bucket", 'le="2560"', fast + slow),
        counter(f"{name}_bucket", 'le="+Inf"', fast + slow),
    ]


ROUTE = 'route="/v1/chat/completions",mode="derender"'
OK = counter("derender_requests_total", f'{ROUTE},code="200"', 600)

# alert: the series that make it fire, and those that are near and do not.
SITUATIONS = {
    "DerenderAddedLatencyHigh": (
        histogram("derender_added_latency_seconds", 9000, 1000, 0.005),
        histogram("derender_added_latency_seconds", 9990, 10, 0.005),
    ),
    "DerenderTimeToFirstTokenHigh": (
        histogram("derender_time_to_first_token_seconds", 90, 10, 10),
        histogram("derender_time_to_first_token_seconds", 98, 2, 10),
    ),
    "DerenderErrorsHigh": (
        [OK, counter("derender_requests_total", f'{ROUTE},code="502"', 60)],
        # Probes that fail while the engine starts are no failed requests.
        [OK, counter("derender_requests_total", 'route="/ready",mode="derender",code="503"', 60)],
    ),
    "DerenderEngineErrors": (
        [counter("derender_engine_errors_total", 'kind="eof"', 12)],
        [counter("derender_engine_errors_total", 'kind="eof"', 3)],
    ),
    "DerenderEngineUnreachable": (
        [
            OK,
            counter("derender_requests_total", f'{ROUTE},code="503"', 3),
            counter("derender_engine_errors_total", 'kind="connect"', 3),
        ],
        # The engine is still loading: each scrape and each probe fails to reach it, and nobody is sent there.
        [
            counter("derender_requests_total", 'route="/ready",mode="derender",code="503"', 12),
            counter("derender_engine_errors_total", 'kind="connect"', 4),
        ],
    ),
    "DerenderCacheReplaysHigh": (
        [
            counter("derender_cache_lookups_total", 'result="live"', 600),
            counter("derender_cache_lookups_total", 'result="replay_absent"', 300),
            counter("derender_cache_lookups_total", 'result="replay_mismatch"', 0),
        ],
        # The same share of next to nothing.
        [
            counter("derender_cache_lookups_total", 'result="live"', 6),
            counter("derender_cache_lookups_total", 'result="replay_absent"', 3),
        ],
    ),
    "DerenderReplaySlow": (
        histogram("derender_replay_seconds", 90, 10, 0.25),
        histogram("derender_replay_seconds", 1000, 1, 0.25),
    ),
    "DerenderShadowMismatch": (
        [
            counter("derender_shadow_compared_total", "", 1000),
            counter("derender_shadow_mismatch_total", 'field="content"', 5),
        ],
        [
            counter("derender_shadow_compared_total", "", 1000),
            counter("derender_shadow_mismatch_total", 'field="content"', 0),
        ],
    ),
    "DerenderFallbackBreakerOpen": (
        [counter("derender_fallback_breaker_open", "", 0, start=1)],
        [counter("derender_fallback_breaker_open", "", 0)],
    ),
    "DerenderConfigRefused": (
        [counter("derender_config_reloads_total", 'result="refused"', 1)],
        [counter("derender_config_reloads_total", 'result="applied"', 1)],
    ),
    "DerenderStreamsSaturated": (
        [counter("derender_streams_active", "", 0, start=4000)],
        [counter("derender_streams_active", "", 0, start=3000)],
    ),
    "DerenderRequestsRefused": (
        [OK, counter("derender_requests_total", f'{ROUTE},code="429"', 60)],
        [OK, counter("derender_requests_total", f'{ROUTE},code="429"', 3)],
    ),
    "DerenderCpuSaturated": (
        [counter("container_cpu_usage_seconds_total", 'container="derender-proxy"', 58)],
        [counter("container_cpu_usage_seconds_total", 'container="engine"', 240)],
    ),
    "DerenderClientDisconnectsHigh": (
        [OK, counter("derender_client_disconnects_total", "", 300)],
        [OK, counter("derender_client_disconnects_total", "", 60)],
    ),
    "DerenderVersionsDiffer": (
        [counter("derender_build_info", f'version="{version}"', 0, start=1) for version in ("0.1.0", "0.2.0")],
        [counter("derender_build_info", 'version="0.1.0"', 0, start=1)],
    ),
}


def test_every_alert_has_a_situation(rules):
    assert alerts(yaml.safe_load(rules.read_text())).keys() == SITUATIONS.keys()


def test_alerts_fire_when_they_should_and_not_before(rules):
    """One run of promtool: an alert's situation lets it and no other alert fire, its neighbour none."""
    tests = []
    for name, (fires, quiet) in SITUATIONS.items():
        for series, firing in ((fires, True), (quiet, False)):
            tests.append(
                {
                    "name": f"{name} {'fires' if firing else 'is quiet'}",
                    "interval": "1m",
                    "input_series": series,
                    # The value of ALERTS is 1 for every alert that fires.
                    "promql_expr_test": [
                        {
                            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                            "eval_time": "80m",
                            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if firing else [],
                        }
                    ],
                }
            )
    (rules.parent / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": tests})
    )
    code, output = promtool("test", "rules", "tests.yaml", folder=rules.parent)
    assert code == 0, output


def test_what_an_alert_says(rules):
    """Its text names the place and the size of the trouble."""
    (rules.parent / "tests.yaml").write_text(
        yaml.safe_dump(
            {
                "rule_files": [rules.name],
                "evaluation_interval": "1m",
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": SITUATIONS["DerenderErrorsHigh"][0],
                        "alert_rule_test": [
                            {
                                "alertname": "DerenderErrorsHigh",
                                "eval_time": "80m",
                                "exp_alerts": [
                                    {
                                        "exp_labels": {
                                            "severity": "critical", "namespace": "models", "job": "derender",
                                        },
                                        "exp_annotations": {
                                            "summary": "Requests fail",
                                            "description": "9.091% of the requests to models/derender end with 5xx; "
                                            "derender_engine_errors_total says by kind whether it is the engine.",
                                        },
                                    }
                                ],
                            }
                        ],
                    }
                ],
            }
        )
    )
    code, output = promtool("test", "rules", "tests.yaml", folder=rules.parent)
    assert code == 0, output


def test_prometheus_reads_the_series(tmp_path):
    """The names and help texts that rules and dashboard rest on pass Prometheus' own lint."""
    text = Metrics().exposition()
    done = subprocess.run(
        [str(tool("promtool")), "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _rules(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def _family(name):
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name
