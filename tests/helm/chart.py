"""Rendering the chart, and what a valid object is: Kubernetes' schemas, those of custom resources, pod security."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_validate import utils

from scripts.tools import tool
from tests.servers import ROOT

CHART = ROOT / "helm"
CASES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
VERSIONS = ("1.29", "1.33", "1.35", "1.37")

RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip

# The schemas are megabytes, and are read anew for every object otherwise.
utils.schema_contents = functools.cache(utils.schema_contents)

Object = dict[str, Any]


class RenderError(Exception):
    """What helm said."""


def helm(*arguments: str) -> str:
    done = subprocess.run([str(tool("helm")), *arguments], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise RenderError(done.stderr)
    return done.stdout


def render(values: Object | None = None, *arguments: str, chart: Path = CHART, release: str = "r") -> list[Object]:
    """The objects made of ``values``. helm takes JSON for YAML."""
    given = () if values is None else ("--set-json", json.dumps(values))
    text = helm("template", release, str(chart), "--namespace", "models", *given, *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


@functools.cache
def _rendered(case: str) -> str:
    return json.dumps(render(None, "-f", str(CHART / "ci" / f"{case}-values.yaml")))


def case(name: str) -> list[Object]:
    """The objects of one file in helm/ci; a copy of one's own."""
    found: list[Object] = json.loads(_rendered(name))
    return found


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    found = [item for item in objects if item["kind"] == kind and name in (None, item["metadata"]["name"])]
    assert len(found) == 1, [(item["kind"], item["metadata"]["name"]) for item in objects]
    return found[0]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def pod_specs(objects: list[Object]) -> list[Object]:
    """The specification of every pod: of Deployments, and pods themselves."""
    found = [item["spec"]["template"]["spec"] for item in of_kind(objects, "Deployment")]
    return found + [item["spec"] for item in of_kind(objects, "Pod")]


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def container(objects: list[Object], name: str) -> Object:
    (spec,) = [item["spec"]["template"]["spec"] for item in of_kind(objects, "Deployment")]
    (found,) = [item for item in containers(spec) if item["name"] == name]
    return found


def violations(item: Object, version: str) -> list[str]:
    """What Kubernetes of this version would refuse, unknown fields included."""
    try:
        utils.validate(item, version, strict=True)
    except utils.SchemaNotFoundError:
        schema = CUSTOM.get((item["apiVersion"], item["kind"]))
        if schema is None:
            return [f"{item['apiVersion']} {item['kind']}: no schema"]
        whole = {
            **_object(["apiVersion", "kind", "metadata", "spec"], apiVersion={}, kind={}, metadata={}, spec=schema),
        }
        return [error.message for error in jsonschema.Draft202012Validator(whole).iter_errors(item)]
    except utils.ValidationError as error:
        return [str(error)]
    return []


def insecure(spec: Object) -> list[str]:
    """What keeps a pod from the restricted profile of the pod security standards."""
    faults = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    pod = spec.get("securityContext", {})
    for volume in spec.get("volumes", []):
        faults += [f"volume {volume['name']}: {source}" for source in set(volume) - {"name"} - RESTRICTED_VOLUMES]
    for item in containers(spec):
        own = item.get("securityContext", {})

        def check(good: bool, text: str, name: str = item["name"]) -> None:
            if not good:
                faults.append(f"{name}: {text}")

        capabilities = own.get("capabilities", {})
        check(not own.get("privileged"), "privileged")
        check(own.get("allowPrivilegeEscalation") is False, "allowPrivilegeEscalation")
        check("ALL" in capabilities.get("drop", []), "capabilities are not dropped")
        check(not set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}, "capabilities added")
        check(own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True, "runAsNonRoot")
        check(own.get("runAsUser", pod.get("runAsUser", 1)) != 0, "runs as root")
        profile = own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
        check(profile in ("RuntimeDefault", "Localhost"), f"seccomp profile {profile}")
        check(own.get("procMount", "Default") == "Default", "procMount")
        check(not any(port.get("hostPort") for port in item.get("ports", [])), "hostPort")
    return faults


# Custom resources, as far as this chart uses them; a field that is not here does not exist.
def _object(required: list[str], **properties: Any) -> Object:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _list(items: Object, least: int = 1) -> Object:
    return {"type": "array", "items": items, "minItems": least}


TEXT = {"type": "string", "minLength": 1}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION = {"type": "string", "pattern": r"^(0|(\d+(ms|s|m|h|d))+)$"}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
SELECTOR = _object(["matchLabels"], matchLabels=LABELS)
ENDPOINT = _object(
    ["port", "path"],
    port=TEXT, path=TEXT, scheme={"enum": ["http", "https"]}, interval=DURATION, scrapeTimeout=DURATION,
    tlsConfig=_object([], insecureSkipVerify={"type": "boolean"}),
)  # fmt: skip
RULE = {
    "oneOf": [
        _object(["record", "expr"], record=TEXT, expr=TEXT, labels=LABELS),
        _object(["alert", "expr"], alert=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS, **{"for": DURATION}),
    ]
}
CUSTOM: dict[tuple[str, str], Object] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        ["selector", "podMetricsEndpoints"], selector=SELECTOR, podMetricsEndpoints=_list(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        ["selector", "endpoints"], selector=SELECTOR, endpoints=_list(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        ["groups"], groups=_list(_object(["name", "rules"], name=TEXT, rules=_list(RULE)))
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): _object(
        ["selector", "targetPorts", "endpointPickerRef"],
        selector=SELECTOR,
        targetPorts=_list(_object(["number"], number=PORT)),
        endpointPickerRef=_object(
            ["name"], name=TEXT, port=_object(["number"], number=PORT), failureMode={"enum": ["FailOpen", "FailClose"]}
        ),
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _object(
        ["parentRefs", "rules"],
        parentRefs=_list(_object(["name"], name=TEXT, namespace=TEXT, sectionName=TEXT, port=PORT)),
        hostnames=_list(TEXT),
        rules=_list(
            _object(
                ["backendRefs"],
                matches=_list(_object([], path=_object([], type={"enum": ["PathPrefix", "Exact"]}, value=TEXT))),
                timeouts=_object([], request={"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
                backendRefs=_list(_object(["name", "port"], name=TEXT, port=PORT)),
            )
        ),
    ),
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): _object(
        ["targetRefs"],
        targetRefs=_list(_object(["group", "kind", "name"], group=TEXT, kind=TEXT, name=TEXT)),
        loadBalancer=_object(
            ["type"],
            type={"enum": ["ConsistentHash", "LeastRequest", "Random", "RoundRobin"]},
            consistentHash=_object(
                ["type"], type={"enum": ["Header", "SourceIP", "Cookie"]}, header=_object(["name"], name=TEXT)
            ),
        ),
    ),
    ("networking.istio.io/v1", "DestinationRule"): _object(
        ["host"],
        host=TEXT,
        trafficPolicy=_object(
            [], loadBalancer=_object([], consistentHash=_object(["httpHeaderName"], httpHeaderName=TEXT))
        ),
    ),
}
