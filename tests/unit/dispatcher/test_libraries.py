"""Which libraries a job's artifacts need from a session: found at submission, requested, stored with the job (B31)."""

from __future__ import annotations

import errno
import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.jobgraph.archives import ArchiveLimits
from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.rpc.messages import Library
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.waiting import until

JOB = JobId("a" * 32)


def upload(cluster: Cluster, path: Path) -> dict[str, object]:
    """Upload the artifact of a job document."""
    key = BlobKey.new(BlobKind.PERMANENT, hashlib.sha256(path.read_bytes()).hexdigest())
    cluster.blobs.uploaded.add(key)
    cluster.blobs.files[key] = path
    return {"name": path.name, "key": str(key)}


def native_wheel(directory: Path) -> Path:
    path = directory / "acme_fast-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("acme_fast/__init__.py", "")
        archive.writestr("acme_fast/core.cpython-311-x86_64-linux-gnu.so", b"")
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return native_wheel(tmp_path)


async def test_a_jobs_native_modules_are_asked_for_from_the_analysis_to_its_recovery(
    cluster: Cluster, wheel: Path
) -> None:
    """A session that holds another version of them is of no use to the job (B31)."""
    document = {**DOCUMENT, "artifacts": [upload(cluster, wheel)]}
    (key,) = cluster.blobs.uploaded
    expected = (Library("native:acme_fast", key.sha256),)
    async with cluster.serving():
        assert (await cluster.submit(JOB, document)).faults == ()
        assert cluster.wanted == [expected]
        await until(lambda: cluster.declared)
        assert cluster.declared[-1].libraries == expected
    cluster.declared.clear()
    async with cluster.serving():
        await until(lambda: cluster.declared)
        assert cluster.declared[-1].libraries == expected


async def test_an_archive_that_would_fill_a_disk_is_a_fault_of_the_job(cluster: Cluster, tmp_path: Path) -> None:
    """It is refused at the submission, before any session unpacks it. The fault names the limit (E45)."""
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.txt", bytes(100 << 20))
    document = {**DOCUMENT, "artifacts": [upload(cluster, bomb)]}
    async with cluster.serving() as serving:
        (fault,) = (await cluster.submit(JOB, document)).faults
        assert (fault.path, fault.code) == ("artifacts[0]", "archive-too-large")
        assert "times its size; 200 times are allowed (artifacts.max-ratio)" in fault.problem
        serving.options = replace(serving.options, archives=ArchiveLimits(ratio=5000))
        assert (await cluster.submit(JOB, document)).faults == ()


async def test_a_taskmanager_that_was_given_another_version_meanwhile_is_not_the_end_of_a_submission(
    cluster: Cluster, wheel: Path
) -> None:
    """Another session is requested (B31)."""
    tries = 0

    async def conflict_once() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RemoteError(LibraryConflict("the session holds another version of native:acme_fast").info())

    cluster.before_analysis = conflict_once
    async with cluster.serving():
        assert (await cluster.submit(JOB, {**DOCUMENT, "artifacts": [upload(cluster, wheel)]})).faults == ()
    assert tries == len(cluster.wanted) == 2


async def test_a_damaged_archive_claims_nothing_and_is_left_to_the_analysis(cluster: Cluster, tmp_path: Path) -> None:
    """The analysis names the fault together with all others (J4)."""
    path = tmp_path / "broken.whl"
    path.write_bytes(b"no zip")
    async with cluster.serving():
        assert (await cluster.submit(JOB, {**DOCUMENT, "artifacts": [upload(cluster, path)]})).faults == ()
    assert cluster.wanted == [()]


async def test_an_archive_that_cannot_be_read_now_is_kept_for_the_next_try(
    cluster: Cluster, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk error does not delete what the user uploaded (B6)."""

    def no_descriptor(path: Path) -> None:
        raise OSError(errno.EMFILE, "too many open files", path)

    document = {**DOCUMENT, "artifacts": [upload(cluster, wheel)]}
    async with cluster.serving():
        with monkeypatch.context() as disk:
            disk.setattr(zipfile, "ZipFile", no_descriptor)
            with pytest.raises(RemoteError, match=wheel.name):
                await cluster.submit(JOB, document)
        assert cluster.blobs.deleted == []
        assert (await cluster.submit(JOB, document)).faults == ()
