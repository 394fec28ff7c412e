"""The metadata file: read as it was written, refused when damaged, and readable for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.checkpoint.layout import InvalidPhysicalFile, parse_physical_file
from minflinkd.checkpoint.metadata import CorruptMetadata, MetadataTooNew, decode, encode, restore_point
from minflinkd.storage.publication import SinkTransaction, StagedFile
from tests.unit.checkpoint.builders import A1, B1, JOB, A, B, completed, name, snapshot

GOLDEN = Path(__file__).parent / "golden" / "metadata-v1"


def transaction(checkpoint_id: int) -> SinkTransaction:
    return SinkTransaction(
        job_id=JOB, sink="out", root="file:///out", checkpoint_id=checkpoint_id, files=(StagedFile("s", "f", 3),)
    )


def test_what_is_written_is_read_back() -> None:
    """Metadata is one file with a version and a checksum (C22)."""
    checkpoint = completed(7, snapshot(7, A, A1, transactions=(transaction(7),)), snapshot(7, B, B1))
    assert decode(encode(checkpoint)) == checkpoint


def test_metadata_of_version_1_is_still_read() -> None:
    """A file that was once written is readable for ever. This version is no longer written (F9)."""
    zeros = "0" * 32
    assert decode(GOLDEN.read_bytes()) == completed(
        7, snapshot(7, A, A1, transactions=(transaction(7),), digest=zeros), snapshot(7, B, B1, digest=zeros)
    )


@given(st.data())
def test_a_damaged_file_is_never_taken_for_a_checkpoint(data: st.DataObject) -> None:
    """Any byte may have changed, or any tail may be missing (C25)."""
    whole = encode(completed(7))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    damaged = data.draw(st.sampled_from([whole[:at], whole[:at] + flipped + whole[at + 1 :]]))
    with pytest.raises((CorruptMetadata, MetadataTooNew)):
        decode(damaged)


def test_a_later_version_is_no_damage() -> None:
    """The error says what to do, and nobody sets the file aside (F9)."""
    with pytest.raises(MetadataTooNew, match="version 2"):
        decode(encode(completed(7)).replace(b"checkpoint 1 ", b"checkpoint 2 ", 1))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}", b"minflinkd-checkpoint 0 xxh3-128:" + b"0" * 32 + b" 0\n"])
def test_something_else_is_no_checkpoint(data: bytes) -> None:
    """A file under the metadata's name that is something else is refused (C25)."""
    with pytest.raises(CorruptMetadata):
        decode(data)


def test_a_restore_publishes_what_earlier_checkpoints_still_owe_in_their_order() -> None:
    """Publication is repeated from the snapshots until it is confirmed. Each transaction appears once (J12)."""
    first = completed(3, snapshot(3, A, A1, transactions=(transaction(3),)))
    second = completed(4, snapshot(4, A, A1, transactions=(transaction(3), transaction(4))), snapshot(4, B, B1))
    point = restore_point((first, second))
    assert point is not None
    assert point.checkpoint_id == 4
    assert [task.transactions for task in point.tasks] == [(transaction(3), transaction(4)), ()]
    assert restore_point(()) is None


def test_a_physical_file_is_known_by_the_name_that_its_writer_gave() -> None:
    """The name states the epoch and the checkpoint. A name that could lead elsewhere is refused (F5, A11)."""
    assert parse_physical_file(name(12, A1, 3, epoch=4)) == (4, 12)
    for wrong in ("", "x.seg", "../" + name(1, A1), name(1, A1) + "/..", "chk-1/_metadata"):
        with pytest.raises(InvalidPhysicalFile):
            parse_physical_file(wrong)
