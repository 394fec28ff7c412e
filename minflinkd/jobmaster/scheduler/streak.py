"""Whether a job failed once, or fails again and again (a poison record, a leak, a bad machine). Pure.

A job that fails again and again is RUNNING between its failures, often long enough to complete checkpoints. So failures
count as consecutive until the job has *proved healthy*: since all its tasks came up, it has completed a checkpoint and
has run twice as long as it ran before its last failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.rpc.jobs import FailureRecord

LEAST = 10.0  # seconds to run without a failure, however soon the last failure came
MOST = 600.0  # seconds without a failure that always suffice, even if the job had run for hours before it failed


@dataclass(frozen=True)
class Failure:
    """`record` without its date. The date is `at`, in seconds of the injected clock."""

    at: float
    record: FailureRecord


@dataclass(frozen=True)
class Streak:
    """Failures in a row, each before the job had proved healthy. Failures handled by one restart count as one."""

    failures: int = 0
    since: float = 0.0  # when the first one came, in seconds of the injected clock
    ran: float = 0.0  # seconds that the job had been RUNNING before the last one; 0: it was still coming up
    last: Failure | None = None  # the one that caused the last restart

    @property
    def probation(self) -> float:
        """Return how many seconds the job has to run to prove healthy."""
        return min(max(LEAST, 2 * self.ran), MOST)

    def with_failure(self, failure: Failure, running_since: float | None) -> Streak:
        ran = 0.0 if running_since is None else max(0.0, failure.at - running_since)
        since = self.since if self.failures else failure.at
        return Streak(failures=self.failures + 1, since=since, ran=ran, last=failure)

    def is_over(self, running_since: float, now: float, *, checkpointed: bool) -> bool:
        """Whether the job has proved healthy. `checkpointed`: it completed a checkpoint since then, or takes none."""
        return checkpointed and now - running_since >= self.probation


NO_FAILURES = Streak()
