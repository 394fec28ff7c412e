"""What holds for all tests: what is cheap comes first; a random walk repeats exactly, unless it is asked to look for
new ground; real servers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers.fixtures"]

# `make test` must say the same thing twice; `make test-all` goes where no run has been. A machine may be busy.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", UNTIMED, derandomize=True)
settings.register_profile("exploring", UNTIMED, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

CHEAP_FIRST = ("unit", "sim", "servers", "storage", "spark", "e2e", "shapes", "faults")
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run that fails says so soon. A folder that is not named comes where Spark begins."""

    def cost(item: pytest.Item) -> int:
        folder = item.path.relative_to(FOLDER).parts[0] if item.path.is_relative_to(FOLDER) else ""
        return CHEAP_FIRST.index(folder if folder in CHEAP_FIRST else "storage")

    items.sort(key=cost)


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Programs that a test starts heed it, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
