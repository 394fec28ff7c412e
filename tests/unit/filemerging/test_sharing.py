"""Several tasks write the files of one checkpoint together, on a real disk."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.policy import FileMerging
from minflinkd.filemerging.reader import read_segments
from minflinkd.filemerging.segments import HEADER
from minflinkd.filemerging.sharing import Part, PartnerLeft, Phase, SharedFiles, Written
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from tests.waiting import until

LONG = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Location:
    return Storages().at(str(tmp_path)).child("job")


def files(root: Location, *, max_file_size: int = 1 << 20, max_age: float = LONG) -> SharedFiles:
    writer = PhysicalFileWriter(root, lambda number: f"{number}.seg", max_file_size=max_file_size)
    return SharedFiles(writer, CompactionLimits(max_file_size=max_file_size), max_age=max_age)


async def stored(root: Location) -> set[str]:
    return {root.relative(entry.path) async for entry in root.list()}


async def content(root: Location, handles: Mapping[str, StateHandle], target: Path) -> dict[str, bytes]:
    await read_segments(root, handles, target)
    return {path: (target / path).read_bytes() for path in handles}


async def write(part: Part, data: bytes) -> tuple[StateHandle, dict[str, int]]:
    async with part:
        handle = await part.append(data)
        await part.worn([handle])
        return handle, dict((await part.finish()).files)


async def test_the_tasks_of_a_taskmanager_write_one_file(root: Location, tmp_path: Path) -> None:
    """A checkpoint has one object, however many tasks there are (F1, F3)."""
    shared = files(root)
    parts = [shared.join([], {}) for _ in range(5)]
    written = await asyncio.gather(*(write(part, b"%d" % number * 10) for number, part in enumerate(parts)))
    assert await stored(root) == {"0.seg"}
    assert [names for _, names in written] == [{"0.seg": len(HEADER) + 50}] * 5
    handles = {str(number): handle for number, (handle, _) in enumerate(written)}
    assert await content(root, handles, tmp_path / "out") == {str(n): b"%d" % n * 10 for n in range(5)}


async def test_each_is_told_of_the_files_that_hold_something_of_it(root: Location) -> None:
    """The files belong to the coordinator once it acknowledges them (F4)."""
    shared = files(root, max_file_size=len(HEADER) + 10)
    first, second = shared.join([], {}), shared.join([], {})
    (_, mine), (_, others) = await asyncio.gather(write(first, b"1" * 10), write(second, b"2" * 10))
    assert (mine, others) == ({"0.seg": 18}, {"1.seg": 18})


async def test_what_several_bring_about_is_counted_once(root: Location) -> None:
    """Calls to the storage, and older files that were left, are each counted for one task only (F10)."""
    shared = files(root, max_file_size=len(HEADER) + 10)

    async def one(part: Part, left: set[str]) -> Written:
        async with part:
            await part.append(b"x" * 10)
            await part.worn([])
            return await part.finish(left)

    parts = [shared.join([], {}) for _ in range(3)]
    done = await asyncio.gather(*map(one, parts, [{"a", "b"}, {"b"}, {"b", "c"}]))
    assert [each.compactions for each in done] == [2, 0, 1]
    assert (sum(each.calls.creates for each in done), sum(each.calls.closes for each in done)) == (3, 3)
    assert sum(each.calls.close_ms for each in done) > 0


async def test_a_file_is_finished_when_all_are_done(root: Location) -> None:
    """After that no task joins any more (F1)."""
    shared = files(root)
    first, second = shared.join([], {}), shared.join([], {})
    early = asyncio.create_task(write(first, b"first"))
    await asyncio.sleep(0)
    assert shared.joinable
    async with second:
        handle = await second.append(b"second")
        assert await second.worn([handle]) == frozenset()
        assert (await stored(root), early.done()) == (set(), False)
        assert (await second.finish()).files == {"0.seg": len(HEADER) + 11}
    await early
    assert not shared.joinable


async def test_a_file_is_not_kept_open_for_a_task_that_is_late(root: Location, tmp_path: Path) -> None:
    """The file is finished by age. The late task writes to another file (F1)."""
    shared = files(root, max_age=0.0)
    punctual, late = shared.join([], {}), shared.join([], {})
    first, mine = await write(punctual, b"first")
    assert await stored(root) == mine.keys() == {"0.seg"}
    second, others = await write(late, b"second")
    assert others.keys() == {"1.seg"}
    handles = {"first": first, "second": second}
    assert await content(root, handles, tmp_path / "out") == {"first": b"first", "second": b"second"}


async def test_a_task_that_gives_up_takes_the_others_with_it(root: Location) -> None:
    """The part of a task that gives up is missing, so there is no checkpoint, and nothing is left (C13)."""
    shared = files(root)
    first, second = shared.join([], {}), shared.join([], {})
    waiting = asyncio.create_task(write(first, b"first"))
    async with second:
        await second.append(b"second")
    with pytest.raises(PartnerLeft) as told:
        await waiting
    assert told.value.message == "another task on this TaskManager ended its part of the checkpoint"
    assert (await stored(root), shared.joinable) == (set(), False)


async def test_what_was_handed_over_stays_when_another_task_gives_up(root: Location) -> None:
    """A part that was handed over may be acknowledged already (F4)."""
    shared = files(root, max_age=0.0)
    first, second = shared.join([], {}), shared.join([], {})
    async with second:
        await second.append(b"second")
        _, mine = await write(first, b"first")
        await second.append(b"and more")
    assert await stored(root) == mine.keys() == {"0.seg"}


async def test_a_worn_file_that_tasks_share_is_left_by_all_of_them(root: Location) -> None:
    """Otherwise it would live on for the other task's part (F6)."""
    sizes = {"old": 1008, "good": 1008}
    mine, others = StateHandle("old", 8, 200, "x"), StateHandle("old", 208, 200, "y")
    good = StateHandle("good", 8, 1000, "z")
    shared = files(root)
    first, second = shared.join([mine], sizes), shared.join([others, good], sizes)
    assert await asyncio.gather(first.worn([mine]), second.worn([others, good])) == [{"old"}, {"old"}]


async def test_a_checkpoint_rewrites_no_more_for_having_several_tasks(root: Location) -> None:
    """What it may spend is for all of them together (F6)."""
    sizes = {"old": 1008, "older": 1008}
    mine, others = StateHandle("old", 8, 100, "x"), StateHandle("older", 8, 100, "y")
    shared = files(root, max_file_size=100)
    first, second = shared.join([mine], sizes), shared.join([others], sizes)
    assert await asyncio.gather(first.worn([mine]), second.worn([others])) == [{"old"}, {"old"}]


async def test_what_another_task_needs_no_more_is_known_in_time(root: Location) -> None:
    """The task's present references count, not those of its last checkpoint (F6)."""
    sizes = {"old": 1008}
    mine, others = StateHandle("old", 8, 500, "x"), StateHandle("old", 508, 500, "y")
    shared = files(root)
    first, second = shared.join([mine], sizes), shared.join([others], sizes)
    assert await asyncio.gather(first.worn([mine]), second.worn([])) == [{"old"}, {"old"}]


async def test_a_task_that_is_late_counts_as_it_was_last_known(root: Location) -> None:
    """When it comes, the files that it makes worn are added (F6)."""
    sizes = {"old": 1008, "other": 408}
    mine, others = StateHandle("old", 8, 500, "x"), StateHandle("old", 508, 500, "y")
    rest = StateHandle("other", 8, 100, "z")
    shared = files(root, max_age=0.0)
    first, second = shared.join([mine], sizes), shared.join([others], sizes)
    assert await first.worn([mine]) == frozenset()
    assert await second.worn([rest]) == {"old", "other"}


async def test_a_task_waits_as_long_as_files_stay_open_and_says_how_long(root: Location) -> None:
    """The wait for the others is not the storage's time (F1, F10)."""
    shared = files(root, max_age=0.05)
    punctual, late = shared.join([], {}), shared.join([], {})
    began = asyncio.get_running_loop().time()
    await write(punctual, b"first")
    assert 0.04 <= asyncio.get_running_loop().time() - began < LONG
    assert 0.04 <= punctual.waited < LONG
    assert late.waited == 0.0


async def test_a_task_may_join_until_all_have_written_or_one_has_left(root: Location) -> None:
    """A task that comes after that gets files of its own (F1)."""
    shared = files(root)
    assert shared.joinable
    first, second = shared.join([], {}), shared.join([], {})
    done = asyncio.create_task(write(first, b"first"))
    await until(lambda: first.phase is Phase.WRITTEN)
    assert (first.phase, second.phase, shared.joinable) == (Phase.WRITTEN, Phase.JOINED, True)
    await write(second, b"second")
    await done
    assert (first.phase, second.phase, shared.joinable) == (Phase.LEFT, Phase.LEFT, False)
    given_up = files(root)
    async with given_up.join([], {}):
        pass
    assert not given_up.joinable


async def test_small_state_files_are_appended_together_and_belong_to_the_task(root: Location) -> None:
    """They are as many segments as there are pieces (F3, F4)."""
    shared = files(root, max_file_size=len(HEADER) + 4)
    async with shared.join([], {}) as part:
        handles = await part.append_all([(b"ab", "1"), (b"cd", "2"), (b"efg", "3")])
        await part.worn(handles)
        written = await part.finish()
    assert [(handle.file, handle.length, handle.checksum) for handle in handles] == [
        ("0.seg", 2, "1"),
        ("0.seg", 2, "2"),
        ("1.seg", 3, "3"),
    ]
    assert written.files == {"0.seg": len(HEADER) + 4, "1.seg": len(HEADER) + 3}
    assert await stored(root) == {"0.seg", "1.seg"}


async def test_what_is_decided_to_be_worn_counts_as_new_state_of_the_checkpoint(root: Location) -> None:
    """So a task that comes later is not told to rewrite more than is needed (F6)."""
    sizes = {"old": 1008, "other": 1268, "more": 1308}
    old, rest = StateHandle("old", 8, 500, "x"), StateHandle("other", 8, 1000, "z")
    more = StateHandle("more", 8, 1000, "y")
    shared = files(root, max_age=0.0)
    first, second = shared.join([old], sizes), shared.join([], {})
    assert await first.worn([old]) == {"old"}
    assert await second.worn([rest]) == {"old"}, "1260 bytes for 1000, and 500 that are written anew"
    third = shared.join([more], sizes)
    assert await third.worn([more]) == {"old"}


# --- with and without merging ------------------------------------------------------------------------------------


def merging(root: Location, policy: FileMerging, **options: bool) -> SharedFiles:
    return policy.begin(root, lambda number: f"{number}.seg", **options)


WORN = StateHandle("old", 8, 100, "x")
SIZES = {"old": 1008}


async def test_without_merging_each_state_file_is_alone_and_nothing_is_ever_worn(root: Location) -> None:
    """All of a file is dead at once (F9)."""
    shared = merging(root, FileMerging(limits=CompactionLimits(max_file_size=1 << 20), enabled=False))
    assert shared.joinable
    async with shared.join([WORN], SIZES) as part:
        assert not shared.joinable, "no task shares a file with another"
        handles = [await part.append(b"a"), await part.append(b"b")]
        assert await part.worn([WORN]) == frozenset()
        assert (await part.finish()).files.keys() == {"0.seg", "1.seg"} == {handle.file for handle in handles}


@pytest.mark.parametrize(
    ("options", "worn"), [({}, {"old"}), ({"compact": True}, {"old"}), ({"compact": False}, set())]
)
async def test_with_merging_files_are_filled_and_worn_ones_rewritten_if_there_is_time(
    root: Location, options: dict[str, bool], worn: set[str]
) -> None:
    """The limits are those of the policy (F1, F6)."""
    limits = CompactionLimits(max_file_size=len(HEADER) + 2)
    shared = merging(root, FileMerging(limits=limits, max_file_age=0.0), **options)
    late = shared.join([], {})
    async with shared.join([WORN], SIZES) as part:
        assert shared.joinable
        handles = [await part.append(data) for data in (b"a", b"b", b"c")]
        assert [handle.file for handle in handles] == ["0.seg", "0.seg", "1.seg"]
        async with asyncio.timeout(LONG / 2):  # it does not wait for the late one
            assert await part.worn([WORN]) == worn
            await part.finish()
    assert late.waited == 0.0


def test_files_are_merged_unless_it_is_switched_off() -> None:
    """So it is by default, and files stay open for ten seconds (F9)."""
    policy = FileMerging(limits=CompactionLimits(max_file_size=1))
    assert (policy.enabled, policy.max_file_age) == (True, 10.0)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(st.binary(min_size=1, max_size=40), max_size=4), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    max_file_size=st.integers(9, 120),
    max_age=st.sampled_from([0.0, 0.005, LONG]),
    fail_at=st.integers(1, 25) | st.none(),
    cancelled=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 30)),
)
def test_whoever_finishes_has_its_state_and_nothing_else_is_left(
    parts: list[tuple[list[bytes], int, bool]],
    max_file_size: int,
    max_age: float,
    fail_at: int | None,
    cancelled: tuple[int, int] | None,
) -> None:
    """Tasks are slow, fail or are cancelled at any moment, and the storage may fail (F1, F4, C13)."""

    async def run(directory: Path) -> None:
        faulty, storages = FaultyStorage(LocalStorage(), fail_at), Storages()
        storages.add(faulty)
        root = storages.at(str(directory / "job"))
        shared = files(root, max_file_size=max_file_size, max_age=max_age)
        handed: dict[int, tuple[dict[str, StateHandle], dict[str, int]]] = {}

        async def one(number: int, pieces: list[bytes], pauses: int, fails: bool) -> None:
            async with shared.join([], {}) as part:
                for _ in range(1 + pauses):  # the cut takes a while; by then all have joined
                    await asyncio.sleep(0)
                handles = {f"{number}/{n}": await part.append(piece) for n, piece in enumerate(pieces)}
                if fails:
                    raise ZeroDivisionError
                assert await part.worn(handles.values()) == frozenset()
                handed[number] = handles, dict((await part.finish()).files)

        async with asyncio.timeout(10):
            tasks = [asyncio.create_task(one(number, *each)) for number, each in enumerate(parts)]
            if cancelled is not None:
                for _ in range(cancelled[1]):
                    await asyncio.sleep(0)
                tasks[cancelled[0] % len(tasks)].cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        expected = StorageUnavailable | PartnerLeft | ZeroDivisionError | asyncio.CancelledError
        assert all(end is None or isinstance(end, expected) for end in ends)
        quiet = fail_at is None and cancelled is None and not any(fails for _, _, fails in parts)
        assert not quiet or ends == [None] * len(parts)
        failed, faulty.fail_at = fail_at is not None and faulty.fail_at is None, None
        found, owned = await stored(root), {name for _, names in handed.values() for name in names}
        assert found >= owned if failed else found == owned, "what could not be deleted is left to the sweep"
        for number, (handles, names) in handed.items():
            assert {handle.file for handle in handles.values()} == names.keys()
            restored = await content(root, handles, directory / "out")
            assert list(restored.values()) == parts[number][0]

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
