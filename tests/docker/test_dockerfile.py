"""The image's recipe; that it builds and runs is `make image-check`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy import __version__
from tests.servers import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("requirements.lock", "requirements-build.lock")


def pinned(name):
    """Version and number of hashes by package."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)", line):
            found[canonicalize_name(match[1])] = (match[2], line.count("--hash=sha256:"))
        else:
            assert not line.strip() or line.lstrip().startswith("#"), line
    return found


def steps():
    """The instructions, continuations joined and comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def test_hadolint():
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([str(hadolint), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", LOCKS)
def test_everything_is_pinned_with_hashes(name):
    packages = pinned(name)
    assert packages and all(hashes for _, hashes in packages.values())
    assert "torch" not in packages


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_names_where_packages_come_from(name):
    text = (ROOT / name).read_text()
    assert "://" not in text and "index-url" not in text and "find-links" not in text


def test_the_lock_fits_the_project():
    """`make lock` writes it anew when dependencies have changed."""
    packages = pinned("requirements.lock")
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + [item for name in ("harmony", "otel") for item in extras.get(name, [])]
    for text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in packages, f"{name} is not in requirements.lock; run `make lock`"
        assert requirement.specifier.contains(packages[name][0]), f"{text} is {packages[name][0]}; run `make lock`"


def test_what_is_copied_is_not_ignored():
    shown = {
        line.removeprefix("!").rstrip("/")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    for instruction, rest in steps():
        if instruction == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists() and source in shown, source


def test_it_runs_as_nobody_and_says_what_it_is():
    users = [rest for instruction, rest in steps() if instruction == "USER"]
    assert users == ["65532:65532"]
    stages = [rest for instruction, rest in steps() if instruction == "FROM"]
    assert stages == ["${BASE_IMAGE} AS build", "${BASE_IMAGE}"]
    arguments = [rest for instruction, rest in steps() if instruction == "ARG"]
    assert arguments[0] == "BASE_IMAGE=python:3.13-slim-trixie" and f"VERSION={__version__}" in arguments
    last = steps()[steps().index(("FROM", "${BASE_IMAGE}")) :]
    assert not any(instruction in ("RUN", "ADD") for instruction, _ in last), "the image is layers copied, nothing run"
    text = " ".join(rest for _, rest in last)
    for label in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{label}=" in text
    assert "/live" in dict(last)["HEALTHCHECK"]
    assert dict(last)["ENTRYPOINT"] == '["derender-proxy"]'
