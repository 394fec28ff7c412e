"""What holds for all tests: cheap ones run first, random walks repeat exactly unless told to explore, real servers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers.fixtures"]

# `make test` must give the same result twice. `make test-all` draws new examples in every run. The machine may be busy,
# so no example has a deadline.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", UNTIMED, derandomize=True)
settings.register_profile("exploring", UNTIMED, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

CHEAP_FIRST = ("unit", "sim", "component", "servers", "storage", "spark", "e2e", "shapes", "faults")
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by cost, so that a run that fails says so soon.

    A folder that is not named runs before the first tests that need Spark.
    """

    def cost(item: pytest.Item) -> int:
        folder = item.path.relative_to(FOLDER).parts[0] if item.path.is_relative_to(FOLDER) else ""
        return CHEAP_FIRST.index(folder if folder in CHEAP_FIRST else "storage")

    items.sort(key=cost)


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Programs that a test starts react to Ctrl-C, even if the tests run in the background, where shells ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
