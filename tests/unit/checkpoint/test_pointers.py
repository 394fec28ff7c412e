"""Pointers: with several daemons, a checkpoint counts once the coordination service has a record of it (A11a)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.dispatcher.job_store import JobStore, StoredJob
from minflinkd.jobgraph.model import JobGraph
from minflinkd.storage.interface import StorageUnavailable, Writer
from minflinkd.storage.location import Location
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, JOB, A, completed, snapshot
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints


class FencedStorage(LocalStorage):
    """Refuses all writes while another daemon leads. Loses as many answers to writes as `loses` says."""

    refuses = False
    loses = 0

    async def create(self, path: str) -> Writer:
        if self.refuses:
            raise StorageUnavailable("another daemon may lead", settled=True)
        return await super().create(path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        if self.refuses:
            raise StorageUnavailable("another daemon may lead", settled=True)
        await super().create_exclusive(path, data)
        if self.loses:
            self.loses -= 1
            raise StorageUnavailable("no answer", settled=True)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[FencedStorage]:
    storage = FencedStorage()
    yield storage
    await storage.aclose()


def store(tmp_path: Path, service: FencedStorage) -> CheckpointStore:
    records = JobStore(Location(service, "file", str(tmp_path / "service")), shared=True)
    place = Location(service if not service.refuses else LocalStorage(), "file", str(tmp_path / "checkpoints"))
    leads = not service.refuses
    return CheckpointStore(place, job_id=JOB, epoch=1, leads=lambda: leads, pointers=records.pointers(JOB))


def ids(found: tuple[object, ...]) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in found]  # type: ignore[attr-defined]


async def test_a_checkpoint_with_a_pointer_is_recovered(tmp_path: Path, service: FencedStorage) -> None:
    one = store(tmp_path, service)
    await one.write(completed(1, snapshot(1, A, A1)))
    await one.write(completed(2, snapshot(2, A, A1)))
    assert ids((await store(tmp_path, service).recover()).completed) == [1, 2]


async def test_what_a_replaced_leader_wrote_does_not_count(tmp_path: Path, service: FencedStorage) -> None:
    """It could still write the metadata, but not the pointer. Its number is not used again (A11a)."""
    await store(tmp_path, service).write(completed(1, snapshot(1, A, A1)))
    service.refuses = True
    stale = store(tmp_path, service)
    with pytest.raises(StorageUnavailable, match="another daemon may lead"):
        await stale.write(completed(2, snapshot(2, A, A1)))
    assert (tmp_path / "checkpoints" / layout.metadata_file(2)).exists()
    service.refuses = False
    found = await store(tmp_path, service).recover()
    assert (ids(found.completed), found.set_aside, found.last_id) == ([1], (), 2)


async def test_a_lost_answer_fails_no_checkpoint_while_the_daemon_leads(
    tmp_path: Path, service: FencedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few failed checkpoints would restart the job, which runs well (A11, A17)."""
    monkeypatch.setattr("minflinkd.checkpoint.store.POINTER_PAUSE", 0.0)
    service.loses = 1
    one = store(tmp_path, service)
    await one.write(completed(1, snapshot(1, A, A1)))
    assert ids((await store(tmp_path, service).recover()).completed) == [1]


async def test_a_deleted_checkpoint_loses_its_pointer_first(tmp_path: Path, service: FencedStorage) -> None:
    one = store(tmp_path, service)
    await one.write(completed(1, snapshot(1, A, A1)))
    await one.discard(1)
    assert ids((await store(tmp_path, service).recover()).completed) == []
    assert list((tmp_path / "service").rglob("checkpoints/*/*")) == []


async def test_a_pointer_whose_metadata_is_missing_is_reported(tmp_path: Path, service: FencedStorage) -> None:
    """Somebody deleted it. What it referred to is kept (A12)."""
    await store(tmp_path, service).write(completed(1, snapshot(1, A, A1)))
    (tmp_path / "checkpoints" / layout.metadata_file(1)).unlink()
    found = await store(tmp_path, service).recover()
    assert [one.checkpoint_id for one in found.set_aside] == [1]


async def test_a_stray_name_among_the_pointers_keeps_no_job_from_its_checkpoints(
    tmp_path: Path, service: FencedStorage
) -> None:
    """Somebody made a node there. It is reported, and the checkpoints are recovered (A12)."""
    one = store(tmp_path, service)
    await one.write(completed(1, snapshot(1, A, A1)))
    (pointer,) = (tmp_path / "service").rglob("checkpoints/*/*")
    for name in ("notes.txt", "7", "\N{ARABIC-INDIC DIGIT ONE}" * 10):
        (pointer.parent / name).write_bytes(b"")
    with capture_logs() as logs:
        found = await store(tmp_path, service).recover()
    assert (ids(found.completed), found.set_aside) == ([1], ())
    said = [line["path"] for line in logs if "names none is ignored" in line["event"]]
    assert {Path(path).name for path in said} == {path.name for path in pointer.parent.iterdir()} - {pointer.name}


async def test_without_other_daemons_the_metadata_alone_counts(tmp_path: Path, service: FencedStorage) -> None:
    """As before: nothing but the metadata is written (C22)."""
    place = Location(service, "file", str(tmp_path / "checkpoints"))
    StoredCheckpoints(tmp_path / "checkpoints").checkpoint(1)
    assert JobStore(Location(service, "file", str(tmp_path / "service"))).pointers(JOB) is None
    assert ids((await CheckpointStore(place, job_id=JOB, epoch=1).recover()).completed) == [1]


async def test_the_pointers_of_a_job_go_with_the_job(tmp_path: Path, service: FencedStorage) -> None:
    records = JobStore(Location(service, "file", str(tmp_path / "service")), shared=True)
    await records.put_job(StoredJob(job_id=JOB, submitted_ms=1, graph=JobGraph(name="copy", vertices=())))
    await store(tmp_path, service).write(completed(1, snapshot(1, A, A1)))
    await records.delete_job(JOB)
    assert [path for path in (tmp_path / "service").rglob("*") if path.is_file()] == []
