"""Whether objects can be kept at a place: checked there, once for each process, unless the backend vouches for it."""

from __future__ import annotations

import asyncio

import structlog

from minflinkd.runtime.errors import Consequence
from minflinkd.storage.interface import NotSupported, StorageError, StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.probe import Finding, capabilities, probe

NEEDED = ("objects", "exclusive-create", "atomic-rename", "consistent-list")
LIMIT = 60.0  # seconds for all checks at a place

log = structlog.get_logger(__name__)


class StorageUnfit(StorageError):
    """A check failed. The message names it."""

    code = "storage-unfit"
    consequence = Consequence.REFUSED


class Proofs:
    """The places of one process that have passed. A failure is not remembered, because its cause may be repaired."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._passed: set[str] = set()
        self._turns: dict[str, asyncio.Lock] = {}

    async def require(self, place: Location) -> None:
        """Raises NotSupported, StorageUnfit, StorageUnavailable."""
        refuse_read_only(place)
        if place.storage.proven or place.uri in self._passed:
            return
        async with self._turns.setdefault(place.uri, asyncio.Lock()):
            if place.uri not in self._passed:
                await self._check(place)
                self._passed.add(place.uri)

    async def _check(self, place: Location) -> None:
        able, findings = capabilities(place.storage), list[Finding]()
        for name in NEEDED[1:]:
            if not able[name]:
                raise _unfit(place, name, "minflinkd knows no way to do it in one step in this file system")
        try:
            async with asyncio.timeout(self._limit):
                findings.extend([finding async for finding in probe(place)])
        except TimeoutError:
            why = f"{place.uri}: the checks took longer than {self._limit:g} s"
            raise StorageUnavailable(why, settled=True) from None
        for finding in findings:
            if finding.name in NEEDED and not finding.holds:
                raise _unfit(place, finding.name, finding.problem, transient=finding.transient)
        log.info("a place was checked and may be written", place=place.uri, checks=", ".join(NEEDED))


def refuse_read_only(place: Location) -> None:
    """Raises NotSupported."""
    if place.storage.read_only:
        raise NotSupported(
            f"{place.uri}: storages of {place.scheme}:// are only read",
            hint="a storage that `minflinkd plugins` lists; docs/storage.md says which others can be made writable",
        )


def _unfit(place: Location, check: str, problem: str, *, transient: bool = False) -> StorageError:
    what = f"{place.uri} cannot be written: the check {check} failed: {problem}"
    if transient:
        return StorageUnavailable(what, settled=True)
    return StorageUnfit(what, hint="use another storage; docs/storage.md says what each check means")
