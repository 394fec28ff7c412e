"""The format of a state directory: which versions may work on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd import __version__
from minflinkd.ha import state_format
from minflinkd.ha.embedded import StateDirectory
from minflinkd.ha.state_format import FILE, FORMAT, StateDirectoryNewer, UnusableStateVersion


def taken(state: Path) -> int:
    directory = StateDirectory(state)
    try:
        return directory.take()
    finally:
        directory.release()


@pytest.mark.parametrize("before", [None, b"1\n", f"{FORMAT} 0.0.1\n".encode(), f"{FORMAT} 99.0.0\n".encode()])
def test_the_directory_says_which_version_used_it_last(tmp_path: Path, before: bytes | None) -> None:
    """Also one without the file, and one of a later minflinkd with the same format (A15c)."""
    if before is not None:
        (tmp_path / FILE).write_bytes(before)
    taken(tmp_path)
    assert (tmp_path / FILE).read_text() == f"{FORMAT} {__version__}\n"


def test_the_file_is_written_only_when_it_changes(tmp_path: Path) -> None:
    taken(tmp_path)
    written = (tmp_path / FILE).stat()
    assert taken(tmp_path) == 2
    assert (tmp_path / FILE).stat().st_ino == written.st_ino


def test_an_earlier_daemon_is_kept_out_by_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first start on, whatever it has written by then (A15c)."""
    taken(tmp_path)
    with monkeypatch.context() as later:
        later.setattr(state_format, "FORMAT", FORMAT + 1)
        later.setattr(state_format, "__version__", "9.1.0")
        assert taken(tmp_path) == 2  # it reads the earlier format
    with pytest.raises(StateDirectoryNewer, match=r"written by minflinkd 9\.1\.0") as refused:
        taken(tmp_path)
    assert "start minflinkd 9.1.0 or later again" in refused.value.hint
    assert (tmp_path / "epoch").read_text() == "2\n"


@pytest.mark.parametrize("damaged", [b"", b"x", b"0 0.1.0", b"-1", b"1.5", b"\xff\xfe", b"1 0.1.0 x"])
def test_a_damaged_version_is_refused_rather_than_guessed(tmp_path: Path, damaged: bytes) -> None:
    """A15c."""
    (tmp_path / FILE).write_bytes(damaged)
    with pytest.raises(UnusableStateVersion, match="not the version of a state directory"):
        taken(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", FILE]
