"""The local backend against the conformance tests that ship with minflinkd, and tests of its own."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minflinkd.storage.conformance import StorageConformance, names, read, write
from minflinkd.storage.interface import InvalidPath, ObjectExists, PermissionDenied, Storage, StorageFull
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.registry import Storages
from minflinkd.storage.resilient import ResilientStorage
from minflinkd.storage.temporary import TEMPORARY
from minflinkd_local import LocalStorage, files
from tests.waiting import until


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path)


def all_files(directory: Path) -> list[str]:
    """Return all files, including hidden ones, which no listing of the backend shows."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


class LocalConformance(StorageConformance):
    entries = 250
    hurried = CommonOptions(request_timeout=0.3, deadline=60, retries=50, pause=0.01, longest_pause=0.1)

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minflinkd_local._PAGE", 100)


class TestLocalStorage(LocalConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return LocalStorage()


class TestLocalStorageWithoutUnnamedFiles:
    """Some file systems have none, e.g. NFS. The tests are those that write, rename or abort; nothing else differs."""

    hurried = LocalConformance.hurried
    was_written = StorageConformance.was_written

    test_what_is_written_is_read = StorageConformance.test_what_is_written_is_read
    test_an_object_of_many_parts_is_whole = StorageConformance.test_an_object_of_many_parts_is_whole
    test_nothing_is_visible_before_the_commit = StorageConformance.test_nothing_is_visible_before_the_commit
    test_an_aborted_object_leaves_nothing = StorageConformance.test_an_aborted_object_leaves_nothing
    test_an_abort_after_the_commit_does_nothing = StorageConformance.test_an_abort_after_the_commit_does_nothing
    test_a_commit_replaces_an_object_of_that_name = StorageConformance.test_a_commit_replaces_an_object_of_that_name
    test_an_exclusive_create_has_exactly_one_winner = StorageConformance.test_an_exclusive_create_has_exactly_one_winner
    test_an_exclusive_create_does_not_replace = (
        StorageConformance.test_an_exclusive_create_does_not_replace_a_written_object
    )
    test_writers_do_not_mind_deletions_beside_them = StorageConformance.test_writers_do_not_mind_deletions_beside_them
    test_a_rename_moves_and_replaces = StorageConformance.test_a_rename_moves_and_replaces
    test_an_atomic_rename_is_never_seen_half = StorageConformance.test_an_atomic_rename_is_never_seen_half
    test_a_cancelled_write_leaves_nothing = StorageConformance.test_a_cancelled_write_leaves_nothing
    test_one_fault_anywhere_changes_no_outcome = StorageConformance.test_one_fault_anywhere_changes_no_outcome
    test_a_write_that_was_broken_off_is_never_committed = (
        StorageConformance.test_a_write_that_was_broken_off_is_never_committed
    )

    @pytest.fixture
    def storage(self, monkeypatch: pytest.MonkeyPatch) -> Storage:
        monkeypatch.delattr(os, "O_TMPFILE")
        return LocalStorage()


class TestLocalStorageAsTheRegistryMakesIt(LocalConformance):
    """A backend that is recorded, retried and bounded is still that backend (S4, S6)."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return Storages().at(str(tmp_path)).storage


WRITER = """
import asyncio, sys
from minflinkd_local import LocalStorage
async def main():
    writer = await LocalStorage().create(sys.argv[1])
    while True:
        await writer.append(bytes(1 << 20))
        print("more", flush=True)
asyncio.run(main())
"""


def test_a_process_killed_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """The process gets kill -9 in the middle of a write (S5)."""
    argv = [sys.executable, "-c", WRITER, str(tmp_path / "d" / "x")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "more\n"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert all_files(tmp_path) == []


def test_an_exclusive_loser_leaves_no_temporary_file(tmp_path: Path) -> None:
    for unnamed in (True, False):
        target = str(tmp_path / f"x{unnamed}")
        winner, loser = files.Draft(target, unnamed=unnamed), files.Draft(target, unnamed=unnamed)
        for draft in (winner, loser):
            draft.write(b"1")
        winner.publish(exclusive=True)
        with pytest.raises(FileExistsError):
            loser.publish(exclusive=True)
        winner.discard()
        loser.discard()
    assert all_files(tmp_path) == ["xFalse", "xTrue"]


def test_an_exclusive_create_whose_link_was_asked_for_twice_has_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, the first answer is lost, and the second says that the name is taken."""
    real = os.link

    def twice(source: str, target: str) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", twice)
    for name in ("x", "y"):
        draft = files.Draft(str(tmp_path / name), unnamed=False)
        draft.write(name.encode())
        draft.publish(exclusive=True)
    rival = files.Draft(str(tmp_path / "x"), unnamed=False)
    rival.write(b"rival")
    with pytest.raises(FileExistsError):
        rival.publish(exclusive=True)
    rival.discard()
    assert all_files(tmp_path) == ["x", "y"]
    assert (tmp_path / "x").read_bytes() == b"x"


async def test_what_killed_writers_left_goes_with_its_directory_once_it_is_old(tmp_path: Path) -> None:
    place = Storages().at(str(tmp_path)).child("job")
    await place.child("a/x").write_bytes(b"1")
    old, young = (tmp_path / "job/a" / f".{name}{TEMPORARY}" for name in ("old", "young"))
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (0, 0))
    await place.delete_tree()
    assert all_files(tmp_path) == [str(young.relative_to(tmp_path))]  # its writer may live
    os.utime(young, (0, 0))
    await place.delete_tree()
    assert os.listdir(tmp_path) == []


async def test_deleting_stops_below_the_given_directory(tmp_path: Path) -> None:
    storage, root = LocalStorage(), tmp_path / "root"
    for path in ("a/b/c/x", "a/b/c/y", "d/x"):
        await write(storage, f"{root}/{path}", b"")
    await storage.delete([f"{root}/a/b/c/x"], below=str(root))
    assert os.listdir(root / "a/b/c") == ["y"]
    await storage.delete([f"{root}/a/b/c/y"], below=str(root / "a"))
    assert os.listdir(root / "a") == []
    await storage.delete([f"{root}/d/x"])
    assert os.listdir(root) == ["a"]


async def test_of_many_paths_a_few_are_deleted_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these steps is repeated separately, and has a time limit of its own."""
    monkeypatch.setattr("minflinkd_local._BATCH", 10)
    storage, asked, delete = LocalStorage(), list[str](), files.delete
    paths = [f"{tmp_path}/d/{number:02d}" for number in range(25)]
    for path in paths:
        await write(storage, path, b"")

    def busy(path: str, below: str | None) -> None:
        asked.append(path)
        if len(asked) == 15:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        delete(path, below)

    monkeypatch.setattr(files, "delete", busy)
    await ResilientStorage(storage, LocalConformance.hurried).delete(paths, below=str(tmp_path))
    assert asked == [*paths[:15], *paths[10:]]
    assert os.listdir(tmp_path) == []


async def test_empty_directories_go_with_the_one_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/d").mkdir()
    await LocalStorage().delete([f"{tmp_path}/a"], below=str(tmp_path))
    assert os.listdir(tmp_path) == []


async def test_a_directory_that_another_process_removes_at_that_moment_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting what is gone is no error, even if it goes between the two system calls for a directory."""
    real = os.unlink

    def unlink_late(path: str) -> None:
        try:
            real(path)
        except (IsADirectoryError, PermissionError):
            os.rmdir(path)
            raise

    (tmp_path / "d").mkdir()
    monkeypatch.setattr(os, "unlink", unlink_late)
    await LocalStorage().delete([f"{tmp_path}/d"])
    assert not (tmp_path / "d").exists()


async def test_a_directory_that_others_make_and_delete_at_that_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, mkdir = iter([f"{tmp_path}/d"]), os.mkdir

    def meet(path: str) -> None:
        if path == next(others, None):  # it existed, and exists no longer
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", meet)
    await write(LocalStorage(), f"{tmp_path}/d/x", b"1")
    assert all_files(tmp_path) == ["d/x"]


async def test_an_unnamed_file_refused_since_its_directory_is_deleted_just_now_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ext4 reports this as not permitted, and not as a missing directory."""
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            if os.path.isdir(path):
                os.rmdir(path)
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    await write(LocalStorage(), f"{tmp_path}/d/x", b"1")
    assert all_files(tmp_path) == ["d/x"]


async def test_a_directory_is_not_replaced_by_an_object(tmp_path: Path) -> None:
    storage = LocalStorage()
    await write(storage, f"{tmp_path}/d/x", b"1")
    with pytest.raises(ObjectExists):
        await storage.create_exclusive(f"{tmp_path}/d", b"")
    assert await names(storage, str(tmp_path)) == ["d/x"]


@pytest.mark.parametrize("path", ["relative", "", "/a/../b", "/a\0b"])
async def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    storage = LocalStorage()
    with pytest.raises(InvalidPath):
        await read(storage, path)
    with pytest.raises(InvalidPath):
        await write(storage, path, b"")
    with pytest.raises(InvalidPath):
        await storage.delete([path])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
async def test_a_forbidden_directory_is_a_permission_error(tmp_path: Path) -> None:
    """S4"""
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionDenied, match="locked"):
        await write(LocalStorage(), f"{tmp_path}/locked/x", b"1")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
async def test_a_full_disk_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4"""
    real = os.open
    full = real("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(files.Draft, "_open", lambda draft: os.dup(full))
    try:
        with pytest.raises(StorageFull, match=r"x: No space left"):
            await write(LocalStorage(), f"{tmp_path}/x", b"1")
    finally:
        os.close(full)


async def test_many_cancelled_reads_leave_no_open_file(tmp_path: Path) -> None:
    storage = LocalStorage()
    await write(storage, f"{tmp_path}/x", bytes(8 * files.CHUNK))
    before = len(os.listdir("/proc/self/fd"))
    tasks = [asyncio.create_task(read(storage, f"{tmp_path}/x")) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()

    async def closed() -> bool:
        return len(os.listdir("/proc/self/fd")) <= before + 8  # the loop has a few

    await until(closed, "the threads have closed what they opened")
