"""What the conformance tests write, and helpers to read it back."""

from __future__ import annotations

import random

from minflinkd.storage.interface import (
    Entry,
    Storage,
)

MIB = 1024 * 1024
CLOCKS = 60_000  # milliseconds by which the clocks of server and client may differ
ODD_NAMES = (
    "with blank",
    "übung-日本",
    "a%20b",
    "col=2026-01-01 00:00",
    "#?&+",
    "x" * 200,
    "-dash",
    "quote'\"",
    "dot.",
    "a:b;c,d",
    "[x]{y}*^~`|$!",
    "back\\slash",
    "\N{LATIN SMALL LETTER E}\N{COMBINING ACUTE ACCENT}",  # not the same name as the composed letter
    "\N{PILE OF POO}",
    "CON",
)
UNLIKE_UTF_16 = ("\N{FULLWIDTH TILDE}", "\N{GRINNING FACE}")  # sorted by code points; UTF-16 sorts them differently


async def read(storage: Storage, path: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in storage.open_read(path, offset, length)])


async def write(storage: Storage, path: str, data: bytes) -> Entry:
    async with await storage.create(path) as writer:
        await writer.append(data)
        return await writer.commit()


def content(size: int) -> bytes:
    """Return bytes that differ from place to place, so that a misplaced piece is noticed."""
    return random.Random(size).randbytes(size)  # noqa: S311 - test data


def part_size(storage: Storage) -> int:
    """Return the most bytes that a writer keeps back: of twice as many, some are on their way or stored."""
    return int(getattr(storage, "part_size", MIB))


async def names(storage: Storage, prefix: str) -> list[str]:
    return [entry.path.removeprefix(prefix).lstrip("/") async for entry in storage.list(prefix)]
