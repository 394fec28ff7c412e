import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minflinkd.filemerging import PhysicalFileWriter, WriterClosed, read_segments
from minflinkd.filemerging.segments import CHUNK, HEADER
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import InvalidPath, ObjectNotFound, StorageCorrupt, StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage


@pytest.fixture
def root(tmp_path: Path) -> Location:
    return Storages().at(str(tmp_path)).child("job")


def writer(root: Location, max_file_size: int = 1 << 28) -> PhysicalFileWriter:
    return PhysicalFileWriter(root, lambda number: f"{number}.seg", max_file_size=max_file_size)


async def stored(root: Location) -> list[tuple[str, int]]:
    return [(root.relative(entry.path), entry.size) async for entry in root.list()]


def content(directory: Path) -> dict[str, bytes]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


async def test_many_state_files_become_one_physical_file(root: Location, tmp_path: Path) -> None:
    """A checkpoint is one object, however many state files it holds (F1, F3)."""
    state = {f"state/0/{number}.sst": os.urandom(number * 37) for number in range(50)}
    state["offsets/0"] = b""
    async with writer(root) as merged:
        handles: dict[str, StateHandle] = {}
        for path, data in state.items():
            local = tmp_path / "local" / path
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(data)
            handles[path] = await merged.append(local)
        assert await stored(root) == [], "nothing is visible before the commit"
        assert await merged.commit() == ("0.seg",)
    total = len(HEADER) + sum(map(len, state.values()))
    assert await stored(root) == [("0.seg", total)]
    assert await read_segments(root, handles, tmp_path / "restored") == total - len(HEADER)
    assert content(tmp_path / "restored") == state


async def test_a_full_physical_file_is_followed_by_another(root: Location, tmp_path: Path) -> None:
    """The limit is max-file-size. A segment is never cut in two (F1)."""
    async with writer(root, max_file_size=len(HEADER) + 10) as merged:
        handles = {
            name: await merged.append(name.encode() * size) for name, size in zip("abcd", (6, 4, 1, 99), strict=True)
        }
        assert await merged.commit() == ("0.seg", "1.seg", "2.seg")
    assert [handles[name].file for name in "abcd"] == ["0.seg", "0.seg", "1.seg", "2.seg"]
    await read_segments(root, handles, tmp_path / "out")
    assert content(tmp_path / "out") == {"a": b"a" * 6, "b": b"b" * 4, "c": b"c", "d": b"d" * 99}


async def test_a_large_state_file_is_streamed(root: Location, tmp_path: Path) -> None:
    data = os.urandom(3 * CHUNK + 5)
    (tmp_path / "large").write_bytes(data)
    async with writer(root) as merged:
        handles = {"from/file": await merged.append(tmp_path / "large"), "from/bytes": await merged.append(data)}
        await merged.commit()
    assert handles["from/file"].checksum == handles["from/bytes"].checksum
    await read_segments(root, handles, tmp_path / "out")
    assert content(tmp_path / "out") == {"from/file": data, "from/bytes": data}


async def test_nothing_is_written_for_nothing(root: Location) -> None:
    async with writer(root) as merged:
        assert await merged.commit() == ()
    assert await stored(root) == []


async def test_a_file_begins_with_magic_and_version(root: Location) -> None:
    """So a stray file can be recognised."""
    async with writer(root) as merged:
        handle = await merged.append(b"x")
        await merged.commit()
    assert handle.offset == 8
    assert (await root.child("0.seg").read_bytes())[:8] == b"MFDSEG\x00\x01"


async def test_what_was_handed_over_stays(root: Location) -> None:
    """An abort deletes only the rest. What follows is written to another file (F4)."""
    async with writer(root) as merged:
        first = await merged.append(b"first")
        await merged.hand_over({first.file})
        assert await stored(root) == [("0.seg", len(HEADER) + 5)]
        second = await merged.append(b"second")
        assert merged.sizes == {"0.seg": len(HEADER) + 5, "1.seg": len(HEADER) + 6}
        assert second == StateHandle("1.seg", len(HEADER), 6, second.checksum)
    assert await stored(root) == [("0.seg", len(HEADER) + 5)]
    with pytest.raises(WriterClosed):
        await merged.append(b"third")


@pytest.mark.parametrize("commit", [False, True])
async def test_leaving_without_commit_leaves_nothing(root: Location, tmp_path: Path, commit: bool) -> None:
    """Until the acknowledgement its files belong to the TaskManager, including finished ones (F4)."""
    merged = writer(root, max_file_size=20)
    async with merged:
        for _ in range(5):
            await merged.append(b"0123456789")
        if commit:
            await merged.commit()
    await merged.abort()
    assert len(await stored(root)) == (5 if commit else 0)
    with pytest.raises(WriterClosed):
        await merged.append(b"more")


async def test_a_vanished_state_file_spoils_the_writer(root: Location, tmp_path: Path) -> None:
    async with writer(root) as merged:
        await merged.append(b"1")
        with pytest.raises(ObjectNotFound, match="nowhere"):
            await merged.append(tmp_path / "nowhere")
        with pytest.raises(WriterClosed):
            await merged.append(b"2")
        with pytest.raises(WriterClosed):
            await merged.commit()
    assert await stored(root) == []


async def test_tasks_may_append_at_the_same_time(root: Location, tmp_path: Path) -> None:
    state = {str(number): os.urandom(1000 * number) for number in range(20)}
    async with writer(root, max_file_size=30_000) as merged:
        handles = await asyncio.gather(*(merged.append(data) for data in state.values()))
        await merged.commit()
    await read_segments(root, dict(zip(state, handles, strict=True)), tmp_path / "out")
    assert content(tmp_path / "out") == state


async def test_a_damaged_segment_is_named(root: Location, tmp_path: Path) -> None:
    """F1"""
    async with writer(root) as merged:
        handles = {name: await merged.append(name.encode() * 100) for name in ("good", "bad", "last")}
        await merged.commit()
    damaged = bytearray(await root.child("0.seg").read_bytes())
    damaged[handles["bad"].offset + 7] ^= 1
    await root.child("0.seg").write_bytes(bytes(damaged))
    with pytest.raises(StorageCorrupt, match=r"0\.seg, segment bad .*checksum"):
        await read_segments(root, handles, tmp_path / "out")
    await root.child("0.seg").write_bytes(bytes(damaged[:-1]))
    with pytest.raises(StorageCorrupt, match=r"0\.seg, segment last .*ends at"):
        await read_segments(root, {"last": handles["last"]}, tmp_path / "out")
    await root.child("0.seg").delete()
    with pytest.raises(StorageCorrupt, match=r"0\.seg is missing"):
        await read_segments(root, handles, tmp_path / "out")


class Busy(FaultyStorage):
    """Reads go on only when as many as allowed, or all, are under way."""

    def __init__(self, reads: int, limit: int) -> None:
        super().__init__(LocalStorage())
        self.limit, self.left, self.now, self.most = limit, reads, 0, 0
        self.full = asyncio.Event()

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self.now, self.left = self.now + 1, self.left - 1
        self.most = max(self.most, self.now)
        if self.now == self.limit or not self.left:
            self.full.set()
        await self.full.wait()
        async for piece in self.inner.open_read(path, offset, length):
            yield piece
        self.now -= 1


async def test_a_restore_reads_several_files_at_a_time_but_not_all(tmp_path: Path) -> None:
    """Files are read in parallel, within a bound (F1)."""
    storages = Storages()
    root, state = storages.at(str(tmp_path)).child("job"), {str(number): b"%d" % number * 50 for number in range(20)}
    async with writer(root, max_file_size=100) as merged:
        handles = {name: await merged.append(data) for name, data in state.items()}
        names = await merged.commit()
    storage = Busy(len(names), 4)
    storages.add(storage)
    async with asyncio.timeout(10):
        await read_segments(storages.at(str(tmp_path)).child("job"), handles, tmp_path / "out", parallelism=4)
    assert (len(names), storage.most) == (20, 4)
    assert content(tmp_path / "out") == state


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ""])
async def test_nothing_is_laid_out_elsewhere(root: Location, tmp_path: Path, path: str) -> None:
    async with writer(root) as merged:
        handle = await merged.append(b"x")
        await merged.commit()
    with pytest.raises(InvalidPath):
        await read_segments(root, {"ok": handle, path: handle}, tmp_path / "out" / "deep")
    with pytest.raises(InvalidPath):
        await read_segments(root, {"ok": StateHandle("../x", 8, 1, handle.checksum)}, tmp_path / "out")


@settings(max_examples=40, deadline=None)
@given(
    state=st.dictionaries(st.text("ab/", min_size=1, max_size=6), st.binary(max_size=60), max_size=12),
    max_file_size=st.integers(9, 100),
    fail_at=st.integers(1, 40) | st.none(),
    after=st.booleans(),
)
def test_segments_survive_the_round_trip_or_leave_nothing(
    state: dict[str, bytes], max_file_size: int, fail_at: int | None, after: bool
) -> None:
    """F1, F4"""
    state = {f"d/{path.replace('/', '+')}": data for path, data in state.items()}

    async def run(directory: Path) -> None:
        faulty, storages = FaultyStorage(LocalStorage(), fail_at, after=after), Storages()
        storages.add(faulty)
        root, handles = storages.at(str(directory / "job")), dict[str, StateHandle]()
        try:
            async with writer(root, max_file_size) as merged:
                for path, data in state.items():
                    handles[path] = await merged.append(data)
                names = await merged.commit()
        except StorageUnavailable:
            faulty.fail_at = None
            assert await stored(root) == []
            return
        faulty.fail_at = None
        assert {handle.file for handle in handles.values()} == set(names)
        await read_segments(root, handles, directory / "out")
        assert content(directory / "out") == state

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
