"""Physical files of checkpoints to which nothing refers. Sizes in bytes."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class Orphan(Answer, frozen=True, kw_only=True):
    name: str  # in the job's directory
    size: int
    modified: int  # milliseconds since 1970


class JobOrphans(Answer, frozen=True, kw_only=True):
    """Of one job's directory."""

    job: str
    files: int
    size: int
    kept: int  # files that are needed, or not old enough
    skipped: str = ""  # why the directory was left alone
    orphans: tuple[Orphan, ...] = ()  # the first thousand


class Orphans(Answer, frozen=True, kw_only=True, rename="kebab"):
    jobs: tuple[JobOrphans, ...]
    dry_run: bool  # nothing was deleted
    grace: float  # seconds; what is younger is left alone
    files: int
    size: int
