"""Named points between the steps of a checkpoint, a submission and so on, at which fault tests kill a process.

`MINFLINKD_CRASH_AT` is read once, when the process starts. Its child processes inherit it:

    upload:3      every process dies when it reaches the point for the third time
    /some/dir     the first process to reach a point with a file of its name in this directory removes it and dies

The second form kills exactly one process per file, while the cluster runs. Without the variable `reach` does nothing.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import structlog

from minflinkd.runtime.errors import MinflinkError

log = structlog.get_logger(__name__)

VARIABLE = "MINFLINKD_CRASH_AT"


class CrashPoint(StrEnum):
    """The points in the order in which a checkpoint reaches them, then those of other things, mostly in the daemon.

    Each comment names the process and what has happened so far.
    """

    SYNC = "sync"  # session child: the snapshot's links are made; nobody has been told
    FILE = "file"  # TaskManager: one of several physical files is finished; the next one has begun
    REWRITE = "rewrite"  # TaskManager: some of the segments in worn files are appended again
    APPEND = "append"  # TaskManager: new state and the segments of worn files are appended; no file is finished
    UPLOAD = "upload"  # TaskManager: the physical files are written, and the sinks' staged files are durable
    ACKNOWLEDGE = "acknowledge"  # TaskManager: the JobMaster has accepted the acknowledgement
    METADATA = "metadata"  # daemon: all tasks have acknowledged; writing the metadata has not begun
    COMPLETE = "complete"  # daemon: the metadata is written; nothing else has been done
    NOTIFY = "notify"  # daemon: a task is about to be notified
    COMMIT = "commit"  # TaskManager: it was notified; its sinks have published nothing
    PUBLISH = "publish"  # TaskManager, or daemon at a restore: a transaction's files are moved; its manifest is missing
    COMMITTED = "committed"  # TaskManager: everything is published; the JobMaster does not know yet
    NOTIFIED = "notified"  # daemon: a task has confirmed; this is not recorded yet
    SUBSUME = "subsume"  # daemon: an older checkpoint's metadata is deleted; its files still exist
    DELETED = "deleted"  # daemon: files that no checkpoint refers to are deleted; this is not recorded yet
    SUBMISSION_CHECKED = "submission-checked"  # the job is checked; only its artifacts are stored
    SUBMISSION_STORED = "submission-stored"  # the job is stored; it has no JobMaster yet
    SUBMISSION_STARTED = "submission-started"  # its JobMaster is up; the client has no answer
    SAVEPOINT_CUT = "savepoint-cut"  # its checkpoint is complete and published; nothing is copied
    SAVEPOINT_COPIED = "savepoint-copied"  # everything is copied; its metadata is missing
    SAVEPOINT_WRITTEN = "savepoint-written"  # it is complete; nobody knows this, and a job that is to stop still runs
    RESTART_ACCEPTED = "restart-accepted"  # the new version is stored; the old one runs
    RESTART_STOPPED = "restart-stopped"  # the current version has stopped; no other is current yet
    RESTART_SWITCHED = "restart-switched"  # another version is current; none of its tasks run
    RESTART_RUNNING = "restart-running"  # the new version's tasks run; it has completed no checkpoint
    RESTART_PROVEN = "restart-proven"  # its first checkpoint is complete; the old version is still stored
    SINK_SENT = "sink-sent"  # session child: the rows of a sink's transaction are sent; it is not committed
    SINK_WRITTEN = "sink-written"  # session child: a sink's transaction is committed; nobody knows this
    END_CANCELLED = "end-cancelled"  # it is stored that the job is cancelled; its tasks run
    END_REACHED = "end-reached"  # the job has ended, in whatever state; its result is not stored
    END_WRITTEN = "end-written"  # both the result and the job are stored
    END_STORED = "end-stored"  # the job is deleted from the store; its checkpoints and artifacts still exist
    END_CLEANED = "end-cleaned"  # everything is deleted, but the stored result is still marked `dirty`


_OTHERS = ("SUBMISSION_", "SAVEPOINT_", "RESTART_", "SINK_", "END_")
OF_CHECKPOINTS = tuple(point for point in CrashPoint if not point.name.startswith(_OTHERS))
OF_SUBMISSIONS, OF_SAVEPOINTS, OF_HOT_RESTARTS, OF_SINKS, OF_ENDS = (
    tuple(point for point in CrashPoint if point.name.startswith(group)) for group in _OTHERS
)


class UnusableCrashPoint(MinflinkError):
    """`MINFLINKD_CRASH_AT` names no point, so the fault test would test nothing."""

    code = "unusable-crash-point"


def reach(point: CrashPoint) -> None:
    """Kill this process by SIGKILL if `MINFLINKD_CRASH_AT` says so; otherwise do nothing."""
    if _armed is not None:
        _armed(point)


def announce() -> None:
    """Warn if the variable is set, so that nobody sets it unknowingly. Every process calls this when it starts.

    Raises UnusableCrashPoint.
    """
    if text := os.environ.get(VARIABLE):
        parse(text)
        log.warning("this process may kill itself: it is under a fault test", variable=VARIABLE, value=text)


def parse(text: str) -> tuple[CrashPoint, int] | Path:
    """Return a point and its count, or the directory. Raises UnusableCrashPoint."""
    if text.startswith("/"):
        return Path(text)
    name, _, count = text.partition(":")
    if name not in list(CrashPoint) or not (count or "1").isdecimal() or int(count or "1") < 1:
        raise UnusableCrashPoint(
            f"{VARIABLE}={text[:80]} is no crash point",
            hint=f"an absolute directory, or <point>:<count> with a point of {', '.join(CrashPoint)}",
        )
    return CrashPoint(name), int(count or "1")


@contextmanager
def intercepted(hook: Callable[[CrashPoint], None]) -> Iterator[None]:
    """For tests within one process: call `hook` at each point. It may raise to end what is running."""
    global _armed
    before, _armed = _armed, hook
    try:
        yield
    finally:
        _armed = before


def _of_environment(environ: Mapping[str, str]) -> Callable[[CrashPoint], None] | None:
    if not (text := environ.get(VARIABLE)):
        return None
    try:
        wanted = parse(text)
    except UnusableCrashPoint:
        return None  # `announce` reports it
    return _if_claimed(wanted) if isinstance(wanted, Path) else _at_count(*wanted)


def _if_claimed(directory: Path) -> Callable[[CrashPoint], None]:
    def armed(point: CrashPoint) -> None:
        try:
            (directory / point.value).unlink()
        except OSError:
            return
        _die(point)

    return armed


def _at_count(wanted: CrashPoint, count: int) -> Callable[[CrashPoint], None]:
    reached = Counter[CrashPoint]()

    def armed(point: CrashPoint) -> None:
        reached[point] += 1
        if point is wanted and reached[point] == count:
            _die(point)

    return armed


def _die(point: CrashPoint) -> None:
    log.warning("killed at a crash point", point=point.value)
    os.kill(os.getpid(), signal.SIGKILL)


_armed = _of_environment(os.environ)
