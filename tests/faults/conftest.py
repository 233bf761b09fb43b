"""Servers that the tests of this directory share over the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import Fleet, RawEngine


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    started = Fleet()
    yield started
    started.close()


@pytest.fixture(scope="session")
def raw_engine() -> Iterator[RawEngine]:
    with RawEngine() as running:
        yield running
