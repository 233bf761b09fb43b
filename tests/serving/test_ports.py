"""TLS at the public port, with certificates that are renewed under open streams, and the port beside it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest
import trustme

from proxy.config import ConfigError
from proxy.serving import tls
from tests.e2e.wire import chat_body, post, until
from tests.servers import DEMO_MODEL, DEMO_NAME, ROOT, Process, Sidecar, free_port
from tests.serving.conftest import sidecar_process

OPS = ("/live", "/health", "/ready")
ADMIN = ("/metrics", "/debug", "/debug/ui", "/debug/shadow", "/debug/inspect")


class Authority:
    """A CA, and its certificates as files in ``home``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.made = trustme.CA()
        self.bundle = home / "ca.pem"
        self.made.cert_pem.write_to_path(str(self.bundle))

    def issue(self, name: str = "tls") -> dict[str, str]:
        """Writes ``name``.crt and ``name``.key; the settings that name them."""
        issued = self.made.issue_cert("127.0.0.1")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        for suffix, content in (("crt", chain), ("key", issued.private_key_pem.bytes())):
            fresh = self.home / f".{name}.{suffix}"
            fresh.write_bytes(content)
            fresh.rename(self.home / f"{name}.{suffix}")
        return {"ssl_certfile": str(self.home / f"{name}.crt"), "ssl_keyfile": str(self.home / f"{name}.key")}

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """For clients that trust it; with ``name``, they show that certificate."""
        context = ssl.create_default_context(cafile=str(self.bundle))
        if name is not None:
            context.load_cert_chain(self.home / f"{name}.crt", self.home / f"{name}.key")
        return context


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def statuses(url: str, paths: tuple[str, ...], **more: object) -> list[int]:
    return [httpx.get(url + path, **more).status_code for path in paths]


# -- the admin port ----------------------------------------------------------------------------------------------------


def test_what_is_where(simulator):
    with Sidecar(engine_url=simulator.url, admin_port=0, debug=True, api_key=["k"]) as sidecar:
        key = {"authorization": "Bearer k"}
        assert statuses(sidecar.url, OPS) == [200] * 3 and statuses(sidecar.admin_url, OPS) == [200] * 3
        assert statuses(sidecar.url, ADMIN, headers=key) == [404] * 5
        assert statuses(sidecar.admin_url, ADMIN, headers=key) == [200] * 5
        assert statuses(sidecar.admin_url, ADMIN) == [200] + [401] * 4
        for path in ("/v1/models", "/v1/chat/completions", "/version"):
            assert httpx.get(sidecar.admin_url + path, headers=key).status_code == 404
        answer = post(sidecar.url, chat_body(), headers=key)
        assert answer.status_code == 200
        told = httpx.get(sidecar.admin_url + "/metrics").text
        assert re.search(r'^derender_requests_total\{[^}]*code="200"[^}]*chat/completions[^}]*\} 1', told, re.M), told
        assert "vllm:" in told


def test_workers_share_both_ports_and_a_drain_ends_both(simulator, tmp):
    flags = ("--admin-port", "0", "--workers", "2")
    with sidecar_process(simulator.url, *flags, tmp=tmp, window=2.0) as sidecar:
        port = json.loads(sidecar.wait_for_line('"listening"'))["admin_port"]
        admin = f"http://127.0.0.1:{port}"
        for _ in range(20):
            assert post(sidecar.url, chat_body()).status_code == 200
        for _ in range(5):
            told = httpx.get(f"{admin}/metrics").text
            assert re.search(r"^derender_requests_total\{[^}]*chat/completions[^}]*\} 20", told, re.M), told
        sidecar.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{admin}/ready").status_code == 503)
        assert httpx.get(f"{admin}/live").status_code == 200
        assert sidecar.wait(15) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{admin}/live")


def test_a_port_that_is_taken_is_named():
    from proxy import cli, config

    with cli.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        taken.listen()
        settings = config.load({"model": str(DEMO_MODEL), "host": "127.0.0.1", "port": 0, "admin_port": port})
        with pytest.raises(ConfigError, match=f"--host/--admin-port: cannot listen on 127.0.0.1:{port}"):
            cli.bind_all(settings)


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_streams_over_tls_equal_those_without(simulator, authority):
    parsers = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes", "engine_url": simulator.url}
    text = 'Hm.</think>\n\nSo.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    told = []
    with Sidecar(**parsers) as plain, Sidecar(**parsers, **authority.issue()) as secure:
        assert secure.url.startswith("https:")
        for sidecar in (plain, secure):
            client = openai.OpenAI(
                base_url=f"{sidecar.url}/v1", api_key="-", http_client=httpx.Client(verify=authority.client())
            )
            stream = client.chat.completions.create(
                model=DEMO_NAME, stream=True, tools=tools, messages=[{"role": "user", "content": "x"}],
                extra_body={"vllm_xargs": {"force_text": text}},
            )  # fmt: skip
            told.append([re.sub(r"chatcmpl-tool-\w+|call_\w+", "", c.choices[0].delta.to_json()) for c in stream])
        assert told[0] == told[1] and len(told[0]) > 5
        with pytest.raises(httpx.ConnectError):  # nobody has heard of this authority
            httpx.get(f"{secure.url}/live")


async def test_a_client_that_leaves_over_tls_is_noticed(simulator, authority):
    with Sidecar(engine_url=simulator.url, **authority.issue()) as sidecar:
        body = chat_body("word " * 500, stream=True, max_tokens=600, xargs={"itl": 0.01})
        headers = {"x-request-id": "leaves-over-tls"}
        async with httpx.AsyncClient(verify=authority.client()) as client:
            async with client.stream("POST", f"{sidecar.url}/v1/chat/completions", json=body, headers=headers) as got:
                await anext(got.aiter_lines())
        await asyncio.to_thread(until, lambda: simulator.only("leaves-over-tls")["aborted"] is not None)


def test_a_renewed_certificate_is_served_without_a_restart(simulator, authority, monkeypatch, caplog):
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.05)
    files = authority.issue()

    def served() -> str:
        host, port = sidecar.url.removeprefix("https://").split(":")
        return ssl.get_server_certificate((host, int(port)))

    with Sidecar(engine_url=simulator.url, **files) as sidecar:
        before = served()
        with httpx.Client(verify=authority.client()) as kept:
            assert kept.get(f"{sidecar.url}/live").status_code == 200
            # a certificate without its key is not taken, and no handshake fails meanwhile
            key = Path(files["ssl_keyfile"]).read_bytes()
            authority.issue()
            fresh = Path(files["ssl_keyfile"]).read_bytes()
            Path(files["ssl_keyfile"]).write_bytes(key)
            time.sleep(0.3)
            assert httpx.get(f"{sidecar.url}/live", verify=authority.client()).status_code == 200
            Path(files["ssl_keyfile"]).write_bytes(fresh)
            until(lambda: served() != before)
            assert kept.get(f"{sidecar.url}/live").status_code == 200
            assert httpx.get(f"{sidecar.url}/live", verify=authority.client()).status_code == 200


def test_a_worker_begins_with_the_certificate_there_is(simulator, authority):
    """Not with the one that its parent has read, which may have expired since."""
    files = authority.issue()
    sidecar = Sidecar(engine_url=simulator.url, **files)  # what a parent loads
    authority.issue()
    with sidecar:
        host, port = sidecar.url.removeprefix("https://").split(":")
        served = ssl.get_server_certificate((host, int(port)))
        assert served.strip() in Path(files["ssl_certfile"]).read_text()


def test_clients_have_to_show_a_certificate_where_that_is_asked(simulator, authority):
    files = authority.issue()
    authority.issue("client")
    with Sidecar(engine_url=simulator.url, admin_port=0, ssl_ca_certs=str(authority.bundle), **files) as sidecar:
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            httpx.get(f"{sidecar.url}/live", verify=authority.client())
        shown = authority.client("client")
        assert httpx.get(f"{sidecar.url}/live", verify=shown).status_code == 200
        assert post(sidecar.url, chat_body(), verify=shown).status_code == 200
        assert statuses(sidecar.admin_url, OPS) == [200] * 3  # a kubelet has none to show


def test_files_that_are_no_good_end_it_before_a_port_is_bound(authority, tmp_path):
    good = authority.issue()
    other = authority.issue("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    locked = tmp_path / "locked.key"
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key(Path(good["ssl_keyfile"]).read_bytes(), None)
    locked.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")))
    for flags, word in (
        ({**good, "ssl_certfile": str(tmp_path / "none")}, f"--ssl-certfile: cannot read {tmp_path / 'none'}"),
        ({**good, "ssl_keyfile": str(tmp_path / "none")}, f"--ssl-keyfile: cannot read {tmp_path / 'none'}"),
        ({**good, "ssl_keyfile": other["ssl_keyfile"]}, "KEY_VALUES_MISMATCH"),
        ({**good, "ssl_keyfile": str(locked)}, "--ssl-certfile: "),
        ({"ssl_certfile": str(nonsense)}, "--ssl-certfile: "),
        ({**good, "ssl_ca_certs": str(nonsense)}, f"--ssl-ca-certs: {nonsense} has no certificates"),
        ({"ssl_keyfile": good["ssl_keyfile"]}, "--ssl-keyfile: given without --ssl-certfile"),
        ({"ssl_ca_certs": str(authority.bundle)}, "--ssl-ca-certs: given without --ssl-certfile"),
        ({"admin_port": 8000, "port": 8000}, "--admin-port: 8000 is the public port"),
    ):
        with pytest.raises(ConfigError) as caught:
            Sidecar(engine_url="http://127.0.0.1:1", **flags)
        assert any(word in fault for fault in caught.value.faults), caught.value.faults
    with Process("serve", str(DEMO_MODEL), "--ssl-certfile", str(nonsense), "--port", "0") as process:
        assert process.wait() == 64 and "--ssl-certfile" in process.output and "listening" not in process.output


def test_the_images_health_check_knows_both(simulator, authority):
    command = re.search(r"CMD (\[.*\])\nENTRYPOINT", (ROOT / "Dockerfile").read_text())
    assert command is not None
    python, *arguments = json.loads(command[1])
    assert python == "python"

    def healthy(**env: object) -> bool:
        told = {f"DERENDER_{name}": str(value) for name, value in env.items()}
        return subprocess.run([sys.executable, *arguments], env={**os.environ, **told}, check=False).returncode == 0

    files = authority.issue()
    with Sidecar(engine_url=simulator.url, admin_port=0, **files) as sidecar:
        port, admin = sidecar.url.rpartition(":")[2], sidecar.admin_url.rpartition(":")[2]
        assert healthy(PORT=port, SSL_CERTFILE=files["ssl_certfile"])
        assert healthy(PORT=port, ADMIN_PORT=admin, SSL_CERTFILE=files["ssl_certfile"])
        assert not healthy(PORT=port) and not healthy(PORT=free_port())
