"""Whether to give up a session child that is not ready yet. Pure.

On a busy machine a session may take many times as long to start as on an idle one. Killing it only repeats the same
work, and makes the machine even busier. So a child may go on as long as it makes progress: as long as its processes use
processor time, or read. It is given up when it has done nothing for the timeout. It is given up after ten timeouts in
any case, since it may be in an endless loop.

If processes queue for the processors, a child may do nothing for longer: the timeout is multiplied by the number of
processes per processor. It doubles with each consecutive start that was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LONGEST = 10.0  # timeouts that a start may take, whatever it does
BUSIEST = 4.0  # processes per processor; more make no difference
DOUBLED = 3  # times at most
CPU = 0.5  # seconds of processor time that count as a step
READ = 1 << 20  # bytes read that count as a step


@dataclass(frozen=True)
class Work:
    """What the processes of a child have done so far: seconds of processor time, bytes read."""

    cpu: float = 0.0
    read: int = 0


@dataclass(frozen=True)
class Starting:
    """A start. `timeout` is in seconds, the other times are on a monotonic clock.

    `got_on` is when it last made progress; `steps` is how often it has.
    """

    timeout: float
    began: float
    got_on: float
    done: Work = Work()
    steps: int = 0


def begun(timeout: float, given_up: int, now: float) -> Starting:
    """Begin a start. `given_up` is the number of consecutive starts before it that were given up for their time."""
    return Starting(timeout * 2 ** min(given_up, DOUBLED), began=now, got_on=now)


def observed(start: Starting, work: Work, now: float) -> Starting:
    """Compare the work with that of the last check. If it is less, a process has ended: that counts neither way."""
    less = work.cpu < start.done.cpu or work.read < start.done.read
    if less:
        return replace(start, done=work)
    if work.cpu - start.done.cpu < CPU and work.read - start.done.read < READ:
        return start
    return replace(start, done=work, got_on=now, steps=start.steps + 1)


def unwatched(start: Starting, seconds: float) -> Starting:
    """Note that nothing was checked for so many seconds. This does not count against the child."""
    return replace(start, began=start.began + seconds, got_on=start.got_on + seconds)


def patience(start: Starting, load: float) -> float:
    """Return the seconds without a step after which it is given up. `load` is runnable processes per processor."""
    return start.timeout * min(max(1.0, load), BUSIEST)


def verdict(start: Starting, load: float, now: float) -> str | None:
    """Return why the child is given up, or None while it may go on."""
    if now - start.got_on >= (limit := patience(start, load)):
        return f"the session was not ready within {now - start.began:.0f} s, and did nothing for {limit:.0f} s"
    if now - start.began >= LONGEST * start.timeout:
        return f"the session was not ready within {now - start.began:.0f} s, though it was busy all the time"
    return None


def slow(start: Starting, load: float, now: float) -> str:
    """Return a warning if the start takes longer than its timeout, otherwise an empty string."""
    if now - start.began < start.timeout:
        return ""
    busy = f"; {load:.1f} processes want each processor" if load > 1.0 else ""
    return (
        f"the session has been starting for {now - start.began:.0f} s, longer than {start.timeout:.0f} s "
        f"(resourcemanager.taskmanager-registration.timeout); it makes progress, and is waited for{busy}"
    )
