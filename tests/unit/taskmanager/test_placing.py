"""The same file in a second place, by a link or by a copy (C11)."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minflinkd.taskmanager.placing import link_or_copy

MEMORY = Path("/dev/shm")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than `tmp_path`."""
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture(params=[0, 5, 3 * (1 << 20) + 7])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "1_a.changelog"
    path.write_bytes(os.urandom(request.param))
    return path


def test_a_file_is_linked_where_that_can_be_done(source: Path, tmp_path: Path) -> None:
    """No byte is copied (C11)."""
    assert link_or_copy(source, tmp_path / "link") == source.stat().st_size
    assert (tmp_path / "link").samefile(source)


def test_a_file_is_copied_to_another_file_system(source: Path, elsewhere: Path) -> None:
    """C11."""
    assert link_or_copy(source, elsewhere / "copy") == source.stat().st_size
    assert (elsewhere / "copy").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("reason", [errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_a_file_is_copied_where_no_link_can_be_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int, inside: bool
) -> None:
    """A file is copied even if the file system cannot copy by itself (C11)."""
    monkeypatch.setattr(os, "link", refusing(reason))
    if not inside:
        monkeypatch.setattr(os, "copy_file_range", refusing(errno.EXDEV))
    assert link_or_copy(source, tmp_path / "copy") == source.stat().st_size
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert not (tmp_path / "copy").samefile(source)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever looks like a state file is a whole one (C11)."""
    (tmp_path / "a").write_bytes(b"state")
    monkeypatch.setattr(os, "link", refusing(errno.EPERM))
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        link_or_copy(tmp_path / "a", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_a_file_that_maintenance_has_deleted_is_missed(tmp_path: Path) -> None:
    """The files of the snapshot are then computed again (C11)."""
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "a", tmp_path / "b")


def refusing(reason: int) -> Any:
    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    return refuse
