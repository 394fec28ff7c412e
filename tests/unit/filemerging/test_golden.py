"""Every checkpoint, its metadata and physical files, stays readable for ever (F9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.checkpoint.metadata import MetadataTooNew, decode
from minflinkd.checkpoint.store import read_checkpoint
from minflinkd.filemerging.reader import read_segments
from minflinkd.storage.registry import Storages

GOLDEN = Path(__file__).parent / "golden" / "checkpoint-v1"  # never written anew
FILES = {
    "offsets/7": b'v1\n{"batchWatermarkMs":0}\n{"logOffset":7}',
    "state/0/0/1.changelog": bytes(range(256)),
    "state/0/0/empty": b"",
    "commits/7": b"v1\n{}",
}


async def test_a_checkpoint_of_version_1_is_still_restored(tmp_path: Path) -> None:
    """The state in two physical files is restored byte for byte (F9)."""
    root = Storages().at(f"file://{GOLDEN}")
    checkpoint = await read_checkpoint(root.child("chk-7/_metadata"))
    [task] = checkpoint.tasks
    assert checkpoint.physical_files() == {path.name for path in GOLDEN.glob("*.seg")}
    await read_segments(root, {file.path: file.handle for file in task.files}, tmp_path)
    assert {path: (tmp_path / path).read_bytes() for path in FILES} == FILES


def test_physical_files_of_a_later_version_are_refused_by_the_metadata_that_names_them() -> None:
    """A reader that does not know the version reads neither, and the error says what to do (F9)."""
    later = (GOLDEN / "chk-7" / "_metadata").read_bytes().replace(b"checkpoint 1 ", b"checkpoint 2 ", 1)
    with pytest.raises(MetadataTooNew, match="version 2") as refused:
        decode(later)
    assert refused.value.info().code == "checkpoint-metadata-too-new"
    assert refused.value.info().hint == "restore with the minflinkd that wrote it, or a later one"
