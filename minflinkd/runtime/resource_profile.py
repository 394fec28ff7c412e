"""What a slot has, or must have: processor cores, memory, disk, and named extras such as GPUs (R40). Pure.

Demands and what there is are the same type. In a demand, 0 means that nothing is asked for. In what a slot has, 0 also
stands for what is not known. So a slot without a profile serves demands without any, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from minflinkd.runtime.units import InvalidUnit, MemorySize

SIZES: Final = ("memory", "off-heap", "disk")
KNOWN: Final = ("cpu", *SIZES)
MOST: Final = 1e6  # cores, or of an extra
_EXTRA = re.compile(r"[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_ALMOST = 1e-6  # shares such as a third of a core are not exact
_UNITS = (("TiB", 2**40), ("TB", 10**12), ("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10))


class ResourceProfile(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Of one slot, or of a whole TaskManager or machine. Sizes are in bytes."""

    extras: tuple[tuple[str, float], ...] = ()  # name -> amount, sorted by name
    memory: int = 0  # heap of the session
    off_heap: int = 0  # what the session takes beside its heap, such as RocksDB's memory
    cpu: float = 0.0  # cores
    disk: int = 0  # for state

    def __bool__(self) -> bool:
        return self != NO_PROFILE

    def amounts(self) -> dict[str, float]:
        """Return what is not 0, by the names of a job file."""
        named = {"cpu": self.cpu, "memory": self.memory, "off-heap": self.off_heap, "disk": self.disk}
        return {name: amount for name, amount in [*named.items(), *self.extras] if amount}

    def covers(self, demand: ResourceProfile) -> bool:
        """Whether a slot with this profile serves the demand."""
        # Most often one of the first two is so, and this is asked for every kind of TaskManager.
        return demand in (NO_PROFILE, self) or not self.missing(demand)

    def missing(self, demand: ResourceProfile) -> tuple[str, ...]:
        """Return the names of which the demand wants more."""
        there = self.amounts()
        return tuple(n for n, wanted in demand.amounts().items() if wanted > there.get(n, 0) + _ALMOST)

    def excess(self, demand: ResourceProfile) -> tuple[float, ...]:
        """Return how much more this is than the demand, what is rarest first. Best fit: the least excess."""
        return tuple(mine - wanted for mine, wanted in zip(self.rank, demand.rank, strict=True))

    @property
    def rank(self) -> tuple[float, ...]:
        """A total order: a profile that covers another one does not rank below it."""
        return sum(amount for _, amount in self.extras), self.memory, self.off_heap, self.cpu, self.disk

    def __mul__(self, number: int) -> ResourceProfile:
        """Return what so many slots with this profile have together."""
        return ResourceProfile(
            extras=tuple((name, amount * number) for name, amount in self.extras),
            memory=self.memory * number,
            off_heap=self.off_heap * number,
            cpu=self.cpu * number,
            disk=self.disk * number,
        )

    def share(self, slots: int) -> ResourceProfile:
        """Return what each of so many slots has of this."""
        return ResourceProfile(
            extras=tuple((name, amount / slots) for name, amount in self.extras),
            memory=self.memory // slots,
            off_heap=self.off_heap // slots,
            cpu=self.cpu / slots,
            disk=self.disk // slots,
        )

    def __or__(self, other: ResourceProfile) -> ResourceProfile:
        """Return the least profile that covers both."""
        extras = dict(self.extras)
        for name, amount in other.extras:
            extras[name] = max(amount, extras.get(name, 0.0))
        return ResourceProfile(
            extras=tuple(sorted(extras.items())),
            memory=max(self.memory, other.memory),
            off_heap=max(self.off_heap, other.off_heap),
            cpu=max(self.cpu, other.cpu),
            disk=max(self.disk, other.disk),
        )

    def __str__(self) -> str:
        """Return it in words: `2 GB memory, 1 gpu`."""
        return ", ".join(f"{written(n, amount)} {n}" for n, amount in self.amounts().items()) or "nothing in particular"


NO_PROFILE: Final = ResourceProfile()


def written(name: str, amount: float) -> str:
    """Return an amount as a job file has it: `2 GB`, `0.5`."""
    if name not in SIZES:
        return f"{amount:.4g}" if amount < MOST else f"{amount:g}"
    size = round(amount)
    exact = next((f"{size // unit} {sign}" for sign, unit in _UNITS if size and size % unit == 0), None)
    return exact or next((f"{size / unit:.1f} {sign}" for sign, unit in _UNITS[2::2] if size >= unit), f"{size} B")


def parse_amount(name: str, value: object) -> float:
    """Return an amount of this resource: bytes of a size, otherwise a number. Raises ValueError with what is wrong."""
    if name in SIZES:
        try:
            return MemorySize.parse(value)
        except InvalidUnit:
            raise ValueError(f"{str(value)[:80]!r} is not a size such as 512 MB or 2 GiB") from None
    if name != "cpu" and not _EXTRA.fullmatch(name):
        known = ", ".join(KNOWN)
        raise ValueError(f"{name[:80]!r} is neither {known} nor a name: lower case letters, digits and . _ / -")
    text = str(value).strip()
    if isinstance(value, bool) or not _NUMBER.fullmatch(text) or float(text) > MOST:
        raise ValueError(f"{str(value)[:80]!r} is not a number such as 1 or 0.5")
    return float(text)


def parse_profile(amounts: Mapping[str, object]) -> ResourceProfile:
    """Return the profile that a job file or an option states, such as {memory: 2 GB, gpu: 1}. Raises ValueError."""
    parsed = {name: parse_amount(name, value) for name, value in amounts.items()}
    return ResourceProfile(
        extras=tuple(sorted((name, amount) for name, amount in parsed.items() if name not in KNOWN and amount)),
        memory=int(parsed.get("memory", 0)),
        off_heap=int(parsed.get("off-heap", 0)),
        cpu=parsed.get("cpu", 0.0),
        disk=int(parsed.get("disk", 0)),
    )
