"""Which files make a snapshot (C11): pure, over listings as Spark leaves them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.taskmanager.child.protocol import SnapshotFailed
from minflinkd.taskmanager.session.state import snapshot

STORE = "state/0/0"


def uid(version: int) -> str:
    return str(UUID(int=version))


def changelog(version: int) -> str:
    return f"{STORE}/{version}_{uid(version)}.changelog"


def base(version: int) -> str:
    return f"{STORE}/{version}_{uid(version)}.zip"


def sst(path: str) -> list[str]:
    return [Path(path).name.replace(".zip", ".sst")]


def directory(batches: int, zips: set[int], sources: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    """Return what a query with one store has written after `batches` micro-batches. The next one is in progress."""
    files = {"metadata", f"{STORE}/_metadata/schema", "state/0/_metadata/metadata"} | sources
    files |= {f"commits/{batch}" for batch in range(batches)} | {f"offsets/{batch}" for batch in range(batches + 1)}
    files |= {changelog(version) for version in range(1, batches + 2)}
    return files | {base(v) for v in zips} | {f"{STORE}/SSTs/{name}" for v in zips for name in sst(base(v))}


def close(files: set[str], batch: int, offset: str | None = None) -> set[str]:
    offsets = snapshot.OffsetEntry({}, (offset,))
    return snapshot.closure(files, batch, offsets, snapshot.CommitEntry(0, {"0": [[uid(batch + 1)]]}), sst)


@given(st.data())
def test_a_closure_is_the_latest_base_and_every_changelog_since(data: st.DataObject) -> None:
    """A closure has exactly those, and nothing newer than the batch (C11)."""
    batches = data.draw(st.integers(1, 30))
    zips = data.draw(st.sets(st.integers(1, batches + 1)))
    batch = data.draw(st.integers(0, batches - 1))
    found = close(directory(batches, zips), batch)
    first = max((version for version in zips if version <= batch + 1), default=0)
    state = {path for path in found if path.startswith(STORE) and "_metadata" not in path and "SSTs" not in path}
    wanted = {changelog(version) for version in range(max(first, 1), batch + 2)}
    assert state == wanted | ({base(first)} if first else set())
    logs = {f"{log}/{number}" for log in ("offsets", "commits") for number in (batch - 1, batch) if number >= 0}
    assert {path for path in found if path.startswith(("offsets", "commits"))} == logs
    assert {"metadata", f"{STORE}/_metadata/schema", "state/0/_metadata/metadata"} <= found


def test_a_source_that_is_read_twice_has_one_log_and_two_offsets() -> None:
    """Spark writes a line of the offset log for each place that reads it, but only one directory (C11)."""
    logs = {f"sources/0/{number}" for number in range(4)} | {f"sources/1/{number}" for number in range(2)}
    offsets = snapshot.OffsetEntry({}, ('{"logOffset":2}', '{"logOffset":2}', '{"logOffset":1}'))
    commit = snapshot.CommitEntry(0, {"0": [[uid(5)]]})
    found = snapshot.closure(directory(6, set(), logs), 4, offsets, commit, sst, {0: 0, 1: 0, 2: 1})
    assert {path for path in found if path.startswith("sources")} == logs - {"sources/0/3"}


def test_a_base_without_all_of_its_files_is_not_used() -> None:
    """After maintenance has deleted an SST file, an older base with its changelogs still restores (C11)."""
    files = directory(9, {3, 7}) - {f"{STORE}/SSTs/{sst(base(7))[0]}"}
    found = close(files, 8)
    assert base(3) in found
    assert base(7) not in found
    assert {changelog(version) for version in range(3, 10)} <= found


@pytest.mark.parametrize("gone", [changelog(8), changelog(9), "offsets/7", "commits/8", "metadata"])
def test_a_closure_with_a_hole_is_refused(gone: str) -> None:
    """A snapshot that cannot be restored is found at once, and the gap is named (C11)."""
    with pytest.raises(SnapshotFailed, match=r"missing|no changelog|no version"):
        close(directory(9, {3, 7}) - {gone}, 8)


def test_the_head_must_be_the_committed_one() -> None:
    """Another version of the same number, by a task that was retried, does not count (C10a)."""
    files = directory(3, set()) - {changelog(3)} | {f"{STORE}/3_{uid(99)}.changelog"}
    with pytest.raises(SnapshotFailed, match="committed id"):
        close(files, 2)


@pytest.mark.parametrize(
    ("position", "wanted"),
    [(2, {"0", "1", "2"}), (9, {"9.compact"}), (11, {"9.compact", "10", "11"})],
)
def test_a_file_source_s_log_is_cut_at_its_offset(position: int, wanted: set[str]) -> None:
    """Entries of a micro-batch that is only planned stay out. A compacted log needs nothing before it (C11)."""
    names = {*map(str, range(13)), "9.compact"} - {"9"}
    files = directory(3, set(), {f"sources/0/{name}" for name in names})
    found = close(files, 2, f'{{"logOffset":{position}}}')
    assert {path.removeprefix("sources/0/") for path in found if path.startswith("sources")} == wanted


def test_a_boundary_is_read_from_both_logs() -> None:
    """Temporary files are not entries (C11)."""
    assert snapshot.boundary(["0", "1", ".2.tmp"], ["0", ".1.tmp"]) == snapshot.Boundary(1, 0)
    assert snapshot.boundary([], []) == snapshot.Boundary(-1, -1)
