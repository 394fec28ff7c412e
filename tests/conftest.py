"""What holds for all tests: their order, random walks repeat exactly unless told to explore, real servers."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
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

# Daemons put their sockets there. A daemon that a test kills leaves its own behind, and it goes with this directory.
SOCKETS = tempfile.mkdtemp(prefix="minflinkd-test-")  # short: a socket's path has 107 bytes
os.environ["XDG_RUNTIME_DIR"] = SOCKETS

ORDER = ("unit", "sim", "component", "servers", "storage", "shapes", "faults", "e2e", "spark")
FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # where the results of all processes arrive
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_unconfigure() -> None:
    shutil.rmtree(SOCKETS, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests: first what needs no Spark, so that a run that fails says so soon.

    Of the others the longest come first. Three processes share them, and none is left alone with a long one at the
    end. A folder that is not named runs before the first tests that need Spark.
    """

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(FOLDER).parts[0] if item.path.is_relative_to(FOLDER) else ""
        return ORDER.index(folder if folder in ORDER else "storage")

    items.sort(key=place)


class FailuresAtOnce:
    """Names a failed test, and its error, when it fails: a run of two hours would tell it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = report.longreprtext if crash is None else crash.message
            terminal.ensure_newline()
            terminal.write_line(f"FAILED in {report.when}: {report.nodeid}: {message[:2000]}")


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Programs that a test starts react to Ctrl-C, even if the tests run in the background, where shells ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
