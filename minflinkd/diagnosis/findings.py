"""What a rule finds, and which findings come first."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How much it hurts."""

    CRITICAL = "critical"  # nothing is processed, or work is lost
    WARNING = "warning"  # it goes on, but slower than it could, or not for long
    INFO = "info"  # good to know; nobody needs to get up for it


_ORDER = {severity: number for number, severity in enumerate(Severity)}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`figure`: the measured value that led to it. `since_ms`: since when, if that is known.

    `where`: the command that shows more. `weight`: between findings of one severity, the heavier comes first.
    """

    code: str
    severity: Severity
    title: str
    sentence: str
    figure: str
    do: str
    since_ms: int | None = None
    job: str = ""
    task: str = ""
    task_manager: str = ""
    where: str = ""
    weight: float = 0.0


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return what hurts most first. The order of equals is that of their codes, so that a page does not flicker."""
    return tuple(sorted(findings, key=lambda one: (_ORDER[one.severity], -one.weight, one.code, one.job, one.task)))
