"""What a driver offers: TaskManagers as processes somewhere, started, ended and found again (R7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import ResourceId

OnExit = Callable[[ResourceId, str], None]  # the reason: how it ended, and the end of its log


class StartFailed(MinflinkError):
    """No process came to be."""

    code = "taskmanager-start"
    consequence = Consequence.RETRYABLE


class StopFailed(MinflinkError):
    """The process is still there, though it was killed."""

    code = "taskmanager-stop"
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True)
class Launched:
    resource_id: ResourceId
    pid: int


class ResourceManagerDriver(Protocol):
    """The exit of every TaskManager that lives is told to the driver's `OnExit`, also of one that was told to end."""

    async def start(self, resource_id: ResourceId) -> None:
        """Returns when the process is there, which is long before it registers. Raises StartFailed."""
        ...

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        """Returns when nothing of it is left: ask it to end, and kill it after a grace; or kill it at once.

        Idempotent; an unknown one is gone already. Raises StopFailed.
        """
        ...

    async def adopt(self) -> tuple[Launched, ...]:
        """Those that live, also those that a driver of an earlier daemon started; their exits are told from now on."""
        ...

    async def stop_all(self, *, adopted: bool = True) -> None:
        """End every TaskManager that it has started, side by side, and those that it adopted, where that is wanted.

        Raises StopFailed for the first that stays.
        """
        ...

    async def reap_leftovers(self) -> None:
        """Kill what a driver of an earlier daemon started, for a daemon that wants to begin anew."""
        ...

    async def aclose(self) -> None:
        """Leaves the TaskManagers running. Idempotent."""
        ...
