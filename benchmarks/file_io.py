"""Reading local files from the event loop: one call in a thread for each step, as the daemon does, beside aiofiles.

`python -m benchmarks.file_io` reads, from the kernel's cache, what the daemon reads most: a piece of a log (opened,
positioned, read, closed, as in `rest/log_copies.py`), a small file as a whole (as in `blob/source.py`), and a blob in
pieces (as in `blob/source.py` and `blob/delivery.py`). Both ways take turns. docs/decisions/0013 has the result.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiofiles

MIB = 1 << 20
LOG_PIECE = 256 * 1024  # `rest.log_copies.PIECE`
CHUNK = MIB  # `blob.transfer.CHUNK`
TURNS = 25

Way = Callable[[Path], Awaitable[int]]


async def log_pieces_by_threads(file: Path) -> int:
    size = file.stat().st_size
    return sum([len(await asyncio.to_thread(_part, file, at, LOG_PIECE)) for at in range(0, size, LOG_PIECE)])


def _part(file: Path, offset: int, length: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)


async def log_pieces_by_aiofiles(file: Path) -> int:
    size, total = file.stat().st_size, 0
    for at in range(0, size, LOG_PIECE):
        async with aiofiles.open(file, "rb") as opened:
            await opened.seek(at)
            total += len(await opened.read(LOG_PIECE))
    return total


async def log_by_aiofiles_kept_open(file: Path) -> int:
    total = 0
    async with aiofiles.open(file, "rb") as opened:
        while piece := await opened.read(LOG_PIECE):
            total += len(piece)
    return total


async def whole_by_threads(file: Path) -> int:
    return len(await asyncio.to_thread(file.read_bytes))


async def whole_by_aiofiles(file: Path) -> int:
    async with aiofiles.open(file, "rb") as opened:
        return len(await opened.read())


async def chunks_by_threads(file: Path) -> int:
    total = 0
    opened = await asyncio.to_thread(file.open, "rb", 0)
    try:
        while piece := await asyncio.to_thread(opened.read, CHUNK):
            total += len(piece)
    finally:
        await asyncio.to_thread(opened.close)
    return total


async def chunks_by_aiofiles(file: Path) -> int:
    total = 0
    async with aiofiles.open(file, "rb", buffering=0) as opened:
        while piece := await opened.read(CHUNK):
            total += len(piece)
    return total


async def hashed_by_threads(file: Path) -> int:
    hasher, total = hashlib.sha256(), 0

    def step() -> int:
        piece = opened.read(CHUNK)
        hasher.update(piece)
        return len(piece)

    opened = await asyncio.to_thread(file.open, "rb", 0)
    try:
        while size := await asyncio.to_thread(step):
            total += size
    finally:
        await asyncio.to_thread(opened.close)
    return total


async def hashed_by_aiofiles(file: Path) -> int:
    hasher, total = hashlib.sha256(), 0
    async with aiofiles.open(file, "rb", buffering=0) as opened:
        while piece := await opened.read(CHUNK):
            await asyncio.to_thread(hasher.update, piece)  # on the event loop it would block for a millisecond
            total += len(piece)
    return total


CASES: tuple[tuple[str, int, int, tuple[tuple[str, Way], ...]], ...] = (
    # what, bytes of the file, times that it is read in a turn, ways
    (
        "log, 4 MiB in pieces of 256 KiB",
        4 * MIB,
        10,
        (
            ("threads", log_pieces_by_threads),
            ("aiofiles", log_pieces_by_aiofiles),
            ("aiofiles, kept open", log_by_aiofiles_kept_open),
        ),
    ),
    ("small file, 16 KiB", 16 * 1024, 200, (("threads", whole_by_threads), ("aiofiles", whole_by_aiofiles))),
    (
        "blob, 16 MiB in pieces of 1 MiB",
        16 * MIB,
        4,
        (("threads", chunks_by_threads), ("aiofiles", chunks_by_aiofiles)),
    ),
    ("the same, hashed", 16 * MIB, 2, (("threads", hashed_by_threads), ("aiofiles", hashed_by_aiofiles))),
)


async def measure(directory: Path) -> None:
    print(f"{'what':34}{'way':22}{'wall, median (min - max)':>32}{'CPU, median':>14}")
    for what, size, times, ways in CASES:
        file = directory / "file"
        file.write_bytes(bytes(size))
        walls: dict[str, list[float]] = {name: [] for name, _ in ways}
        cpus: dict[str, list[float]] = {name: [] for name, _ in ways}
        for turn in range(TURNS + 1):
            for name, way in ways:
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(times):
                    assert await way(file) == size
                if turn:  # the first one starts threads
                    walls[name].append((time.perf_counter() - wall) / times * 1000)
                    cpus[name].append((time.process_time() - cpu) / times * 1000)
        for name, _ in ways:
            seen = walls[name]
            told = f"{statistics.median(seen):.2f} ms ({min(seen):.2f} - {max(seen):.2f})"
            print(f"{what:34}{name:22}{told:>32}{statistics.median(cpus[name]):>11.2f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(measure(Path(name)))
