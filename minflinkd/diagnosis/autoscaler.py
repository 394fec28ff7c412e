"""A job whose autoscaler cannot give it what it needs (R62)."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import line
from minflinkd.rpc.autoscaler import LIMITED


def limited(facts: JobFacts) -> Iterator[Finding]:
    """More rows come in than the job's slots process, and it gets no more slots."""
    told = facts.details.autoscaler
    if not facts.running or told is None or told.verdict != LIMITED:
        return
    heaviest = max(told.groups, key=lambda group: group.utilization, default=None)
    behind = heaviest is not None and heaviest.utilization > 1
    yield Finding(
        code="autoscaler-limited",
        severity=Severity.WARNING if behind else Severity.INFO,
        title="The autoscaler cannot give the job more slots",
        sentence=line(told.why),
        figure="" if heaviest is None else f"{heaviest.utilization:.0%} of {heaviest.slots} slots",
        do="raise max of the autoscaler, with max-parallelism of the job; give the cluster more slots; or look for "
        "what more slots do not help against: a few keys with most rows, few partitions, a slow sink",
        task="" if heaviest is None else heaviest.task,
        weight=1.0 if heaviest is None else heaviest.utilization,
    )
