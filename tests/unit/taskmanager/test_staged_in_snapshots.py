"""Files that sinks have staged become part of the snapshots that cover them (C11, K1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.storage.publication import StagedToken
from minflinkd.taskmanager.child.protocol import SnapshotFailed, SnapshotTaken
from minflinkd.taskmanager.session.query import snapshotter
from minflinkd.taskmanager.session.query.snapshotter import with_staged
from minflinkd.taskmanager.session.state.ledger import Ledger

TAKEN = SnapshotTaken(batch_id=1, operators=(), wait_ms=0, sync_ms=0)


class Sink:
    """Stages one file for each micro-batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = Ledger("job", "out")

    def stage(self, epoch: int) -> None:
        path = self.directory / "staged" / self.path(epoch)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * (epoch + 1))
        self.ledger.stage(epoch, tokens=(StagedToken("attempt", epoch, "{}", (self.path(epoch),)),))

    def path(self, epoch: int) -> str:
        return f"sinks/out/{epoch}.parquet"

    def snapshot(self) -> SnapshotTaken:
        return with_staged(TAKEN, 7, [self.ledger], self.directory / "staged", self.directory / "target")


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    sink = Sink(tmp_path)
    for epoch in range(3):
        sink.stage(epoch)
    return sink


def in_target(tmp_path: Path) -> list[str]:
    target = tmp_path / "target"
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def test_a_snapshot_has_the_files_that_it_covers(sink: Sink, tmp_path: Path) -> None:
    """Those of later micro-batches belong to a later snapshot."""
    taken = sink.snapshot()
    assert [(file.path, file.size) for file in taken.files] == [(sink.path(0), 1), (sink.path(1), 2)]
    assert in_target(tmp_path) == [sink.path(0), sink.path(1)]
    assert [token.epoch for token in taken.transactions[0].tokens] == [0, 1]


def test_a_file_that_is_committed_meanwhile_is_left_out(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit deletes the file, and then the ledger forgets it. In between the snapshot waits for the ledger."""
    (tmp_path / "staged" / sink.path(1)).unlink()
    monkeypatch.setattr(snapshotter.time, "sleep", lambda _: sink.ledger.confirm(1))
    taken = sink.snapshot()
    assert (taken.files, taken.transactions[0].tokens, in_target(tmp_path)) == ((), (), [])


def test_a_file_that_is_gone_fails_the_snapshot(sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could publish its rows after a restore from such a checkpoint."""
    (tmp_path / "staged" / sink.path(1)).unlink()
    monkeypatch.setattr(snapshotter.time, "sleep", lambda _: None)
    with pytest.raises(SnapshotFailed, match=r"are gone: sinks/out/1\.parquet$"):
        sink.snapshot()
