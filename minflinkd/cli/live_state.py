"""What `minflinkd watch` knows: the events of a daemon, folded into one state (E16). Pure.

Each event of `/events` and `/jobs/ID/events` replaces a part of the state. `reset` forgets all of it, and the complete
state follows. Of the rates, the last ones are kept for the small chart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from minflinkd.rest.schemas import (
    Checkpoints,
    ClusterOverview,
    JobExceptions,
    JobInfo,
    JobSummary,
    TaskManager,
    TaskManagers,
)

KEPT: Final = 40  # samples of a rate
MOST_JOBS: Final = 10_000  # whose rates are kept

Series = Mapping[str, float | None]


@dataclass(frozen=True)
class Rates:
    """The last rows per second of a job or a task, oldest first; None where nothing is known."""

    values: tuple[float | None, ...] = ()

    def and_then(self, value: float | None) -> Rates:
        return Rates((*self.values, value)[-KEPT:])

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


@dataclass(frozen=True)
class ClusterState:
    overview: ClusterOverview | None = None
    jobs: Mapping[str, JobSummary] = field(default_factory=dict)
    task_managers: tuple[TaskManager, ...] = ()
    latest: Mapping[str, Series] = field(default_factory=dict)  # the last sample of each job
    rates: Mapping[str, Rates] = field(default_factory=dict)

    def after(self, name: str, data: bytes) -> ClusterState:
        """Raises msgspec.MsgspecError. Events that are not known are skipped: the daemon may be of a later version."""
        match name:
            case "reset":
                return ClusterState()
            case "overview":
                return replace(self, overview=msgspec.json.decode(data, type=ClusterOverview))
            case "job":
                job = msgspec.json.decode(data, type=JobSummary)
                return replace(self, jobs={**self.jobs, job.jid: job})
            case "job-gone":
                gone = msgspec.json.decode(data)["jid"]
                return replace(
                    self,
                    jobs=_without(self.jobs, gone),
                    latest=_without(self.latest, gone),
                    rates=_without(self.rates, gone),
                )
            case "taskmanagers":
                return replace(self, task_managers=msgspec.json.decode(data, type=TaskManagers).taskmanagers)
            case "sample":
                samples: dict[str, Series] = msgspec.json.decode(data).get("jobs", {})
                return replace(self, latest={**self.latest, **samples}, rates=_grown(self.rates, samples))
            case _:
                return self


@dataclass(frozen=True)
class JobState:
    job: JobInfo | None = None
    checkpoints: Checkpoints | None = None
    exceptions: JobExceptions | None = None
    latest: Mapping[str, Series] = field(default_factory=dict)  # the last sample of each task
    rates: Mapping[str, Rates] = field(default_factory=dict)

    def after(self, name: str, data: bytes) -> JobState:
        """As above."""
        match name:
            case "reset":
                return JobState()
            case "job":
                return replace(self, job=msgspec.json.decode(data, type=JobInfo))
            case "checkpoints":
                return replace(self, checkpoints=msgspec.json.decode(data, type=Checkpoints))
            case "exceptions":
                return replace(self, exceptions=msgspec.json.decode(data, type=JobExceptions))
            case "sample":
                samples: dict[str, Series] = msgspec.json.decode(data).get("tasks", {})
                return replace(self, latest={**self.latest, **samples}, rates=_grown(self.rates, samples))
            case _:
                return self


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {each: value for each, value in values.items() if each != key}


def _grown(rates: Mapping[str, Rates], samples: Mapping[str, Series]) -> dict[str, Rates]:
    grown = dict(rates)
    for key, sample in samples.items():
        if key in grown or len(grown) < MOST_JOBS:
            grown[key] = grown.get(key, Rates()).and_then(sample.get("rows_in_per_second"))
    return grown
