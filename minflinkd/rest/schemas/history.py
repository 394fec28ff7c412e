"""What the daemon remembers of its metrics (E16). Flink has nothing of the kind."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer

Values = dict[str, tuple[float | None, ...]]  # by series; null: nothing is known


class ClusterHistory(Answer, frozen=True, kw_only=True):
    """`start` is the time of the first value of each series, and `resolution` the milliseconds between two values."""

    resolution: int
    start: int
    now: int
    cluster: Values
    jobs: dict[str, Values]


class JobMark(Answer, frozen=True, kw_only=True):
    """Something that happened to a job."""

    at: int
    kind: str
    text: str


class JobHistory(Answer, frozen=True, kw_only=True):
    resolution: int
    start: int
    now: int
    job: Values
    tasks: dict[str, Values]
    marks: tuple[JobMark, ...]
