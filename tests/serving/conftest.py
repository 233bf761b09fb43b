"""An engine of its own process, and sidecars as processes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager

import pytest

from tests.servers import DEMO_MODEL, DEMO_NAME, Process, free_port


@contextmanager
def engine_process(*flags):
    port = free_port()
    flags = (str(DEMO_MODEL), "--port", str(port), "--served-model-name", DEMO_NAME, "--max-num-seqs", "1024", *flags)
    with Process("simulate", *flags) as process:
        process.url = f"http://127.0.0.1:{port}"
        process.wait_for_url(f"{process.url}/health")
        yield process


@contextmanager
def sidecar_process(engine_url, *flags, tmp, port=0, window=1.0, timeout=20.0, env=None):
    """``tmp``: its temporary directory, where its local sockets are."""
    with Process(
        "serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", str(port), "--engine-url", engine_url,
        "--log-format", "json", "--shutdown-window", str(window), "--shutdown-timeout", str(timeout), *flags,
        env={"TMPDIR": str(tmp), **(env or {})},
    ) as process:  # fmt: skip
        line = json.loads(process.wait_for_line('"listening"'))
        process.url, process.port = f"http://127.0.0.1:{line['port']}", line["port"]
        process.home = f"{tmp}/derender-proxy-{os.getuid()}/{process.port}.{process.process.pid}"
        process.wait_for_url(f"{process.url}/ready")
        yield process


@pytest.fixture(scope="module")
def engine():
    with engine_process() as process:
        yield process


@pytest.fixture
def tmp():
    """Short enough for the path of a socket."""

    path = tempfile.mkdtemp(prefix="d")
    yield path
    shutil.rmtree(path, ignore_errors=True)
