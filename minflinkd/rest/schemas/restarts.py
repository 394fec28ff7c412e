"""Hot restarts: what changes, and their outcomes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from minflinkd.rest.schemas.answer import Answer


class VertexDiff(Answer, frozen=True, kw_only=True, rename="kebab"):
    vertex: str
    change: str  # added, removed, changed
    fields: tuple[str, ...] = ()


class SettingDiff(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`before` and `after` are JSON; empty if not set."""

    path: str
    before: str = ""
    after: str = ""


class StateDiff(Answer, frozen=True, kw_only=True, rename="kebab"):
    vertex: str
    kind: str
    fate: str  # kept, lost, incompatible
    reason: str = ""


class VersionDiff(Answer, frozen=True, kw_only=True, rename="kebab"):
    """How a new version differs from the running one."""

    vertices: tuple[VertexDiff, ...] = ()
    settings: tuple[SettingDiff, ...] = ()
    state: tuple[StateDiff, ...] = ()


class RestartAccepted(Answer, frozen=True, kw_only=True, rename="kebab"):
    jobid: str
    number: int  # of the hot restart; 0 for a dry run
    dry_run: bool = False
    changes: VersionDiff = VersionDiff()


class RestartError(Answer, frozen=True, kw_only=True):
    code: str
    message: str
    hint: str = ""


class HotRestartInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`state`: handing-over, starting, on-trial, turning-back; completed, rolled-back, failed, replaced, abandoned."""

    number: int
    state: str
    over: bool
    requested: int
    checkpoint_id: int | None
    phases: dict[str, float]  # seconds since the request
    error: RestartError | None = None
    reason: str = ""  # why the autoscaler has asked for it; empty: somebody else has


class ParallelismBounds(Answer, frozen=True, kw_only=True, rename="camel"):
    """Flink's field; -1 means the current value."""

    lower_bound: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    upper_bound: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1


class VertexRequirements(Answer, frozen=True, kw_only=True):
    parallelism: ParallelismBounds = msgspec.field(default_factory=ParallelismBounds)
