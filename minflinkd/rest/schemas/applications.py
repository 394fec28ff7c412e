"""Flink's applications. Here each job is an application of its own, with the job's id."""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer
from minflinkd.rest.schemas.jobs import JobSummary


class ApplicationSummary(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: str
    name: str
    start_time: int
    end_time: int
    duration: int
    status: str
    jobs: dict[str, int]  # JobStatus -> number of jobs


class ApplicationsOverview(Answer, frozen=True, kw_only=True):
    applications: tuple[ApplicationSummary, ...]


class ApplicationInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    timestamps: dict[str, int]  # when it entered each state; 0: never
    jobs: tuple[JobSummary, ...]


class ApplicationException(Answer, frozen=True, kw_only=True, rename="camel"):
    exception_name: str
    stacktrace: str
    timestamp: int
    job_id: str


class ApplicationExceptionHistory(Answer, frozen=True, kw_only=True):
    entries: tuple[ApplicationException, ...]


class ApplicationExceptions(Answer, frozen=True, kw_only=True):
    history: ApplicationExceptionHistory = msgspec.field(name="exceptionHistory")
