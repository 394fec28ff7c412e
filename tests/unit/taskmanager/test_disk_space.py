"""Whether the disks of a task have room for another micro-batch (A14)."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

from minflinkd.jobgraph.model import Sink, Vertex
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.query.disk_space import DiskSpace, written_to

MIB = 2**20
Usage = namedtuple("Usage", "total free")


class Disks(dict[Path, Usage]):
    def __call__(self, directory: Path) -> Usage:
        return self[directory]


def test_a_disk_with_less_than_must_stay_free_is_named(tmp_path: Path) -> None:
    """It says how much there is, and how much there should be. What is not full is not mentioned."""
    (full := tmp_path / "full").mkdir()
    disks = Disks({tmp_path: Usage(10_000 * MIB, 900 * MIB), full: Usage(10_000 * MIB, 99 * MIB)})
    space = DiskSpace([tmp_path, full], 100 * MIB, usage=disks)
    assert space.lacking() == f"99 MiB are free in {full}, 100 MiB must stay free"
    disks[full] = Usage(10_000 * MIB, 100 * MIB)
    assert space.lacking() == ""


def test_on_a_small_disk_a_tenth_is_enough(tmp_path: Path) -> None:
    """A memory file system of 200 MiB must not be held to what a disk of 1 TiB is."""
    disks = Disks({tmp_path: Usage(200 * MIB, 20 * MIB)})
    space = DiskSpace([tmp_path], 256 * MIB, usage=disks)
    assert space.lacking() == ""
    disks[tmp_path] = Usage(200 * MIB, 19 * MIB)
    assert space.lacking().startswith("19 MiB are free")


def test_nobody_looks_at_a_disk_if_nothing_must_stay_free(tmp_path: Path) -> None:
    """0 turns it off."""
    assert DiskSpace([tmp_path], 0, usage=Disks()).lacking() == ""


def test_a_directory_that_is_to_be_made_counts_as_the_one_in_which_it_will_be(tmp_path: Path) -> None:
    """A sink's directory is made with its first rows."""
    disks = Disks({tmp_path: Usage(10_000 * MIB, 0)})
    assert str(tmp_path / "a/b") in DiskSpace([tmp_path / "a/b"], MIB, usage=disks).lacking()


def test_a_disk_that_cannot_be_asked_holds_nothing_back(tmp_path: Path) -> None:
    """The next write there says what is wrong."""

    def failing(_: Path) -> Usage:
        raise OSError("stale file handle")

    assert DiskSpace([tmp_path], MIB, usage=failing).lacking() == ""


def test_a_task_writes_to_its_own_directory_and_to_sinks_on_local_paths() -> None:
    """Other storages have limits of their own, and their files wait in the task's directory."""

    def sink(path: str) -> Vertex:
        return Vertex(id=VertexId("out"), inputs=(), sink=Sink(format="parquet", path=path))

    found = written_to("/state/attempts/1", [sink("/data/a"), sink("file:///data/b%20c"), sink("s3://bucket/d")])
    assert found == [Path("/state/attempts/1"), Path("/data/a"), Path("/data/b c")]
