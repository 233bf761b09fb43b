"""A wrong value is refused with a message that names it; what is derived from the values is up to date."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from scripts import chart as derived
from tests.helm.chart import CHART, RenderError, render


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # By the schema.
        ({"shape": "daemonset"}, "at '/shape': value must be one of 'sidecar', 'standalone', 'existing'"),
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"image": {"version": "1"}}, "at '/image': additional properties 'version' not allowed"),
        ({"image": {"digest": "sha256:12"}}, "at '/image/digest'"),
        ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy'"),
        ({"replicaCount": "two"}, "at '/replicaCount': got string, want integer"),
        ({"ports": {"http": 99999}}, "at '/ports/http': maximum: got 99,999, want 65,535"),
        ({"shutdown": {"timeout": -1}}, "at '/shutdown/timeout': minimum: got -1, want 0"),
        ({"settings": {"tool-call-parsre": "hermes"}}, "at '/settings': additional properties 'tool-call-parsre'"),
        ({"settings": {"max-n": 0}}, "at '/settings/max-n': minimum: got 0, want 1"),
        ({"settings": {"log-level": "loud"}}, "at '/settings/log-level': value must be one of"),
        ({"settings": {"default-chat-template-kwargs": "x"}}, "at '/settings/default-chat-template-kwargs'"),
        # The chart's own or a secret's: not among the settings.
        ({"settings": {"port": 9000}}, "at '/settings': additional properties 'port'"),
        ({"settings": {"engine-url": "none"}}, "at '/settings': additional properties 'engine-url'"),
        ({"settings": {"api-key": ["k"]}}, "at '/settings': additional properties 'api-key'"),
        ({"engine": {"gpu": {"count": -1}}}, "at '/engine/gpu/count'"),
        ({"engine": {"extraArgs": [2]}}, "at '/engine/extraArgs/0': got number, want string"),
        ({"requestAffinity": {"provider": "haproxy"}}, "at '/requestAffinity/provider'"),
        ({"llmd": {"role": "router"}}, "at '/llmd/role'"),
        ({"monitoring": {"rules": {"thresholds": {"errorShare": 0}}}}, "at '/monitoring/rules/thresholds/errorShare'"),
        ({"monitoring": {"rules": {"thresholds": {"errors": 1}}}}, "additional properties 'errors' not allowed"),
        # By the chart, several at once.
        ({"model": ""}, "model: required"),
        ({"model": "/models/m"}, "model: /models/m is a directory, but no volume has it; set modelFiles.volume"),
        ({"shape": "standalone"}, "settings.max-model-len: required in shape standalone"),
        ({"engineUrl": "http://e"}, "engineUrl: only in shape standalone"),
        ({"engine": {"port": 8000}}, "engine.port: 8000 is the sidecar's"),
        ({"ports": {"admin": 8000}}, "ports.admin: 8000 is the public port"),
        ({"settings": {"mode": "shadow"}}, "engine.tokensOnly: must be false for passthrough, shadow and canary"),
        ({"settings": {"canary-percent": 5}}, "engine.tokensOnly: must be false"),
        ({"settings": {"derender-state": "compact"}}, "secret.stateKey: required"),
        ({"secret": {"existing": "s", "hfToken": "t"}}, "secret.existing: either a Secret that exists or keys"),
        ({"shutdown": {"gracePeriod": 30}}, "shutdown.gracePeriod: 30 cuts a drain of 15 + 60 seconds short"),
        ({"shape": "existing", "autoscaling": {"enabled": True}}, "autoscaling.enabled: shape existing"),
        ({"autoscaling": {"enabled": True, "minReplicas": 20}}, "autoscaling.minReplicas: 20 is more than"),
        (
            {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}},
            "autoscaling.metrics: nothing to scale by",
        ),
        ({"requestAffinity": {"provider": "istio"}}, "requestAffinity.provider: only in shape standalone"),
        (
            {"shape": "standalone", "requestAffinity": {"provider": "gateway"}},
            "requestAffinity.gateway.parentRefs: required",
        ),
        (
            {"shape": "standalone", "service": {"enabled": False}, "requestAffinity": {"provider": "istio"}},
            "service.enabled: requestAffinity.provider needs the Service",
        ),
        ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker: required"),
        ({"shape": "existing", "monitoring": {"podMonitor": {"enabled": True}}}, "existing.podLabels: required"),
        (
            {"service": {"enabled": False}, "monitoring": {"serviceMonitor": {"enabled": True}}},
            "monitoring.serviceMonitor: needs the Service",
        ),
    ],
)
def test_a_wrong_value_is_named(values, said):
    with pytest.raises(RenderError) as caught:
        render({"model": "m"} | values)
    assert said in str(caught.value)


def test_all_faults_at_once():
    with pytest.raises(RenderError) as caught:
        render({"model": "", "ports": {"admin": 8000}, "engineUrl": "http://e"})
    for name in ("model:", "ports.admin:", "engineUrl:"):
        assert f"\n  {name}" in str(caught.value)


def test_derived_files_are_up_to_date():
    for make in (derived.expected, derived.rendered):
        assert derived.stale(make()) == [], "`make chart` writes them anew"


def test_the_schema_is_one():
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_schema_knows_every_value():
    """The reader of values.yaml goes by lines; a key that it missed would be refused, or not be checked."""

    def paths(value, path=()):
        if isinstance(value, dict) and value and not (path and derived.is_free(path)):
            return [found for key, below in value.items() for found in paths(below, (*path, key))]
        return [path]

    def known(schema, path):
        for key in path:
            schema = schema.get("properties", {}).get(key)
            if schema is None:
                return False
        return True

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    one_line = {".".join(value.path) for value in derived.read_values() if not value.children}
    assert [path for path in paths(values) if not known(schema, path) and path[0] not in one_line] == []


def test_the_readme_has_every_value():
    readme = (CHART / "README.md").read_text()

    def leaves(values):
        return [
            leaf
            for value in values
            for leaf in (
                leaves(value.children)
                if value.children and not derived.is_free(value.path)
                else [".".join(value.path)]
            )
        ]

    assert [name for name in leaves(derived.read_values()) if f"`{name}`" not in readme] == []
