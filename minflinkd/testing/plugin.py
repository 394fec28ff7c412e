"""The pytest plugin of minflinkd: fixtures for tests of jobs. It imports nothing heavy until one of them is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from minflinkd.testing.session import LocalSession
    from minflinkd.testing.starting import StartJob

ARCHIVES = "minflinkd_class_archives"
CONF = "minflinkd_spark_conf"
TIMEOUT = "minflinkd_timeout"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(ARCHIVES, "directory of class archives, with which the Spark session starts faster", default="")
    parser.addini(CONF, "Spark settings of the test session, `name = value` one a line", type="linelist", default=[])
    parser.addini(TIMEOUT, "seconds that a start or a step of a job under test may take", default="180")


@pytest.fixture(scope="session")
def minflinkd_session(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSession]:
    """The Spark session that all jobs under test share. It starts with the first test that needs it."""
    from minflinkd.testing.session import LocalSession

    archives = str(pytestconfig.getini(ARCHIVES))
    lines = [line.partition("=") for line in pytestconfig.getini(CONF)]
    session = LocalSession(
        tmp_path_factory.mktemp("minflinkd"),
        class_archives=str(pytestconfig.rootpath / archives) if archives else "",
        conf={name.strip(): value.strip() for name, _, value in lines},
        timeout=float(pytestconfig.getini(TIMEOUT)),
    )
    session.start()
    yield session
    session.close()


@pytest.fixture
def minflinkd_job(minflinkd_session: LocalSession, request: pytest.FixtureRequest) -> Iterator[StartJob]:
    """Start jobs under test (`minflinkd.testing.StartJob`). Paths of job files are relative to the test's own file."""
    from minflinkd.testing.starting import StartJob

    jobs = StartJob(minflinkd_session, request.path.parent)
    yield jobs
    jobs.close()
