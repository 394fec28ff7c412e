import errno
import hashlib
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest

from minflinkd.blob import incoming as incoming_module
from minflinkd.blob.errors import BlobMismatch, BlobNotFound, BlobTooLarge
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.store import KEPT_ASIDE, BlobStore
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageError, StorageFull

JOB = JobId("a" * 32)
DATA = b"some content"


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    store = BlobStore(tmp_path)
    store.open()
    return store


def new_key(data: bytes = DATA) -> BlobKey:
    return BlobKey.new(BlobKind.PERMANENT, hashlib.sha256(data).hexdigest())


def put(store: BlobStore, data: bytes = DATA, job_id: JobId | None = JOB) -> BlobKey:
    key = new_key(data)
    incoming = store.incoming(job_id, key)
    incoming.write(data)
    incoming.place()
    incoming.discard()
    return key


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", DATA])
def test_a_blob_lies_under_its_job_and_key(store: BlobStore, data: bytes) -> None:
    key = put(store, data)
    assert store.get(JOB, key).read_bytes() == data
    assert files(store.directory) == [f"{JOB}/{key}"]
    assert store.find(JOB, BlobKind.PERMANENT, key.sha256) == key
    assert store.find(JOB, BlobKind.TRANSIENT, key.sha256) is None
    assert store.find(JobId("b" * 32), BlobKind.PERMANENT, key.sha256) is None


def test_what_is_not_what_was_announced_gets_no_name(store: BlobStore) -> None:
    """B5"""
    incoming = store.incoming(JOB, new_key())
    incoming.write(b"other content")
    with pytest.raises(BlobMismatch, match="arrived instead of"):
        incoming.place()
    incoming.discard()
    assert files(store.directory) == []


def test_a_blob_is_no_larger_than_allowed(store: BlobStore) -> None:
    """B5"""
    incoming = store.incoming(JOB, new_key(), max_size=5)
    incoming.write(b"12345")
    with pytest.raises(BlobTooLarge, match="larger than 5 bytes"):
        incoming.write(b"6")
    incoming.discard()


def test_a_small_blob_waits_in_memory_for_its_place(store: BlobStore) -> None:
    incoming = store.incoming(JOB, new_key())
    assert incoming.keep(DATA[:5])
    assert incoming.keep(DATA[5:])
    assert files(store.directory) == []
    path = incoming.place()
    assert path.read_bytes() == DATA
    assert incoming.closed
    assert not incoming.keep(b"more")


def test_what_waited_comes_before_what_is_written(store: BlobStore) -> None:
    incoming = store.incoming(JOB, new_key())
    assert incoming.keep(DATA[:5])
    incoming.write(DATA[5:7])
    assert not incoming.keep(DATA[7:])
    incoming.write(DATA[7:])
    incoming.sync()
    assert incoming.size == len(DATA)
    assert incoming.place().read_bytes() == DATA


def test_what_waited_is_forgotten_with_the_rest(store: BlobStore) -> None:
    incoming = store.incoming(JOB, new_key())
    assert incoming.keep(b"garbage")
    incoming.restart()
    incoming.write(DATA)
    assert incoming.place().read_bytes() == DATA


def test_a_small_blob_is_no_larger_than_allowed(store: BlobStore) -> None:
    """B5"""
    incoming = store.incoming(JOB, new_key(), max_size=5)
    assert incoming.keep(b"12345")
    assert not incoming.keep(b"6")
    with pytest.raises(BlobTooLarge, match="larger than 5 bytes"):
        incoming.write(b"6")
    incoming.discard()
    assert files(store.directory) == []


def full_after(size: int) -> Callable[[int, memoryview, int], int]:
    """Return an `os.pwrite` for a full disk: of what does not fit, a part is written first."""
    pwrite = os.pwrite

    def write(fd: int, data: memoryview, at: int) -> int:
        nonlocal size
        if not size:
            raise OSError(errno.ENOSPC, "no space")
        written = pwrite(fd, data[:size], at)
        size -= written
        return written

    return write


@pytest.mark.parametrize("room", [0, 5])
def test_a_disk_that_failed_once_does_not_lose_what_waited(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """When there is space again, all of it is written (B5)."""
    incoming = store.incoming(JOB, new_key())
    assert incoming.keep(DATA)
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full_after(room))
        with pytest.raises(StorageFull):
            incoming.place()
    assert incoming.place().read_bytes() == DATA
    incoming.discard()
    assert len(files(store.directory)) == 1


@pytest.mark.parametrize("more", [b"", b"and some more"])
def test_what_is_left_of_a_piece_that_did_not_fit_is_no_part_of_the_blob(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    """The next try continues after the last whole piece, and may have nothing to write (B5)."""
    incoming = store.incoming(JOB, new_key(DATA + more))
    incoming.write(DATA)
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full_after(5))
        with pytest.raises(StorageFull):
            incoming.write(b"this does not fit, and is longer than what comes then")
    assert incoming.size == len(DATA)
    if more:
        incoming.write(more)
    assert incoming.place().read_bytes() == DATA + more


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which files are made durable, and when files get their names."""
    seen, fsync, rename = list[str](), os.fsync, os.rename

    def synced(fd: int) -> None:
        seen.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def renamed(source: Path, target: str, *, dst_dir_fd: int) -> None:
        seen.append(f"rename {source.name}")
        rename(source, target, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    return seen


@pytest.mark.parametrize("prepared", [False, True])
def test_a_blob_is_durable_before_it_has_its_name(store: BlobStore, steps: list[str], prepared: bool) -> None:
    """The name of its directory is durable before, and its own name at the end (B5)."""
    incoming = store.incoming(JOB, new_key())
    name = incoming.temporary.name
    incoming.write(DATA)
    if prepared:
        incoming.sync()
        assert steps == [f"fsync {name}", f"fsync {store.directory.name}"]
    incoming.place()
    assert steps == [f"fsync {name}", f"fsync {store.directory.name}", f"rename {name}", f"fsync {JOB}"]


@pytest.mark.parametrize("kind", list(BlobKind))
def test_what_nobody_looks_for_after_a_crash_is_not_made_durable(
    tmp_path: Path, steps: list[str], kind: BlobKind
) -> None:
    """A TRANSIENT blob is never recovered, nor is anything in a cache (B2)."""
    store = BlobStore(tmp_path, durable=kind is BlobKind.TRANSIENT)
    store.open()
    incoming = store.incoming(JOB, BlobKey.new(kind, new_key().sha256))
    incoming.write(DATA)
    incoming.place()
    assert steps == [f"rename {incoming.temporary.name}"]


def test_what_was_being_received_goes_with_a_restart(store: BlobStore) -> None:
    """B5"""
    kept = put(store)
    store.incoming(JOB, new_key()).write(DATA)
    assert len(files(store.directory)) == 2
    again = BlobStore(store.directory)
    again.open()
    assert files(store.directory) == [f"{JOB}/{kept}"]


def test_a_restarted_blob_forgets_what_came(store: BlobStore) -> None:
    key = new_key()
    incoming = store.incoming(JOB, key)
    incoming.write(b"garbage that is longer than the content")
    incoming.restart()
    incoming.write(DATA)
    assert incoming.place().read_bytes() == DATA


def test_a_corrupt_file_is_moved_aside(store: BlobStore) -> None:
    """A corrupt file is reported and never served, even if it was good before (B7)."""
    key = put(store)
    path = store.get(JOB, key)
    path.write_bytes(b"some cOntent")
    with pytest.raises(BlobNotFound, match="corrupt and was moved aside"):
        store.get(JOB, key)
    with pytest.raises(BlobNotFound, match="there is no blob"):
        store.get(JOB, key)
    assert store.find(JOB, BlobKind.PERMANENT, key.sha256) is None
    (aside,) = files(store.directory)
    assert aside.startswith(f"corrupt/{JOB}-{key}-")


def test_a_link_is_not_followed(store: BlobStore, tmp_path: Path) -> None:
    """B41"""
    (tmp_path / "secret").write_bytes(DATA)
    key = new_key()
    (tmp_path / JOB).mkdir()
    os.symlink(tmp_path / "secret", tmp_path / JOB / str(key))
    with pytest.raises(BlobNotFound):
        store.get(JOB, key)


def test_what_was_not_parsed_does_not_become_a_path(store: BlobStore) -> None:
    """B41"""
    with pytest.raises(InvalidId):
        store.get(JOB, BlobKey(BlobKind.PERMANENT, "0" * 64, "../../x"))
    with pytest.raises(InvalidId):
        store.delete_job(JobId("../other"))
    with pytest.raises(InvalidId):
        store.incoming(JobId(".."), new_key())


def test_a_jobs_blobs_are_deleted_and_no_others(store: BlobStore) -> None:
    first, other = put(store), put(store, job_id=JobId("b" * 32))
    store.delete(JOB, first)
    store.delete(JOB, first)
    put(store)
    store.delete_job(JOB)
    store.delete_job(JOB)
    assert store.keys(JOB) == []
    assert files(store.directory) == [f"{'b' * 32}/{other}"]


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file"):
        BlobStore(tmp_path / "file").open()


def test_a_cleanup_between_directory_and_file_does_not_break_an_upload(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is empty until the file gets its name."""
    make, cleanups = incoming_module.make_directory, 0

    def made(path: Path, *, follow_links: bool, durable: bool) -> int:
        nonlocal cleanups
        descriptor = make(path, follow_links=follow_links, durable=durable)
        if cleanups < 3:
            cleanups += 1
            store.delete_empty()
        return descriptor

    monkeypatch.setattr(incoming_module, "make_directory", made)
    key = put(store)
    assert cleanups == 3
    assert store.get(JOB, key).read_bytes() == DATA


@pytest.mark.parametrize("step", ["sync", "place"])
def test_a_cleanup_while_the_directory_is_made_does_not_break_an_upload(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Making a directory takes two calls: one creates it, one opens it."""
    mkdir, cleanups = os.mkdir, 0

    def made(path: Path) -> None:
        nonlocal cleanups
        mkdir(path)
        if cleanups < 3:
            cleanups += 1
            store.delete_empty()

    monkeypatch.setattr(os, "mkdir", made)
    incoming = store.incoming(JOB, new_key())
    incoming.write(DATA)
    if step == "sync":
        incoming.sync()
    assert incoming.place().read_bytes() == DATA
    assert cleanups == 3


def test_a_good_file_that_took_the_place_of_a_corrupt_one_stays(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was hashed is moved aside, not the file that has its name now (B7)."""
    key = put(store)
    path = store.path(JOB, key)
    path.write_bytes(b"damaged")
    digest, replaced = hashlib.file_digest, False

    def replace_then(file: FileIO, name: str) -> object:
        nonlocal replaced
        found = digest(file, name)
        if not replaced:
            replaced = True
            good = store.directory / "good"
            good.write_bytes(DATA)
            good.rename(path)
        return found

    monkeypatch.setattr(hashlib, "file_digest", replace_then)
    with store.reader(JOB, key) as file:
        assert file.read() == DATA
    assert (path.read_bytes(), store.moved_aside) == (DATA, 0)


def test_a_job_is_deleted_as_a_whole_while_others_delete_parts_of_it(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion never reports what it did not do (B17)."""
    keys = [put(store, bytes([i])) for i in range(5)]
    unlink = os.unlink
    others = 3

    def first_by_another(path: str, *, dir_fd: int | None = None) -> None:
        nonlocal others
        unlink(path, dir_fd=dir_fd)
        if others:
            others -= 1
            raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", first_by_another)
    store.delete_job(JOB)
    assert not store.path(JOB, keys[0]).parent.exists()
    assert others == 0, "else this shows nothing"


def test_the_newest_corrupt_files_are_kept(store: BlobStore) -> None:
    for i in range(KEPT_ASIDE + 3):
        key = put(store, bytes([i]))
        store.path(JOB, key).write_bytes(f"damaged {i}".encode())
        with pytest.raises(BlobNotFound, match="moved aside"):
            store.reader(JOB, key)
    kept = {path.read_bytes() for path in (store.directory / "corrupt").iterdir()}
    assert len(kept) == KEPT_ASIDE
    assert f"damaged {KEPT_ASIDE + 2}".encode() in kept
