"""What a launcher offers: TaskManagers as processes somewhere, which it starts, ends and finds again (R7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import ResourceId

FAREWELL = "error: "  # start of the last line of a process that could not go on

OnExit = Callable[[ResourceId, str], None]  # the reason: how it ended, and the end of its log


class StartFailed(MinflinkError):
    """No process was started."""

    code = "taskmanager-start"
    consequence = Consequence.RETRYABLE


class StopFailed(MinflinkError):
    """The process still exists, although it was killed."""

    code = "taskmanager-stop"
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True)
class Launched:
    resource_id: ResourceId
    pid: int = 0  # 0: it is no process of this host
    waiting: str = ""  # why it does not run yet, as far as is known


def with_last_words(how: str, tail: str) -> str:
    """Return how a process ended, and why: in its own last words if it had any, otherwise with the end of its log."""
    if not tail.strip():
        return how
    last = tail.strip().rpartition("\n")[2]
    return f"{how}: {last.removeprefix(FAREWELL)}" if last.startswith(FAREWELL) else f"{how}; its log ends:\n{tail}"


class TaskManagerLauncher(Protocol):
    """The launcher reports the exit of every living TaskManager to its `OnExit`, even if it was told to end."""

    async def start(self, resource_id: ResourceId, size: TaskManagerSize | None = None) -> None:
        """Start a process. Returns when it exists, which is long before it registers. Raises StartFailed.

        `size`: the slots that it has to register with, and what each of them has; None: the default (R40).
        """
        ...

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        """Ask the process to end and kill it after a grace period, or kill it at once.

        Returns when nothing of it is left.

        Idempotent; an unknown one is already gone. Raises StopFailed.
        """
        ...

    async def adopt(self) -> tuple[Launched, ...]:
        """Return all living TaskManagers, including those that an earlier daemon's launcher started.

        Their exits are reported from now on.
        """
        ...

    async def stop_all(self, *, adopted: bool = True) -> None:
        """End every TaskManager that it started, in parallel, and those that it `adopted`, if wanted.

        Raises StopFailed for the first that stays.
        """
        ...

    async def reap_leftovers(self) -> None:
        """Kill what an earlier daemon's launcher started, for a daemon that wants to begin anew."""
        ...

    async def aclose(self) -> None:
        """Leave the TaskManagers running. Idempotent."""
        ...
