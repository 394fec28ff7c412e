"""Flink's uploaded jars. Here these are archives with a job file in them, or a job file."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from minflinkd.rest.schemas.answer import Answer

Parallelism = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class JarEntry(Answer, frozen=True, kw_only=True):
    """A job file in it."""

    name: str
    description: str


class Jar(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    uploaded: int
    entry: tuple[JarEntry, ...]


class Jars(Answer, frozen=True, kw_only=True):
    address: str
    files: tuple[Jar, ...]


class JarUploaded(Answer, frozen=True, kw_only=True):
    """The last part of `filename` is the id."""

    filename: str
    status: str = "success"


class JarRequest(Answer, frozen=True, kw_only=True, rename="camel"):
    """What is in the query, too, counts there only if it is not here."""

    entry_class: str | None = None  # the job file, if there are several
    program_args_list: tuple[str, ...] | None = None  # the job's params: key=value, or --key value
    parallelism: Parallelism | str | None = None
    job_id: str | None = None
    allow_non_restored_state: bool | None = None
    savepoint_path: str | None = None
    claim_mode: str | None = None  # CLAIM or NO_CLAIM


class JarStarted(Answer, frozen=True, kw_only=True):
    jobid: str
    application_id: str = msgspec.field(name="applicationId")


class JarApplicationStarted(Answer, frozen=True, kw_only=True):
    applicationid: str
