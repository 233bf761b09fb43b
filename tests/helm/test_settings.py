"""The chart's flags, variables and configuration are those of the settings model: read by the command itself."""

from __future__ import annotations

import base64
import os

import pytest
import yaml

from proxy.cli import build_parser
from proxy.config import ENV_PREFIX, ConfigError, Settings, knob_of, load
from scripts import chart as derived
from tests.helm.chart import CASES, case, container, of_kind, render


def loaded(objects, tmp_path, monkeypatch):
    """The settings of the sidecar as its container would have them, and the faults."""
    sidecar = container(objects, "derender-proxy")
    config = tmp_path / "config.yaml"
    config.write_text(of_kind(objects, "ConfigMap")[0]["data"]["config.yaml"])
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    secrets = {item["metadata"]["name"]: item["stringData"] for item in of_kind(objects, "Secret")}
    for variable in sidecar["env"]:
        value = variable.get("value")
        if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
            value = secrets.get(reference["name"], {}).get(reference["key"])
        if value is not None:
            monkeypatch.setenv(variable["name"], value)
    files = tmp_path / "model"
    files.mkdir(exist_ok=True)
    arguments = [argument.replace("/etc/derender-proxy/", f"{tmp_path}/") for argument in sidecar["args"]]
    arguments[1] = str(files)  # a directory of the pod is none of this machine
    flags = vars(build_parser().parse_args(arguments))
    assert flags.pop("command") == "serve"
    try:
        return load(flags), []
    except ConfigError as error:
        return None, error.faults


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("existing")])
def test_the_command_takes_what_the_chart_gives(name, tmp_path, monkeypatch):
    settings, faults = loaded(case(name), tmp_path, monkeypatch)
    assert faults == []


def test_values_reach_the_settings(tmp_path, monkeypatch):
    settings, _ = loaded(case("sidecar-full"), tmp_path, monkeypatch)
    assert settings is not None
    assert settings.api_key == ["one,two", "three"]
    assert settings.engine_api_key == "engine"
    assert settings.served_model_name == ["chat", "qwen3"]
    assert settings.max_body_size == 67108864
    assert settings.default_chat_template_kwargs == {"enable_thinking": False}
    assert (settings.host, settings.port, settings.engine_url) == ("0.0.0.0", 8000, "http://127.0.0.1:8200")
    assert settings.shutdown_timeout == 300
    assert settings.sse_keep_alive_interval == 10


def test_every_setting_has_a_place():
    """In ``settings``, as a value of the chart's own, or in the Secret; and none in two."""
    schema = derived.settings_schema()["properties"]
    sidecar = container(case("sidecar-full"), "derender-proxy")
    variables = {variable["name"] for variable in sidecar["env"]}
    for name, field in Settings.model_fields.items():
        places = [name.replace("_", "-") in schema, name in derived.OWNED, knob_of(field).secret]
        assert sum(places) == 1, name
        if knob_of(field).secret:
            assert f"{ENV_PREFIX}{name.upper()}" in variables, f"{name}: add it to the Secret"
    assert {name for name in variables if name.startswith(ENV_PREFIX)} <= {
        f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields
    }


def test_settings_are_checked_as_the_model_checks_them(tmp_path, monkeypatch):
    """What the schema lets through, the model takes: each setting's default, written out."""
    given = {
        name.replace("_", "-"): field.default
        for name, field in Settings.model_fields.items()
        if name not in derived.OWNED and not knob_of(field).secret and field.default is not None
    }
    settings, faults = loaded(render({"model": "m", "settings": given}), tmp_path, monkeypatch)
    assert faults == [] and settings is not None


def test_the_engine_key_is_the_same_on_both_sides():
    objects = case("sidecar-full")
    for name, variable in (("derender-proxy", "DERENDER_ENGINE_API_KEY"), ("engine", "VLLM_API_KEY")):
        (found,) = [item for item in container(objects, name)["env"] if item["name"] == variable]
        assert found["valueFrom"]["secretKeyRef"]["key"] == "engine-api-key"


def test_no_secret_where_anybody_reads():
    objects = [item for item in case("sidecar-full") if item["kind"] != "Secret"]
    text = yaml.safe_dump(objects)
    assert "one,two" not in text and base64.b64encode(b"one,two").decode() not in text


def test_commands_exist():
    commands = next(action.choices for action in build_parser()._actions if action.dest == "command")
    assert "serve" in commands
    sidecar = container(case("sidecar-minimal"), "derender-proxy")
    program, command = sidecar["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "derender-proxy" and command in commands
