"""Checks what a backend can really do at a place: tests each declared capability there, with a few small objects."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.interface import ObjectExists, ObjectNotFound, Storage, StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.parallel import for_each

_CONTENDERS = 8
_RENAMES = 7


class Finding(msgspec.Struct, frozen=True, rename="kebab"):
    """`name` is a capability, or `objects`: that objects can be written, read, listed and deleted at all."""

    name: str
    declared: bool
    holds: bool
    problem: str = ""  # why it does not hold; empty if it is not declared
    transient: bool = False  # the storage did not answer, so that nothing is known


class _Refuted(Exception):
    """The backend behaved differently than declared."""


async def probe(place: Location) -> AsyncIterator[Finding]:
    """Yield the findings. Works in its own directory below `place`, which it deletes at the end.

    Readers of `place` skip that directory, as they skip every name that begins with _.
    """
    storage = place.storage
    directory = place.child(f"_minflinkd-probe-{secrets.token_hex(8)}")
    checks: dict[str, Callable[[Location], Awaitable[None]]] = {
        "exclusive-create": _exclusive_create,
        "atomic-rename": _rename,
        "server-side-copy": _copy,
        "consistent-list": _consistent_list,
    }
    declared = capabilities(storage)
    try:
        basic = await _find("objects", True, _objects, directory.child("objects"))
        yield basic
        if not basic.holds:
            return
        for name, check in checks.items():
            if declared[name]:
                yield await _find(name, True, check, directory.child(name))
            else:
                yield Finding(name, declared=False, holds=False)
    finally:
        await directory.delete_tree()


def capabilities(storage: Storage | type[Storage]) -> dict[str, bool]:
    """Return the capabilities by the names shown to users."""
    return {name.replace("_", "-"): value for name, value in msgspec.structs.asdict(storage.capabilities).items()}


async def _find(name: str, declared: bool, check: Callable[[Location], Awaitable[None]], place: Location) -> Finding:
    try:
        await check(place)
    except _Refuted as refuted:
        return Finding(name, declared, holds=False, problem=str(refuted))
    except MinflinkError as error:
        away = isinstance(error, StorageUnavailable)
        return Finding(name, declared, holds=False, problem=str(error), transient=away)
    return Finding(name, declared, holds=True)


async def _objects(place: Location) -> None:
    data = secrets.token_bytes(1000)
    one = place.child("an object")
    if await one.exists():
        raise _Refuted("an object that was never written exists")
    await one.write_bytes(data)
    _expect(await one.read_bytes() == data, "an object was read other than it was written")
    _expect(
        b"".join([piece async for piece in one.open_read(10, 20)]) == data[10:30],
        "a range was read other than it was written",
    )
    _expect([entry.path async for entry in place.list()] == [one.path], "the listing is not of what was written")
    async with await one.create() as writer:
        await writer.append(b"never committed")
        await writer.abort()
    _expect(await one.read_bytes() == data, "an aborted write has changed an object")
    await one.delete()
    _expect(not await one.exists(), "an object is there after its deletion")


async def _exclusive_create(place: Location) -> None:
    one = place.child("contended")

    async def contend(data: bytes) -> bytes:
        try:
            await one.create_exclusive(data)
        except ObjectExists:
            return b""
        return data

    answers = await for_each([secrets.token_bytes(16) for _ in range(_CONTENDERS)], contend, limit=_CONTENDERS)
    winners = [answer for answer in answers if answer]
    _expect(len(winners) == 1, f"of {_CONTENDERS} who created one object, {len(winners)} won")
    _expect(await one.read_bytes() == winners[0], "the object is not the winner's")


async def _rename(place: Location) -> None:
    """Rename several times and watch both names meanwhile."""
    source, target = place.child("source"), place.child("target")
    contents = [b"%d" % number for number in range(_RENAMES + 1)]
    await target.write_bytes(contents[0])
    renaming = True

    async def look() -> None:
        while renaming:
            try:
                found = await target.read_bytes()
                _expect(found in contents, "half of an object was read during a rename")
                _expect(await _content(source) != found, "source and target were both there during a rename")
            except ObjectNotFound:
                raise _Refuted("the target was not there during a rename") from None
            except StorageUnavailable:  # it was replaced while it was read
                continue

    looking = asyncio.create_task(look())
    try:
        for content in contents[1:]:
            await source.write_bytes(content)
            await source.rename(target)
            _expect(not await source.exists(), "the source is there after a rename")
            _expect(await target.read_bytes() == content, "the target was not replaced by a rename")
    finally:
        renaming = False
        await asyncio.wait({looking})
        refuted = looking.exception()
    if refuted:
        raise refuted
    try:
        await source.rename(target)
    except ObjectNotFound:
        return
    raise _Refuted("a missing source was renamed")


async def _content(place: Location) -> bytes | None:
    try:
        return await place.read_bytes()
    except ObjectNotFound:
        return None


async def _copy(place: Location) -> None:
    """Copy an object. Whether the server moves the bytes cannot be seen from here."""
    source, target = place.child("source"), place.child("target")
    await source.write_bytes(b"copied")
    await place.storage.copy(source.path, target.path)
    _expect(await target.read_bytes() == b"copied", "a copy differs from its source")


async def _consistent_list(place: Location) -> None:
    expected: set[str] = set()
    for number in range(10):
        one = place.child(str(number))
        await one.write_bytes(b"")
        expected.add(one.path)
        _expect({entry.path async for entry in place.list()} == expected, "a listing lags behind a write")
    for path in sorted(expected):
        await place.storage.delete([path])
        expected.discard(path)
        _expect({entry.path async for entry in place.list()} == expected, "a listing lags behind a deletion")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Refuted(otherwise)
