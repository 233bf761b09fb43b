"""The examples in config/kubernetes do what they say: kustomize patches, a parent chart, values for each use."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml

from scripts.tools import tool
from tests.helm.chart import VERSIONS, containers, helm, insecure, of_kind, one, pod_specs, render, violations
from tests.servers import ROOT

KUBERNETES = ROOT / "config" / "kubernetes"


def kustomize(name):
    done = subprocess.run(
        [str(tool("kubectl")), "kustomize", str(KUBERNETES / name)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def assert_sidecar_beside(spec, engine):
    """The pod has what makes the two end in the right order, and nothing that got lost in the merge."""
    (sidecar,) = spec["initContainers"]
    assert sidecar["name"] == "derender-proxy" and sidecar["restartPolicy"] == "Always"
    (found,) = [item for item in spec["containers"] if item["name"] == engine]
    assert "/etc/derender-proxy/wait_for_drain.py" in found["lifecycle"]["preStop"]["exec"]["command"]
    assert spec["terminationGracePeriodSeconds"] == 105
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(volumes) == len(set(volumes))
    for item in containers(spec):
        assert {mount["name"] for mount in item.get("volumeMounts", [])} <= set(volumes)
    for source in (volume.get("configMap") for volume in spec["volumes"]):
        assert source in (None, {"name": "derender-proxy"})
    # Only the engine is asked for its own health; over the network it cannot be.
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert set(found[probe]) & {"exec", "httpGet"} == {"exec"}
    assert {mount["mountPath"] for mount in found["volumeMounts"]} >= {"/dev/shm", "/etc/derender-proxy"}


@pytest.mark.parametrize("version", VERSIONS)
def test_patch_of_a_deployment(version):
    (deployment,) = kustomize("deployment")
    assert violations(deployment, version) == []
    assert_sidecar_beside(deployment["spec"]["template"]["spec"], "vllm")


@pytest.mark.parametrize("version", VERSIONS)
def test_patch_of_a_leaderworkerset(version):
    (found,) = kustomize("leaderworkerset")
    template = found["spec"]["leaderWorkerTemplate"]
    assert_sidecar_beside(template["leaderTemplate"]["spec"], "vllm")
    assert "initContainers" not in template["workerTemplate"]["spec"]
    for part in ("leaderTemplate", "workerTemplate"):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": part}, "spec": template[part]["spec"]}
        assert violations(pod, version) == []


def test_the_patches_mount_what_the_chart_makes():
    """Shape existing, under the release name that the examples use."""
    objects = render(None, "-f", str(KUBERNETES / "values-existing.yaml"), release="derender-proxy")
    assert set(one(objects, "ConfigMap", "derender-proxy")["data"]) == {"config.yaml", "wait_for_drain.py"}
    (deployment,) = kustomize("deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert one(objects, "Service")["spec"]["selector"].items() <= labels.items()
    assert of_kind(objects, "Deployment") == [] and of_kind(objects, "ServiceAccount") == []


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """The objects of the parent chart, its dependency fetched as its user would."""
    folder = tmp_path_factory.mktemp("parent")
    shutil.copytree(ROOT / "helm", folder / "helm")
    chart = folder / "config" / "kubernetes" / "parent-chart"
    shutil.copytree(KUBERNETES / "parent-chart", chart)
    helm("dependency", "update", str(chart))
    helm("lint", "--strict", str(chart))
    return render(None, chart=chart, release="chat")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_parent_chart_is_valid(parent, version):
    assert [fault for item in parent for fault in violations(item, version)] == []


def test_a_parent_chart_has_the_sidecar(parent):
    stateful = one(parent, "StatefulSet")["spec"]["template"]
    (sidecar,) = stateful["spec"]["initContainers"]
    assert sidecar["image"] == "derender-proxy:0.1.0" and sidecar["args"][1] == "Qwen/Qwen3-8B"
    assert insecure(stateful["spec"]) == []
    config = one(parent, "ConfigMap", "chat-derender-proxy")
    assert yaml.safe_load(config["data"]["config.yaml"])["tool-call-parser"] == "hermes"
    assert {"name": "derender-config", "configMap": {"name": "chat-derender-proxy"}} in stateful["spec"]["volumes"]
    assert stateful["metadata"]["annotations"]["checksum/derender-config"]
    assert one(parent, "Service")["spec"]["selector"].items() <= stateful["metadata"]["labels"].items()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(path.name for path in KUBERNETES.glob("values-*.yaml")))
def test_values_for_each_use(name, version):
    objects = render(None, "-f", str(KUBERNETES / name))
    assert [fault for item in objects for fault in violations(item, version)] == []
    assert [fault for spec in pod_specs(objects) for fault in insecure(spec)] == []
