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
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling, Scheduling

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

# Virtual time goes on when nothing can run at the present one. looptime looks 42 times whether that is so. Once is
# enough: it waits for threads by other means.
NOOP_CYCLES = 1

# What these fixtures start is started once: one process runs all tests of the folder that use it. Folder, fixture.
IN_ONE_PROCESS = (("faults", "shared"), ("e2e", "cluster"), ("spark", "connected"))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # where the results of all processes arrive
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_unconfigure() -> None:
    shutil.rmtree(SOCKETS, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)  # of xdist, which a run may do without
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return ByGroupOrFile(config, log) if config.getvalue("dist") == "loadgroup" else None


class ByGroupOrFile(LoadGroupScheduling):
    """Gives a process all tests of a group; of tests without a group, those of a file."""

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests, and sort them: first what needs no Spark, so that a run that fails says so soon.

    Of the others the longest come first. Three processes share them, and none is left alone with a long one at the
    end. A folder that is not named runs before the first tests that need Spark.
    """
    grouped = {item.path: group for item in items if (group := _group(item))}
    for item in items:
        if item.path in grouped:
            item.add_marker(pytest.mark.xdist_group(grouped[item.path]))
        if item.get_closest_marker("looptime"):
            item.add_marker(pytest.mark.looptime(noop_cycles=NOOP_CYCLES), append=False)

    def place(item: pytest.Item) -> int:
        folder = "shapes" if item.path in grouped else _folder(item)
        return ORDER.index(folder if folder in ORDER else "storage")

    items.sort(key=place)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(FOLDER).parts[0] if item.path.is_relative_to(FOLDER) else ""


def _group(item: pytest.Item) -> str | None:
    """Return the group of a test with expensive fixtures. Its whole file goes with it."""
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else []
    return next(
        (f"{folder}-{one}" for folder, one in IN_ONE_PROCESS if folder == _folder(item) and one in fixtures), None
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End what a group has started with the last test of the group.

    Otherwise its daemons and JVMs would stay until the last test of the process, and of a few groups they fill a
    machine.
    """
    yield
    group = _named_group(item)
    if group is not None and nextitem is not None and _named_group(nextitem) != group:
        _, _, fixture = group.partition("-")
        for definition in item.session._fixturemanager.getfixturedefs(fixture, item) or ():
            definition.finish(item._request)  # type: ignore[attr-defined]


def _named_group(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    return None if marker is None else str(marker.args[0])


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
