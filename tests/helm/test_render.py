"""Every case of helm/ci is what Kubernetes takes, in every version from the oldest with native sidecars."""

from __future__ import annotations

import pytest
import yaml

from proxy import __version__
from tests.helm.chart import (
    CASES,
    CHART,
    VERSIONS,
    RenderError,
    case,
    container,
    containers,
    helm,
    insecure,
    of_kind,
    one,
    pod_specs,
    render,
    violations,
)


def test_lint():
    for name in CASES:
        helm("lint", "--strict", "--quiet", str(CHART), "-f", str(CHART / "ci" / f"{name}-values.yaml"))


def test_the_cases_have_every_shape():
    assert {name.partition("-")[0] for name in CASES} == {"sidecar", "standalone", "existing"}


def test_the_cases_give_every_value():
    """A value that no case gives could be spelt wrong in a template."""
    given = set()

    def walk(value, path):
        given.add(path)
        if isinstance(value, dict):
            for key, below in value.items():
                walk(below, (*path, key))

    for name in CASES:
        walk(yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text()), ())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    missing = [key for key in values if (key,) not in given and f".Values.{key}" not in templates and key != "global"]
    assert missing == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_kubernetes_takes_it(name, version):
    objects = case(name)
    assert objects
    faults = {f"{item['kind']} {item['metadata']['name']}": violations(item, version) for item in objects}
    assert not any(faults.values()), faults
    assert len(faults) == len(objects), "two objects of one kind and name"


def test_older_kubernetes_is_refused():
    with pytest.raises(RenderError, match=r"chart requires kubeVersion: >=1\.29"):
        render({"model": "m"}, "--kube-version", "1.28.0")


def test_the_checker_finds_what_is_wrong():
    deployment = one(case("sidecar-minimal"), "Deployment")
    assert violations(deployment, "1.27"), "1.27 knows no restartPolicy of containers"
    deployment["spec"]["template"]["spec"]["restartPolicyy"] = "Always"
    assert violations(deployment, "1.37")
    monitor = one(case("sidecar-full"), "PodMonitor")
    monitor["spec"]["intervall"] = "15s"
    assert violations(monitor, "1.37")


@pytest.mark.parametrize("name", CASES)
def test_restricted_pod_security(name):
    for spec in pod_specs(case(name)):
        assert insecure(spec) == []
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        for item in containers(spec):
            if item["name"] in ("derender-proxy", "test"):
                assert item["securityContext"]["readOnlyRootFilesystem"] is True
                assert item["resources"]["limits"]["memory"] == item["resources"]["requests"]["memory"]
                assert "cpu" not in item["resources"]["limits"]


def test_the_security_checker_finds_what_is_wrong():
    def spec(**context):
        (found,) = [item["spec"]["template"]["spec"] for item in of_kind(case("standalone-minimal"), "Deployment")]
        found["containers"][0]["securityContext"].update(context)
        return found

    assert insecure(spec()) == []
    for context in (
        {"privileged": True},
        {"allowPrivilegeEscalation": True},
        {"runAsNonRoot": False},
        {"runAsUser": 0},
        {"capabilities": {"drop": []}},
        {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
        {"seccompProfile": {"type": "Unconfined"}},
    ):
        assert insecure(spec(**context)), context
    for extra in ({"hostNetwork": True}, {"volumes": [{"name": "x", "hostPath": {"path": "x"}}]}):
        assert insecure(spec() | extra), extra


def test_a_native_sidecar_that_cannot_deadlock():
    """It must be up before the engine is started, so its start-up probe must not ask for the engine."""
    (spec,) = [item["spec"]["template"]["spec"] for item in of_kind(case("sidecar-minimal"), "Deployment")]
    (sidecar,) = spec["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/live"
    assert sidecar["livenessProbe"]["httpGet"]["path"] == "/live"
    assert sidecar["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_other_init_containers_come_first():
    (spec,) = [item["spec"]["template"]["spec"] for item in of_kind(case("sidecar-full"), "Deployment")]
    assert [item["name"] for item in spec["initContainers"]] == ["wait", "derender-proxy"]


def test_a_tier_has_no_engine():
    objects = case("standalone-minimal")
    assert [item["name"] for spec in pod_specs(objects)[:1] for item in containers(spec)] == ["derender-proxy"]
    sidecar = container(objects, "derender-proxy")
    assert "restartPolicy" not in sidecar and "--engine-url=none" in sidecar["args"]
    assert "--engine-url=http://engine.models:8000" in container(case("standalone-istio"), "derender-proxy")["args"]


def test_nobody_gets_past_the_sidecar():
    objects = case("sidecar-full")
    engine = container(objects, "engine")
    assert "--host=127.0.0.1" in engine["args"] and "ports" not in engine
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert set(engine[probe]) & {"exec", "httpGet", "tcpSocket"} == {"exec"}
        assert "http://127.0.0.1:8200/health" in engine[probe]["exec"]["command"][-1]
    policy = one(objects, "NetworkPolicy")["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == {8000}
    assert policy["podSelector"]["matchLabels"] == one(objects, "Service")["spec"]["selector"]
    assert all(rule["from"] for rule in policy["ingress"])
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 4318, 443}


def test_the_test_pod_is_let_in_and_not_served_from():
    objects = case("sidecar-full")
    labels = one(objects, "Pod")["metadata"]["labels"]
    peers = [peer for rule in one(objects, "NetworkPolicy")["spec"]["ingress"] for peer in rule["from"]]
    assert any(
        peer["podSelector"]["matchLabels"].items() <= labels.items() for peer in peers if "podSelector" in peer
    )


def test_selectors_find_the_pods():
    for name in CASES:
        objects = case(name)
        for deployment in of_kind(objects, "Deployment"):
            labels = deployment["spec"]["template"]["metadata"]["labels"].items()
            selectors = [deployment["spec"]["selector"]["matchLabels"]]
            selectors += [item["spec"]["selector"] for item in of_kind(objects, "Service")]
            for kind in ("PodMonitor", "PodDisruptionBudget", "InferencePool"):
                selectors += [item["spec"]["selector"]["matchLabels"] for item in of_kind(objects, kind)]
            for selector in selectors:
                assert selector.items() <= labels, name
            for pod in of_kind(objects, "Pod"):
                assert not any(selector.items() <= pod["metadata"]["labels"].items() for selector in selectors)
        for monitor in of_kind(objects, "ServiceMonitor"):
            service = one(objects, "Service")
            assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            ports = {port["name"] for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_a_picker_finds_the_pods_and_their_metrics():
    objects = case("sidecar-full")
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels["llm-d.ai/inference-serving"] == "true"
    assert labels["llm-d.ai/model"] == "models--Qwen3-8B" and labels["llm-d.ai/role"] == "both"
    pool = one(objects, "InferencePool")["spec"]
    (port,) = [item["containerPort"] for item in container(objects, "derender-proxy")["ports"]]
    assert pool["targetPorts"] == [{"number": port}]
    assert one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == "http"


def test_probes_and_metrics_on_a_port_of_their_own():
    objects = case("sidecar-admin-port")
    sidecar = container(objects, "derender-proxy")
    assert "--admin-port=9090" in sidecar["args"] and "--port=8080" in sidecar["args"]
    assert {sidecar[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        "admin"
    }
    assert sidecar["readinessProbe"]["httpGet"]["scheme"] == "HTTP"  # TLS is for the public port
    assert one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == "admin"
    assert {port["port"] for rule in one(objects, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]} == {
        8080,
        9090,
    }
    script = container(objects, "engine")["lifecycle"]["preStop"]["exec"]["command"]
    assert "--metrics=http://127.0.0.1:9090/metrics" in script


def test_tls():
    objects = case("sidecar-tls")
    sidecar = container(objects, "derender-proxy")
    assert sidecar["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert "--ssl-certfile=/etc/derender-proxy-tls/tls.crt" in sidecar["args"]
    assert one(objects, "ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"


def test_one_request_id_one_replica():
    policy = one(case("standalone-gateway"), "BackendTrafficPolicy")["spec"]
    assert policy["loadBalancer"]["consistentHash"] == {"type": "Header", "header": {"name": "X-Trace-Id"}}
    assert policy["targetRefs"][0]["name"] == one(case("standalone-gateway"), "HTTPRoute")["metadata"]["name"]
    rule = one(case("standalone-istio"), "DestinationRule")["spec"]
    assert rule["trafficPolicy"]["loadBalancer"]["consistentHash"] == {"httpHeaderName": "x-request-id"}
    assert rule["host"] == "r-derender-proxy.models.svc.cluster.local"
    ingress = one(case("standalone-nginx"), "Ingress")
    annotations = ingress["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/upstream-hash-by"] == "$http_x_request_id"
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == "67108864"
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["a.example.org", "b.example.org"]


def test_scaling_is_by_the_sidecars_container_alone():
    scaler = one(case("standalone-gateway"), "HorizontalPodAutoscaler")["spec"]
    assert scaler["metrics"][0]["containerResource"]["container"] == "derender-proxy"
    deployment = one(case("standalone-gateway"), "Deployment")
    assert "replicas" not in deployment["spec"] and scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_a_budget_only_where_it_can_be_kept():
    assert one(case("standalone-istio"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert of_kind(case("standalone-minimal"), "PodDisruptionBudget") == []


def test_a_changed_configuration_is_a_changed_pod():
    def annotations(values):
        deployment = one(render({"model": "m", "engine": {"tokensOnly": False}} | values), "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    before = annotations({"settings": {"max-n": 2}, "secret": {"apiKeys": ["a"]}})
    assert annotations({"settings": {"max-n": 2}, "secret": {"apiKeys": ["a"]}}) == before
    assert annotations({"settings": {"max-n": 3}, "secret": {"apiKeys": ["a"]}}) != before
    assert annotations({"settings": {"max-n": 2}, "secret": {"apiKeys": ["b"]}}) != before


def test_a_roll_out_restarts_nothing():
    """Mode and percentage are taken over from the file by a running sidecar."""

    def checksum(settings, live=True):
        values = {"model": "m", "engine": {"tokensOnly": False}, "settings": settings, "liveReload": live}
        deployment = one(render(values), "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]["checksum/derender-config"]

    shadow, canary = {"mode": "shadow"}, {"mode": "passthrough", "canary-percent": 5}
    assert checksum(shadow) == checksum(canary)
    assert checksum(shadow, live=False) != checksum(canary, live=False)


def test_versions_agree():
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == about["version"] == __version__


def test_it_can_be_packaged(tmp_path):
    helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("*.tgz")
    assert "derender-proxy" in helm("show", "chart", str(package))
    assert render({"model": "m"}, chart=package)


def test_the_notes_say_what_to_do():
    text = helm("install", "r", str(CHART), "--dry-run=client", "--set", "model=m", "--namespace", "models")
    notes = text.partition("NOTES:")[2]
    assert "helm -n models test r" in notes and "grace period 105 s" in notes
