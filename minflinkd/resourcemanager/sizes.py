"""How large TaskManagers are that are started here, and which demands none of them could meet (R40). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from minflinkd.runtime.resource_profile import ResourceProfile, written

if TYPE_CHECKING:
    from minflinkd.resourcemanager.options import ResourceManagerOptions

LEAST_HEAP: Final = 512 * 2**20  # bytes; a session has at least as much


@dataclass(frozen=True)
class TaskManagerSize:
    """The slots of a TaskManager, which all have the same profile."""

    slots: int
    profile: ResourceProfile

    @property
    def total(self) -> ResourceProfile:
        return self.profile * self.slots

    def __str__(self) -> str:
        return f"{self.slots} slot{'s' if self.slots > 1 else ''} with {self.profile} each"


def size_for(
    options: ResourceManagerOptions, profile: ResourceProfile, slots: int, least: int
) -> TaskManagerSize | None:
    """Return the size of a TaskManager that would be started for so many slots, or for `least` at the least.

    The default size, if its slots have what is wanted. Otherwise no more slots than are wanted, each with what is
    wanted and with no less than it would have by default. None: such a TaskManager would be too large.
    """
    if least > options.slots_per_tm:
        return None
    if options.profile.covers(profile):
        return TaskManagerSize(options.slots_per_tm, options.profile)
    for number in range(min(slots, options.slots_per_tm), max(least, 1) - 1, -1):
        size = TaskManagerSize(number, _with_heap(options.profile | profile, number))
        if options.largest is None or options.largest.covers(size.total):
            return size
    return None


def _with_heap(profile: ResourceProfile, slots: int) -> ResourceProfile:
    """Return the profile with enough memory for a session. What is not known stays so."""
    return profile | ResourceProfile(memory=-(-LEAST_HEAP // slots)) if profile.memory else profile


def falls_short(started: TaskManagerSize | None, there: TaskManagerSize) -> str:
    """Return how a TaskManager has less than it was started with; empty if it has not.

    It counts as a failed start. Otherwise another one would be started in its place, again and again.
    """
    if started is None or (there.slots >= started.slots and there.profile.covers(started.profile)):
        return ""
    return f"it was started with {started}, and has {there}"


def too_much(options: ResourceManagerOptions, profile: ResourceProfile, least: int) -> str:
    """Return which of the demands are too large for the largest TaskManager; empty if none is."""
    if options.largest is None or size_for(options, profile, least, least) is not None:
        return ""
    wanted = _with_heap(options.profile | profile, least) * least
    return _short(wanted, options.largest, options.largest.missing(wanted), "TaskManagers here have")


def lacking(there: list[ResourceProfile], profile: ResourceProfile) -> str:
    """Return what is wanted of a slot and no slot of these TaskManagers has; empty if each has it somewhere."""
    best = ResourceProfile()
    for one in there:
        best |= one
    return _short(profile, best, best.missing(profile), "slots here have")


def _short(wanted: ResourceProfile, there: ResourceProfile, names: tuple[str, ...], have: str) -> str:
    amounts, most = wanted.amounts(), there.amounts()
    short = []
    for name in names:
        at_most = f"at most {written(name, most[name])}" if name in most else "none"
        short.append(f"{name}: {written(name, amounts[name])} needed; {have} {at_most}")
    return ", ".join(short)
