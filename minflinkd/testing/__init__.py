"""Tests of jobs without a cluster: pytest fixtures that run a job on a few rows (docs/testing.md).

def test_late_flights_are_dropped(minflinkd_job):
    job = minflinkd_job("flights.yaml", inputs={"flights": [{"carrier": "AA", "time": "2026-01-01T10:05"}]})
    job.advance_watermark("2026-01-01T12:00")
    job.assert_rows("out", [{"carrier": "AA", "hour": "2026-01-01T10:00", "flights": 1}])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minflinkd.jobgraph.faults import InvalidJobGraph
    from minflinkd.runtime.errors import RemoteError
    from minflinkd.testing.graphs import NoSuchVertex
    from minflinkd.testing.job import JobUnderTest
    from minflinkd.testing.rows import WrongRow
    from minflinkd.testing.session import LocalSession, NoSession
    from minflinkd.testing.starting import StartJob
    from minflinkd.testing.world import NotRunning

__all__ = [
    "InvalidJobGraph",
    "JobUnderTest",
    "LocalSession",
    "NoSession",
    "NoSuchVertex",
    "NotRunning",
    "RemoteError",
    "StartJob",
    "WrongRow",
]

_HOMES = {
    "InvalidJobGraph": "minflinkd.jobgraph.faults",
    "JobUnderTest": "minflinkd.testing.job",
    "LocalSession": "minflinkd.testing.session",
    "NoSession": "minflinkd.testing.session",
    "NoSuchVertex": "minflinkd.testing.graphs",
    "NotRunning": "minflinkd.testing.world",
    "RemoteError": "minflinkd.runtime.errors",
    "StartJob": "minflinkd.testing.starting",
    "WrongRow": "minflinkd.testing.rows",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: pytest loads the plugin in every run, also without jobs."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
