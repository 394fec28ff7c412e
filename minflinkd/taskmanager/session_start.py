"""Whether a session child that is not ready yet is to be given up. Pure.

On a busy machine a session may take many times as long to start as on an idle one. To kill it then only has the same
work begin anew, and makes the machine busier still. So a child is left alone as long as it makes progress: as long as
its processes use processor time, or read. It is given up when it has done nothing for the timeout, and after ten
timeouts in any case, since it may run in a circle.

Where processes queue for the processors, a child may do nothing for longer: the timeout is multiplied by the number of
processes that share one processor. It doubles with each start in a row that was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LONGEST = 10.0  # timeouts that a start may take, whatever it does
BUSIEST = 4.0  # processes that share a processor; more of them make no difference
DOUBLED = 3  # times at most
CPU = 0.5  # seconds
READ = 1 << 20  # bytes


@dataclass(frozen=True)
class Work:
    """What the processes of a child have done so far: seconds of processor time, bytes that were read."""

    cpu: float = 0.0
    read: int = 0


@dataclass(frozen=True)
class Starting:
    """`timeout`: seconds. Times are of a monotonic clock. `got_on`: when it last made progress; `steps`: how often."""

    timeout: float
    began: float
    got_on: float
    done: Work = Work()
    steps: int = 0


def begun(timeout: float, given_up: int, now: float) -> Starting:
    """`given_up`: starts in a row before this one that were given up for their time."""
    return Starting(timeout * 2 ** min(given_up, DOUBLED), began=now, got_on=now)


def observed(start: Starting, work: Work, now: float) -> Starting:
    """A process that has ended takes its work with it, which is no step either way."""
    less = work.cpu < start.done.cpu or work.read < start.done.read
    if less:
        return replace(start, done=work)
    if work.cpu - start.done.cpu < CPU and work.read - start.done.read < READ:
        return start
    return replace(start, done=work, got_on=now, steps=start.steps + 1)


def unwatched(start: Starting, seconds: float) -> Starting:
    """For so many seconds nothing was looked at, which is no fault of the child."""
    return replace(start, began=start.began + seconds, got_on=start.got_on + seconds)


def patience(start: Starting, load: float) -> float:
    """Seconds without a step after which it is given up. `load`: processes that want to run, by processor."""
    return start.timeout * min(max(1.0, load), BUSIEST)


def verdict(start: Starting, load: float, now: float) -> str | None:
    """Why the child is to be given up, or None while it may go on."""
    if now - start.got_on >= (limit := patience(start, load)):
        return f"the session was not ready within {now - start.began:.0f} s, and did nothing for {limit:.0f} s"
    if now - start.began >= LONGEST * start.timeout:
        return f"the session was not ready within {now - start.began:.0f} s, though it was busy all the time"
    return None


def slow(start: Starting, load: float, now: float) -> str:
    """A warning about a start that takes longer than its timeout and goes on; "" before that."""
    if now - start.began < start.timeout:
        return ""
    busy = f"; {load:.1f} processes want each processor" if load > 1.0 else ""
    return (
        f"the session has been starting for {now - start.began:.0f} s, longer than {start.timeout:.0f} s "
        f"(resourcemanager.taskmanager-registration.timeout); it makes progress, and is waited for{busy}"
    )
