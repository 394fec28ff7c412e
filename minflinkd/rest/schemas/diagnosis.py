"""What limits or ails a job or the cluster."""

from __future__ import annotations

from minflinkd.diagnosis.findings import Severity
from minflinkd.rest.schemas.answer import Answer


class Finding(Answer, frozen=True, kw_only=True):
    """One sentence with its figure and what to do. `job`, `task`, `taskmanager`: what it is about; null: nothing."""

    code: str
    severity: Severity
    title: str
    sentence: str
    figure: str  # the measured value
    since: int  # -1: not known
    do: str
    job: str | None = None
    job_name: str | None = None
    task: str | None = None
    taskmanager: str | None = None
    where: str = ""  # a command that shows more


class Diagnosis(Answer, frozen=True, kw_only=True):
    """`findings`: what hurts most first. `summary`: one sentence on the whole."""

    now: int
    summary: str
    findings: tuple[Finding, ...]
    jobs_left_out: int = 0  # running jobs that were not looked at, as there are too many
