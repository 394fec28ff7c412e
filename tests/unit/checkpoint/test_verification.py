"""Whether a checkpoint is whole, asked of real files (C28, C29)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as copy

from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.verification import LimitedPace, find_damage
from minflinkd.filemerging.segments import checksum
from minflinkd.rpc.snapshot import StateFile, StateHandle
from minflinkd.runtime.clock import SystemClock
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, A2, A, completed, name, snapshot

PIECES = [b"%d" % n * 1000 for n in range(5)]
ONE, OTHER = name(1, A1), name(1, A2)


def checkpoint() -> CompletedCheckpoint:
    """Return a checkpoint with five segments in one file, with gaps between them, and one in another file."""
    files = [
        StateFile(f"state/{n}", StateHandle(ONE, 8 + 1100 * n, 1000, checksum(piece))) for n, piece in enumerate(PIECES)
    ]
    files.append(StateFile("offsets/0", StateHandle(OTHER, 0, 3, checksum(b"abc"))))
    files.append(StateFile("offsets/empty", StateHandle(OTHER, 3, 0, checksum(b""))))
    return completed(1, copy(snapshot(1, A, A1), files=tuple(files)))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / ONE).write_bytes(b"MFDSEG\0\1" + b"".join(piece + b"x" * 100 for piece in PIECES))
    (tmp_path / OTHER).write_bytes(b"abc")
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "000000000001").touch()
    return tmp_path


def root(job: Path) -> Location:
    return Location(LocalStorage(), "file", str(job))


async def test_a_checkpoint_whose_segments_have_their_checksums_is_whole(job: Path) -> None:
    """What lies between segments does not count (C28)."""
    content = bytearray((job / ONE).read_bytes())
    content[1050] ^= 1
    (job / ONE).write_bytes(content)
    assert await find_damage(root(job), checkpoint()) == ()


async def test_one_flipped_bit_is_damage_and_the_file_is_named(job: Path) -> None:
    """The message says how many segments differ, and where the first one is (C28)."""
    content = bytearray((job / ONE).read_bytes())
    content[1500] ^= 1
    (job / ONE).write_bytes(content)
    assert await find_damage(root(job), checkpoint()) == (
        Damage(ONE, "1 of 5 segments differ from their checksums (offset 1108)"),
    )


async def test_a_file_that_is_too_short_is_damaged(job: Path) -> None:
    """It is not even read (C28)."""
    with (job / ONE).open("ab") as file:
        file.truncate(5000)
    assert await find_damage(root(job), checkpoint()) == (Damage(ONE, "it has 5,000 bytes, but 5,408 were written"),)


async def test_all_damaged_files_are_named(job: Path) -> None:
    """The search does not end with the first one (C28)."""
    (job / ONE).unlink()
    (job / OTHER).write_bytes(b"abd")
    found = await find_damage(root(job), checkpoint())
    assert {damage.file: damage.why for damage in found} == {
        ONE: "it is missing",
        OTHER: "1 of 1 segments differ from their checksums (offset 0)",
    }


async def test_a_directory_without_anything_is_not_damage(job: Path) -> None:
    """Its file system may not be mounted (C28)."""
    with pytest.raises(StorageUnavailable, match="is empty"):
        await find_damage(root(job / "not-mounted"), checkpoint())


@pytest.mark.parametrize("request_number", [1, 2, 3, 4])
async def test_a_storage_that_does_not_answer_says_nothing_about_a_checkpoint(job: Path, request_number: int) -> None:
    """Whichever request fails, its error is raised, and it may be tried again (C28)."""
    faulty = FaultyStorage(LocalStorage(), fail_at=request_number)
    with pytest.raises(StorageUnavailable, match="injected"):
        await find_damage(replace(root(job), storage=faulty), checkpoint())


class OnceWrong(FaultyStorage):
    """The first read has a wrong byte, as from bad memory, or ends early."""

    def __init__(self, *, short: bool) -> None:
        super().__init__(LocalStorage())
        self.short = short
        self.reads = 0

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self.reads += 1
        data = b"".join([piece async for piece in self.inner.open_read(path, offset, length)])
        if self.reads == 1:
            data = data[:-1] if self.short else bytes([data[0] ^ 1]) + data[1:]
        yield data


@pytest.mark.parametrize("short", [False, True])
async def test_what_is_right_at_the_second_look_is_not_damaged(job: Path, *, short: bool) -> None:
    """An error of memory or of the network must not cost a checkpoint (C28)."""
    storage = OnceWrong(short=short)
    assert await find_damage(replace(root(job), storage=storage), checkpoint()) == ()
    assert storage.reads == 3, "two files, and the segment that differed"


async def test_segments_that_were_found_whole_are_not_read_again(job: Path) -> None:
    """Checkpoints share most of their segments (C29)."""
    storage = OnceWrong(short=False)
    storage.reads = 1
    known = set[StateHandle]()
    place = replace(root(job), storage=storage)
    await find_damage(place, checkpoint(), whole=known)
    before = storage.reads
    await find_damage(place, checkpoint(), whole=known)
    assert storage.reads == before


@pytest.mark.looptime
async def test_a_limited_pace_keeps_its_rate(job: Path) -> None:
    """5,408 bytes and 3 more at 1,000 bytes a second take 5.4 s (C29)."""
    clock = SystemClock()
    began = clock.monotonic()
    await find_damage(root(job), checkpoint(), pace=LimitedPace(1000, clock))
    assert 5.3 < clock.monotonic() - began < 5.5
