"""Files of a sink on an object store: from the TaskManager's disk to the place that they are published from."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import Capabilities, ObjectNotFound, StorageUnavailable
from minflinkd.storage.publication import (
    SinkTransaction,
    StagedFile,
    final_name,
    make_durable,
    publish,
    staged_directory,
)
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts.staging import spark_writes, stage, waiting_directory
from minflinkd_local import LocalStorage
from tests.files import files_below

JOB, SINK, ATTEMPT = "a" * 32, "out", "b" * 32


class ObjectStore(LocalStorage):
    scheme = ("objects",)
    capabilities = Capabilities(server_side_copy=True)


class Bench:
    """An attempt with micro-batches of two files each, and an object store."""

    def __init__(self, base: Path) -> None:
        self.attempt, self.root = str(base / "attempt"), base / "store"
        self.storage = FaultyStorage(ObjectStore())
        self.storages = Storages()
        self.storages.add(self.storage)
        self.known: dict[str, set[str]] = {}

    def write(self, *epochs: int) -> None:
        """Write as Spark does: data, and its own marker files next to it."""
        for epoch in epochs:
            directory = Path(waiting_directory(self.attempt, SINK)) / staged_directory(JOB, SINK, ATTEMPT, epoch)
            directory.mkdir(parents=True)
            for name in ("part-0.parquet", "part-1.parquet", "_SUCCESS"):
                (directory / name).write_bytes(f"{epoch} {name}".encode())

    def covering(self, checkpoint_id: int, *epochs: int) -> SinkTransaction:
        files = [
            StagedFile(
                f"{staged_directory(JOB, SINK, ATTEMPT, epoch)}/{name}",
                final_name(JOB, SINK, ATTEMPT, epoch, name),
                len(f"{epoch} {name}"),
            )
            for epoch in epochs
            for name in ("part-0.parquet", "part-1.parquet")
        ]
        return SinkTransaction(
            job_id=JOB, sink=SINK, root=f"objects://{self.root}", checkpoint_id=checkpoint_id, files=tuple(files)
        )

    async def acknowledge(self, transaction: SinkTransaction) -> None:
        await stage(self.storages, transaction, self.attempt, self.known)
        await make_durable(self.storages, transaction)

    def visible(self) -> list[str]:
        return sorted(path.read_text() for path in self.root.glob("part-*"))

    def waiting(self) -> list[str]:
        return [path.name for path in files_below(Path(self.attempt)) if not path.name.startswith("_")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_files_are_in_the_storage_before_their_checkpoint_is_acknowledged(bench: Bench) -> None:
    """Files are never only on the TaskManager. Each is uploaded once, however many checkpoints carry it (J12)."""
    bench.write(0, 1)
    first = bench.covering(1, 0)
    await bench.acknowledge(first)
    assert len(bench.waiting()) == 2, "of micro-batch 1"
    both = bench.covering(2, 0, 1)
    before = bench.storage.requests
    await bench.acknowledge(first)
    again = bench.storage.requests - before
    await bench.acknowledge(both)
    assert again <= len(first.files), "looked at, and not written again"
    assert bench.waiting() == []
    assert bench.visible() == []
    for transaction in (first, both):
        await publish(bench.storages, transaction)
    assert bench.visible() == [f"{epoch} part-{n}.parquet" for epoch in (0, 1) for n in (0, 1)]


async def test_an_upload_that_fails_is_done_by_the_next_checkpoint(bench: Bench) -> None:
    """The file stays on the TaskManager's disk until the storage has all of it (C12, J12)."""
    bench.write(0)
    transaction = bench.covering(1, 0)
    bench.storage.fail_at = bench.storage.requests + 2
    with pytest.raises(StorageUnavailable):
        await bench.acknowledge(transaction)
    assert bench.waiting() != []
    bench.storage.fail_at = None
    await bench.acknowledge(bench.covering(2, 0))
    await publish(bench.storages, bench.covering(2, 0))
    assert len(bench.visible()) == 2


async def test_a_file_that_waits_nowhere_cannot_be_acknowledged(bench: Bench) -> None:
    """The TaskManager's disk has lost it (J12)."""
    bench.write(0)
    (waiting, *_) = [p for p in files_below(Path(bench.attempt)) if p.name == "part-0.parquet"]
    waiting.unlink()
    with pytest.raises(ObjectNotFound, match=r"part-0\.parquet"):
        await bench.acknowledge(bench.covering(1, 0))


@pytest.mark.parametrize(
    ("root", "direct"),
    [("/data/out", True), ("file:///data/out", True), ("hdfs://host:8020/out", True), ("s3://bucket/out", False)],
)
def test_spark_writes_where_it_has_a_client(root: str, direct: bool) -> None:
    assert spark_writes(root) is direct
