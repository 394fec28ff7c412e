"""Physical files of checkpoints that nothing refers to. Sizes in bytes."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class Orphan(Answer, frozen=True, kw_only=True):
    name: str  # relative to the job's directory
    size: int
    modified: int  # milliseconds since 1970


class JobOrphans(Answer, frozen=True, kw_only=True):
    """The orphans in one job's directory."""

    job: str
    files: int
    size: int
    kept: int  # files that are needed, or too young to delete
    skipped: str = ""  # why the directory was not examined
    orphans: tuple[Orphan, ...] = ()  # the first thousand


class Orphans(Answer, frozen=True, kw_only=True, rename="kebab"):
    jobs: tuple[JobOrphans, ...]
    dry_run: bool  # true: nothing was deleted
    grace: float  # seconds; younger files are left alone
    files: int
    size: int
