"""Writes what is derived from the chart's values, the settings model and the chart itself.

    python scripts/chart.py          show whether they agree
    python scripts/chart.py --write  make them agree

helm/values.schema.json and helm/README.md come from the comments and defaults of helm/values.yaml, the properties of
`settings` from the settings model, config/kubernetes/ (the patches and the rules for those who do not use helm) from
the rendered chart.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from proxy.config import Settings, choices_of, is_list, knob_of
from scripts.tools import tool

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm"
KUBERNETES = ROOT / "config" / "kubernetes"
VALUES = CHART / "values.yaml"

# The chart gives these itself, as flags made of values of its own, or out of a Secret.
OWNED = {
    "model": "model",
    "config": None,
    "host": None,
    "port": "ports.http",
    "admin_port": "ports.admin",
    "engine_url": "engineUrl",
    "shutdown_window": "shutdown.window",
    "shutdown_timeout": "shutdown.timeout",
    "ssl_certfile": "tls.secretName",
    "ssl_keyfile": "tls.secretName",
}


@dataclass
class Value:
    """One key of values.yaml: where it is, its default, what is said of it."""

    path: tuple[str, ...]
    default: Any
    text: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    children: list[Value] = field(default_factory=list)


def read_values() -> list[Value]:
    """The keys of values.yaml with the comments above them. Maps written over several lines have children; those
    written in one line are values as a whole."""
    loaded = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    roots: list[Value] = []
    stack: list[tuple[int, Value]] = []
    text: list[str] = []
    extra: dict[str, Any] = {}
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        stripped = line.strip()
        if stripped.startswith("# @schema "):
            extra = json.loads(stripped.removeprefix("# @schema "))
        elif stripped.startswith("# -- "):
            text = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and text:
            text.append(stripped.removeprefix("# "))
        elif match := re.match(r"^(\s*)([A-Za-z][\w.-]*):(\s|$)", line):
            indent, key = len(match[1]), match[2]
            while stack and stack[-1][0] >= indent:
                stack.pop()
            parent = stack[-1][1] if stack else None
            path = (*(parent.path if parent else ()), key)
            value = Value(path, _at(loaded, path), " ".join(text), extra)
            (parent.children if parent else roots).append(value)
            stack.append((indent, value))
            text, extra = [], {}
        else:
            text = []
    return roots


def _at(loaded: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        loaded = loaded[key]
    return loaded


def _type_of(default: Any) -> dict[str, Any]:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(default, kind):
            return {"type": name}
    return {"type": "object"}


def is_free(path: tuple[str, ...]) -> bool:
    """Maps that Kubernetes defines, not this chart: their keys may be others than those of the default."""
    names = {"resources", "podSecurityContext", "strategy", "behavior", "labels", "annotations"}
    return path[-1] in names or "probes" in path[:-1]


def schema_of(value: Value) -> dict[str, Any]:
    if value.path == ("settings",):
        found: dict[str, Any] = settings_schema()
    elif value.children and not is_free(value.path):
        found = {
            "type": "object",
            "additionalProperties": False,
            "properties": {child.path[-1]: schema_of(child) for child in value.children},
        }
    else:
        found = _type_of(value.default)
        if "thresholds" in value.path:
            found = {"type": "number", "exclusiveMinimum": 0}
    if value.text:
        found["description"] = value.text
    return found | value.extra


def schema() -> dict[str, Any]:
    properties = {value.path[-1]: schema_of(value) for value in read_values()}
    properties["replicaCount"]["minimum"] = 0
    properties["global"] = {"type": "object", "description": "Of a parent chart."}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of derender-proxy",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def settings_schema() -> dict[str, Any]:
    """The settings that may be given as such, by their names in a configuration file."""
    properties = {
        name.replace("_", "-"): _setting(item)
        for name, item in Settings.model_fields.items()
        if name not in OWNED and not knob_of(item).secret
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting(item: FieldInfo) -> dict[str, Any]:
    kinds = typing.get_args(item.annotation) or (item.annotation,)
    choices = choices_of(item)
    found: dict[str, Any]
    if choices:
        found = {"enum": list(choices)}
    elif is_list(item):
        found = {"type": "array", "items": {"type": "string"}}
    elif dict in (item.annotation, *map(typing.get_origin, (item.annotation, *kinds))):
        found = {"type": "object"}
    elif bool in kinds:
        found = {"type": "boolean"}
    elif float in kinds:
        found = {"type": "number"}
    elif int in kinds:
        found = {"type": "integer"}
    elif str in kinds:
        found = {"type": "string"}
    elif any(typing.get_origin(kind) is Literal for kind in kinds):
        found = {"enum": [choice for kind in kinds for choice in typing.get_args(kind)]}
    else:
        raise TypeError(f"no schema for {item.annotation}")
    for bound in item.metadata:
        match bound:
            case Ge(ge=limit):
                found["minimum"] = limit
            case Gt(gt=limit):
                found["exclusiveMinimum"] = limit
            case Le(le=limit):
                found["maximum"] = limit
            case Lt(lt=limit):
                found["exclusiveMaximum"] = limit
            case _ if getattr(bound, "pattern", None):
                found["pattern"] = bound.pattern
    return found | {"description": item.description or ""}


README = """\
# The chart

Three shapes from one chart; Kubernetes 1.29 or newer.

| `shape` | installs |
|---|---|
| `sidecar` | a Deployment of vLLM with the sidecar as a native sidecar: an init container with \
`restartPolicy: Always` |
| `standalone` | a tier of sidecars without an engine, for clients of `/derender` and `/render`, with a Deployment, \
an HPA and consistent hashing on the request id |
| `existing` | what an engine deployed by something else needs beside it: configuration, secret, monitoring |

```
helm install chat ./helm --set model=Qwen/Qwen3-8B \\
  --set settings.tool-call-parser=hermes --set settings.reasoning-parser=qwen3
helm install derender ./helm -f config/kubernetes/values-standalone.yaml
helm test chat
```

Commented values for each are in [config/kubernetes](../config/kubernetes).

## An engine of your own

With kustomize: [config/kubernetes/deployment](../config/kubernetes/deployment) patches a Deployment,
[config/kubernetes/leaderworkerset](../config/kubernetes/leaderworkerset) the leader of a LeaderWorkerSet. Install the
chart beside it with `shape: existing`, which makes the ConfigMap `derender-proxy` that the patches mount.

From a chart of your own, with this one as a dependency (`shape: existing`):
[config/kubernetes/parent-chart](../config/kubernetes/parent-chart). The named templates take the context of this
chart, `(index .Subcharts "derender-proxy")`:

| template | is |
|---|---|
| `derender-proxy.sidecar` | an item of `initContainers`: the native sidecar |
| `derender-proxy.container` | the same as an item of `containers` |
| `derender-proxy.volumes` | items of `volumes` |
| `derender-proxy.engineLifecycle` | `lifecycle` of the engine's container: its preStop waits for the drain |
| `derender-proxy.engineVolumeMounts` | items of the engine's `volumeMounts`, for that script |
| `derender-proxy.gracePeriod` | `terminationGracePeriodSeconds` |
| `derender-proxy.checksums` | annotations of the pod, so that a changed configuration is a changed pod |

## How a pod ends

All preStop hooks start together. The sidecar's (`derender-proxy drain`) makes it not ready, and it goes on taking
streams for `shutdown.window` seconds, until every gateway has noticed; streams then get `shutdown.timeout` seconds. The
engine's waits for the same, since a native sidecar is told to stop only after the engine is gone; then the engine ends
(`shutdown.engineTimeout`), then the sidecar. The grace period is the sum of these and `shutdown.margin`.

## Who reaches what

The engine listens on 127.0.0.1, so that nobody gets past the sidecar; a NetworkPolicy cannot filter loopback. Its
probes therefore run inside its container. The NetworkPolicy admits the sidecar's ports and nothing else. Every
container keeps to the restricted pod security profile.

`/metrics` on the public port is the sidecar's series and the engine's, names untouched: a picker of the Gateway API
inference extension or of llm-d scrapes the pod as it would scrape vLLM.

## What is watched

`monitoring.dashboard` is a board for Grafana ([dashboards/derender-proxy.json](dashboards/derender-proxy.json)),
`monitoring.rules` the alerts below, with thresholds that are values; without the operator,
[config/kubernetes/prometheus-rules.yaml](../config/kubernetes/prometheus-rules.yaml) has the same.

<!-- What follows is made by `make chart`. -->

"""


def readme() -> str:
    rows = ["| alert | severity | after | |", "|---|---|---|---|"]
    for alert in (rule for group in _rule_groups() for rule in group["rules"] if "alert" in rule):
        cells = (alert["alert"], alert["labels"]["severity"], alert.get("for", ""), alert["annotations"]["summary"])
        rows.append(f"| {' | '.join(cells)} |")
    rows += ["", "## Values", "", "| value | default | |", "|---|---|---|"]

    def add(value: Value, inherited: str = "") -> None:
        if value.children and not is_free(value.path):
            if value.text:
                rows.append(f"| `{'.'.join(value.path)}` | | {_cell(value.text)} |")
            for child in value.children:
                add(child)
            return
        text = _cell(value.text)
        if enum := value.extra.get("enum"):
            text = f"{text} One of {', '.join(f'`{item}`' if item else 'empty' for item in enum)}.".strip()
        rows.append(f"| `{'.'.join(value.path)}` | `{_cell(json.dumps(value.default))}` | {text} |")

    for value in read_values():
        add(value)
    return README + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def render(*arguments: str, name: str = "derender-proxy", chart: Path = CHART) -> list[dict[str, Any]]:
    """The objects that the chart makes of these arguments."""
    done = subprocess.run(
        [str(tool("helm")), "template", name, str(chart), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def _rule_groups() -> list[dict[str, Any]]:
    (rule,) = (
        document
        for document in render("--set", "shape=existing,monitoring.rules.enabled=true")
        if document["kind"] == "PrometheusRule"
    )
    groups: list[dict[str, Any]] = rule["spec"]["groups"]
    return groups


def rules() -> str:
    """The Prometheus rules as a file, with the chart's thresholds."""
    return "# Made by `make chart`; the same rules as the chart's PrometheusRule.\n" + _dump({"groups": _rule_groups()})


SIDECAR = """\
# Made by `make chart` from the chart's sidecar; `helm template derender-proxy helm --set shape=existing` makes the
# ConfigMap that it mounts. Change the image, the model and the names of the containers to yours. Keys are taken
# from the Secret derender-proxy (api-key, engine-api-key, state-key, hf-token), if there is one.
"""


def _pod() -> dict[str, Any]:
    """The pod of shape `sidecar`, with the names that the examples use."""
    objects = render("--set", "model=Qwen/Qwen3-8B,secret.existing=derender-proxy")
    (deployment,) = (document for document in objects if document["kind"] == "Deployment")
    template: dict[str, Any] = deployment["spec"]["template"]
    return template


def patch_deployment() -> str:
    """Strategic merge: containers by name, the rest added."""
    spec = _pod()["spec"]
    (sidecar,), (engine,) = spec["initContainers"], spec["containers"]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm"},
        "spec": {
            "template": {
                "spec": {
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
                    "initContainers": [sidecar],
                    "containers": [_engine_patch(engine)],
                    "volumes": [item for item in spec["volumes"] if item["name"].startswith("derender-")],
                }
            }
        },
    }
    return SIDECAR + _dump(patch)


def _engine_patch(engine: dict[str, Any]) -> dict[str, Any]:
    """What the engine's container gets: it waits for the drain, and is asked for its health from inside."""
    mounts = [item for item in engine["volumeMounts"] if item["name"] == "derender-config"]
    probes = {name: engine[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    for probe in probes.values():
        probe["httpGet"] = None  # what the engine's manifest has for it is of no use on loopback
    return {"name": "vllm", "lifecycle": engine["lifecycle"], **probes, "volumeMounts": mounts}


def patch_leaderworkerset() -> str:
    """A LeaderWorkerSet is a custom resource, whose lists kustomize can only replace: so item by item (JSON 6902)."""
    spec = _pod()["spec"]
    (sidecar,), (engine,) = spec["initContainers"], spec["containers"]
    at = "/spec/leaderWorkerTemplate/leaderTemplate/spec"
    patch = _engine_patch(engine)
    grace = spec["terminationGracePeriodSeconds"]
    steps: list[dict[str, Any]] = [
        {"op": "add", "path": f"{at}/enableServiceLinks", "value": False},
        {"op": "add", "path": f"{at}/terminationGracePeriodSeconds", "value": grace},
        # Take initContainers/- where the leader has some already.
        {"op": "add", "path": f"{at}/initContainers", "value": [sidecar]},
        {"op": "add", "path": f"{at}/containers/0/lifecycle", "value": patch["lifecycle"]},
    ]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = {key: value for key, value in patch[name].items() if value is not None}
        steps.append({"op": "add", "path": f"{at}/containers/0/{name}", "value": probe})
    for mount in patch["volumeMounts"]:
        steps.append({"op": "add", "path": f"{at}/containers/0/volumeMounts/-", "value": mount})
    for volume in spec["volumes"]:
        if volume["name"].startswith("derender-"):
            steps.append({"op": "add", "path": f"{at}/volumes/-", "value": volume})
    return SIDECAR + _dump(steps)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(value: object) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)


def expected() -> dict[Path, str]:
    """What needs no helm, which itself reads the schema."""
    return {CHART / "values.schema.json": json.dumps(schema(), indent=2) + "\n"}


def rendered() -> dict[Path, str]:
    """The files that need helm, and a schema that fits."""
    return {
        CHART / "README.md": readme(),
        KUBERNETES / "prometheus-rules.yaml": rules(),
        KUBERNETES / "deployment" / "sidecar.yaml": patch_deployment(),
        KUBERNETES / "leaderworkerset" / "sidecar.yaml": patch_leaderworkerset(),
    }


def stale(files: dict[Path, str]) -> list[Path]:
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    code = 0
    for make in (expected, rendered):
        files = make()
        for path in stale(files):
            if "--write" in sys.argv[1:]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(files[path], encoding="utf-8")
            else:
                print(f"{path.relative_to(ROOT)} is not what `make chart` makes of the values, settings and templates")
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
