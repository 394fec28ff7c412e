import hashlib
import os
from pathlib import Path

import pytest

from minflinkd.blob.errors import BlobMismatch, BlobNotFound, BlobTooLarge
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.store import BlobStore
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageError

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
    """B7: reported, never served; also when it was good before."""
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
