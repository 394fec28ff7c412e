"""Job files: what runs, and what a text says that may run next."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from minflinkd.rest.schemas.answer import Answer, Fault


class Cut(Answer, frozen=True, kw_only=True, rename="kebab"):
    """An exchange: an edge at which a task ends and another one begins."""

    upstream: str
    downstream: str
    why: str


class ChainedTask(Answer, frozen=True, kw_only=True, rename="kebab"):
    """Vertices that run as one Spark query."""

    id: str
    name: str
    vertices: tuple[str, ...]
    parallelism: int
    slot_sharing_group: str


class JobGraphInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`document` is a job file. What looks like a secret is `******` in it, and `hidden` is true then."""

    jid: str
    document: dict[str, Any]
    hidden: bool
    tasks: tuple[ChainedTask, ...]
    cuts: tuple[Cut, ...]
    slots: dict[str, int]  # that each slot sharing group wants


class JobText(Answer, frozen=True, kw_only=True):
    text: Annotated[str, Meta(max_length=262_144, description="a job file, 262,144 characters at most")]
    syntax: Annotated[Literal["yaml", "json"], Meta(description="yaml or json")] = msgspec.field(
        name="format", default="yaml"
    )


class Resubmission(Answer, frozen=True, kw_only=True, rename="kebab"):
    """Where the new job starts: as `restore` of a job file."""

    path: Annotated[str, Meta(min_length=1, description="the path of a savepoint or checkpoint")]
    claim: bool = False  # it belongs to the new job from then on
    allow_non_restored_state: bool = False
    allow_changed_state: bool = False


class BackfillRequest(Answer, frozen=True, kw_only=True, rename="kebab"):
    """Which time is computed again, and where to: see [backfill.md](backfill.md)."""

    since: Annotated[str, Meta(description="the first time, such as 2026-03-01 or 2026-03-01T06:00+02:00")] = (
        msgspec.field(name="from")
    )
    until: Annotated[str, Meta(description="the time before which it ends")] = msgspec.field(name="to")
    sinks: Annotated[tuple[str, ...], Meta(description="those that it writes; none: all")] = ()
    params: dict[str, Any] = {}  # set or replaced
    parallelism: Annotated[int, Meta(ge=1)] | None = None  # of all tasks
    name: str = ""  # of the new job; empty: the job's with `-backfill`
    allow_other_times: bool = False  # its rows may take the place of rows of another time


class ReadJob(Answer, frozen=True, kw_only=True, rename="kebab"):
    """What a job file says. `normal` is the same in the form in which jobs are stored; null if it has faults."""

    document: Any
    name: str
    lines: dict[str, int]  # by path; the first is 1
    normal: dict[str, Any] | None
    faults: tuple[Fault, ...]
