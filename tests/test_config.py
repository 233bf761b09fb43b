import subprocess
import sys
from pathlib import Path

import pytest

from proxy.config import ConfigError, load

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("DERENDER_"):
            monkeypatch.delenv(name)


def faults(flags):
    with pytest.raises(ConfigError) as caught:
        load(flags)
    return caught.value.faults


def test_defaults():
    settings = load({"model": "m"})
    assert (settings.port, settings.engine_base_url, settings.parser_names) == (
        8000,
        "http://127.0.0.1:8200",
        (None, None),
    )


def test_flags_win_over_environment_over_file(tmp_path, monkeypatch):
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nmax-n: 2\nmax_body_size: 4096\nmodel: from-file\n")
    monkeypatch.setenv("DERENDER_PORT", "3")
    monkeypatch.setenv("DERENDER_MAX_N", "4")
    settings = load({"config": str(file), "port": "5"})
    assert (settings.port, settings.max_n, settings.max_body_size, settings.model) == (5, 4, 4096, "from-file")


def test_the_file_may_be_named_in_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "c.yaml"
    file.write_text("model: m\nport: 7\n")
    monkeypatch.setenv("DERENDER_CONFIG", str(file))
    assert load({}).port == 7


def test_lists_and_objects_in_every_source(tmp_path, monkeypatch):
    monkeypatch.setenv("DERENDER_SERVED_MODEL_NAME", "a, b")
    monkeypatch.setenv("DERENDER_API_KEY", '["x,y"]')
    monkeypatch.setenv("DERENDER_DEFAULT_CHAT_TEMPLATE_KWARGS", '{"enable_thinking": false}')
    settings = load({"model": "m"})
    assert settings.served_model_name == ["a", "b"]
    assert settings.api_key == ["x,y"]
    assert settings.default_chat_template_kwargs == {"enable_thinking": False}
    file = tmp_path / "c.yaml"
    file.write_text("model: m\ndefault-chat-template-kwargs: {x: 1}\n")
    # A flag replaces an object of a weaker source; the two are not mixed.
    settings = load({"config": str(file), "default_chat_template_kwargs": '{"y": 2}'})
    assert settings.default_chat_template_kwargs == {"y": 2}


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        ({}, "MODEL: required"),
        ({"model": "m", "port": "x"}, "--port: "),
        ({"model": "m", "port": "65536"}, "--port: "),
        ({"model": "m", "max_n": "0"}, "--max-n: "),
        ({"model": "m", "reasoning_field": "thoughts"}, "--reasoning-field: "),
        ({"model": "m", "default_chat_template_kwargs": "{"}, "--default-chat-template-kwargs: not valid JSON"),
        ({"model": "m", "engine_url": "engine:8200"}, "--engine-url: engine:8200 is not an http"),
        ({"model": "m", "engine_url": "none"}, "--max-model-len: required"),
        ({"model": "m", "engine_url": "none", "resume_on_engine_loss": True}, "--resume-on-engine-loss: there is no"),
        ({"model": "m", "engine": "trtllm"}, "--engine: "),
        ({"model": "m", "engine_url": "http://a,b:1"}, "--engine-url: b:1 is not an http"),
        ({"model": "m", "engine_url": " , "}, "--engine-url: an empty value"),
        ({"model": "m", "api_key": [" "]}, "--api-key: an empty value"),
        ({"model": "m", "request_id_header": "a b"}, "--request-id-header: "),
        ({"model": "m", "config": "/does/not/exist.yaml"}, "--config: cannot read"),
    ],
)
def test_a_bad_value_names_its_flag(flags, start):
    assert faults(flags)[0].startswith(start)


def test_a_bad_environment_value_names_flag_and_variable(monkeypatch):
    monkeypatch.setenv("DERENDER_MAX_N", "many")
    assert faults({"model": "m"})[0].startswith("--max-n (DERENDER_MAX_N): ")


@pytest.mark.parametrize(
    "given", ["http://a:1/, http://b:2", ["http://a:1", "http://b:2/"], ["http://a:1,http://b:2", "http://a:1"]]
)
def test_engines_may_be_several(given):
    settings = load({"model": "m", "engine_url": given})
    assert (settings.engine_urls, settings.engine_base_url) == (["http://a:1", "http://b:2"], "http://a:1")


def test_several_faults_are_told_at_once():
    assert len(faults({"model": "m", "port": "x", "max_n": "x"})) == 2


@pytest.mark.parametrize("text", ["prot: 8000\n", "config: other.yaml\n"])
def test_unknown_keys_of_the_file_are_errors(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert "no such setting" in faults({"model": "m", "config": str(file)})[0]


@pytest.mark.parametrize("text", ["- a\n", "a: [", "port: 1\nport: 2\n---\n"])
def test_a_broken_file_is_an_error(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert faults({"model": "m", "config": str(file)})[0].startswith("--config: ")


def test_unknown_variables_are_errors(monkeypatch):
    monkeypatch.setenv("DERENDER_PROT", "1")
    assert faults({"model": "m"}) == ("DERENDER_PROT: no such setting",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DERENDER_PORT", "tcp://10.0.0.1:8000"),
        ("DERENDER_SERVICE_HOST", "10.0.0.1"),
        ("DERENDER_PORT_8000_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_kubernetes_service_links_are_explained(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert "enableServiceLinks" in faults({"model": "m"})[0]


def test_secrets_are_masked():
    shown = load({"model": "m", "api_key": ["k1", "k2"], "engine_api_key": "k3"}).effective()
    assert shown["api_key"] == ["***", "***"] and shown["engine_api_key"] == "***"
    assert "k1" not in str(shown) and "k3" not in str(shown)


def test_settings_are_frozen():
    settings = load({"model": "m"})
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1


def test_reference_agrees_with_the_settings():
    found = subprocess.run([sys.executable, ROOT / "config/reference.py"], capture_output=True, text=True, cwd=ROOT)
    assert (found.stdout, found.returncode) == ("", 0), f"{found.stdout}{found.stderr}"


def test_default_yaml_changes_nothing_and_its_keys_are_settings(tmp_path):
    text = (ROOT / "config/default.yaml").read_text()
    assert load({"model": "m", "config": str(ROOT / "config/default.yaml")}) == load(
        {"model": "m", "config": str(ROOT / "config/default.yaml")}
    )
    uncommented = "\n".join(
        line.removeprefix("# ") for line in text.splitlines() if line.removeprefix("# ").split(":")[0].islower()
        and ":" in line and " " not in line.removeprefix("# ").split(":")[0]
    )  # fmt: skip
    file = tmp_path / "all.yaml"
    file.write_text(uncommented)
    settings = load({"model": "m", "config": str(file)})
    assert settings.model_dump(exclude={"config"}) == load({"model": "m"}).model_dump(exclude={"config"})
