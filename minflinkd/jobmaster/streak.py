"""Whether a job only has failed, or fails again and again (a poison record, a leak, a machine that is ill). Pure.

Between two failures of a job that fails again and again its tasks are RUNNING, and often for long enough to complete
checkpoints. So failures count as a row until the job has *proved healthy*: since all its tasks came up it has completed
a checkpoint, and has run twice as long as it ran before its last failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.rpc.jobs import FailureRecord

LEAST = 10.0  # seconds without a failure, however soon the last one came
MOST = 600.0  # seconds without a failure that are enough for a job that failed after hours: it has failed, no more


@dataclass(frozen=True)
class Failure:
    """`record` without its date, which is `at`, in seconds of the injected clock."""

    at: float
    record: FailureRecord


@dataclass(frozen=True)
class Streak:
    """Failures in a row, each before the job had proved healthy. Those that one restart serves count as one."""

    failures: int = 0
    since: float = 0.0  # when the first of them came, in seconds of the injected clock
    ran: float = 0.0  # seconds that the job had been RUNNING when the last one came; 0: it was coming up
    last: Failure | None = None  # the one that began the last restart

    @property
    def probation(self) -> float:
        """Seconds that the job has to run to prove healthy."""
        return min(max(LEAST, 2 * self.ran), MOST)

    def with_failure(self, failure: Failure, running_since: float | None) -> Streak:
        ran = 0.0 if running_since is None else max(0.0, failure.at - running_since)
        since = self.since if self.failures else failure.at
        return Streak(failures=self.failures + 1, since=since, ran=ran, last=failure)

    def is_over(self, running_since: float, now: float, *, checkpointed: bool) -> bool:
        """`checkpointed`: a checkpoint was completed since then, or the job takes none."""
        return checkpointed and now - running_since >= self.probation


NO_FAILURES = Streak()
