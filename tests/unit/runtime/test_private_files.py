"""A process is private, and what jobs write is not (E40)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from minflinkd.runtime.private_files import VARIABLE, as_started, make_private


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _umask_now() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def test_the_umask_of_whoever_started_the_daemon_comes_back_for_sessions() -> None:
    """A daemon may be started by another that is private already: the first one's umask counts."""
    environ: dict[str, str] = {}
    os.umask(0o027)
    for _ in range(2):
        make_private(environ)
        assert _umask_now() == 0o077
    as_started(environ)
    assert _umask_now() == 0o027


@pytest.mark.parametrize("given", ["", "rwx", "8", "-1"])
def test_a_variable_that_says_nothing_leaves_the_umask_alone(given: str) -> None:
    as_started({VARIABLE: given})
    assert _umask_now() == 0o022
