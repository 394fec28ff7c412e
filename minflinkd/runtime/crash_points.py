"""Named points between the steps of a checkpoint, and of a hot restart, at which a process can be told to kill itself,

for fault tests.

`MINFLINKD_CRASH_AT` is read once, when the process starts, and inherited by the processes that it starts:

    upload:3      every process dies when it reaches the point for the third time
    /some/dir     whoever first reaches a point with a file of its name in this directory takes the file away and dies

The second form strikes exactly once, and while the cluster runs. Without the variable `reach` does nothing.
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
    """In the order in which one checkpoint passes them, and then those of a hot restart, in the daemon: who is there,

    and what has happened already.
    """

    SYNC = "sync"  # session child: the snapshot's links are made; nobody knows
    FILE = "file"  # TaskManager: one of several physical files is finished; the next is begun
    REWRITE = "rewrite"  # TaskManager: a part of what lies in worn files is appended anew
    APPEND = "append"  # TaskManager: new state and that of worn files is appended; no file is finished
    UPLOAD = "upload"  # TaskManager: the physical files are written, and what the sinks staged is durable
    ACKNOWLEDGE = "acknowledge"  # TaskManager: the JobMaster has taken the acknowledgement
    METADATA = "metadata"  # daemon: all tasks have acknowledged; the metadata is not begun
    COMPLETE = "complete"  # daemon: the metadata is written; nothing that follows from it is done
    NOTIFY = "notify"  # daemon: a task is about to be told
    COMMIT = "commit"  # TaskManager: it was told; its sinks have published nothing
    PUBLISH = "publish"  # TaskManager, or daemon at a restore: a transaction's files are moved; its manifest is missing
    COMMITTED = "committed"  # TaskManager: all is published; the JobMaster does not know
    NOTIFIED = "notified"  # daemon: a task has confirmed; it is not noted
    SUBSUME = "subsume"  # daemon: an older checkpoint's metadata is deleted; its files are there
    DELETED = "deleted"  # daemon: files that no checkpoint refers to are deleted; it is not noted
    RESTART_ACCEPTED = "restart-accepted"  # the new version is stored; the old one runs
    RESTART_STOPPED = "restart-stopped"  # the version that counts has made way; another does not count yet
    RESTART_SWITCHED = "restart-switched"  # another version counts; nothing of it runs
    RESTART_RUNNING = "restart-running"  # its tasks run; it has completed no checkpoint
    RESTART_PROVEN = "restart-proven"  # its first checkpoint is complete; the old version is not forgotten


OF_CHECKPOINTS = tuple(point for point in CrashPoint if not point.name.startswith("RESTART_"))
OF_HOT_RESTARTS = tuple(point for point in CrashPoint if point.name.startswith("RESTART_"))


class UnusableCrashPoint(MinflinkError):
    """`MINFLINKD_CRASH_AT` names no point: a fault test that would test nothing."""

    code = "unusable-crash-point"


def reach(point: CrashPoint) -> None:
    """The process ends here by SIGKILL where that was asked for; else nothing happens."""
    if _armed is not None:
        _armed(point)


def announce() -> None:
    """For each process at its start: nobody shall have the variable set and not know. Raises UnusableCrashPoint."""
    if text := os.environ.get(VARIABLE):
        parse(text)
        log.warning("this process may kill itself: it is under a fault test", variable=VARIABLE, value=text)


def parse(text: str) -> tuple[CrashPoint, int] | Path:
    """Raises UnusableCrashPoint."""
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
    """For tests within one process: `hook` is called at each point, and ends what it will by raising."""
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
        return None  # `announce` says so
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
