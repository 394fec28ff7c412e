"""`high-availability: embedded`: one daemon for each state directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.ha.embedded import (
    StateDirectory,
    StateDirectoryTaken,
    UnusableClusterId,
    UnusableEpoch,
    UnusableSecret,
    UnusableStateDirectory,
    cluster_id,
    cluster_secret,
)

NOBODY = 65534


@contextmanager
def closed(directory: Path) -> Iterator[None]:
    """A directory that this process may not enter. Root may enter any, so it is another user meanwhile."""
    directory.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(user)
        directory.chmod(0o700)


def test_a_second_daemon_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    """A10."""
    first, second = StateDirectory(tmp_path / "state"), StateDirectory(tmp_path / "state")
    first.take()
    with pytest.raises(StateDirectoryTaken, match="another daemon uses the state directory"):
        second.take()
    second.release()
    with pytest.raises(StateDirectoryTaken):
        second.take()
    first.release()
    first.release()
    second.take()
    second.release()


def test_every_leadership_has_a_higher_epoch(tmp_path: Path) -> None:
    """The epoch is part of the names of what a leader writes (A11)."""
    epochs = []
    for _ in range(3):
        directory = StateDirectory(tmp_path)
        epochs.append(directory.take())
        directory.release()
    assert epochs == [1, 2, 3]


@pytest.mark.parametrize("damaged", [b"", b"x", b"-1", b"1.5", b"\xff\xfe", b"1_0"])
def test_a_damaged_epoch_is_refused_rather_than_begun_anew(tmp_path: Path, damaged: bytes) -> None:
    """If an epoch were given away twice, two leaders would write under the same names (A11)."""
    (tmp_path / "epoch").write_bytes(damaged)
    directory = StateDirectory(tmp_path)
    with pytest.raises(UnusableEpoch, match="no epoch"):
        directory.take()
    assert not directory.held
    (tmp_path / "epoch").write_bytes(b"7\n")
    assert directory.take() == 8
    directory.release()


def test_a_file_is_written_whole_though_the_kernel_takes_it_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short write is no error to the kernel (A11)."""
    write = os.write
    monkeypatch.setattr("os.write", lambda file, data: write(file, data[:1]))
    assert len(cluster_secret(tmp_path / "secret")) == 64


def test_the_cluster_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        secret = cluster_secret(tmp_path / "new" / "secret")
    finally:
        os.umask(old)
    assert len(secret) == 64
    assert cluster_secret(tmp_path / "new" / "secret") == secret
    assert stat.S_IMODE((tmp_path / "new" / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert cluster_secret(tmp_path / "other") != secret
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "other"]


def test_a_secret_that_other_daemons_share_is_not_made(tmp_path: Path) -> None:
    """It would be another one than theirs, and TaskManagers would not accept this daemon (A13)."""
    with pytest.raises(UnusableSecret, match=r"does not exist .*copy the file"):
        cluster_secret(tmp_path / "secret", shared=True)
    assert not (tmp_path / "secret").exists()
    (tmp_path / "secret").write_bytes(b"s" * 64)
    (tmp_path / "secret").chmod(0o600)
    assert cluster_secret(tmp_path / "secret", shared=True) == b"s" * 64


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 31])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty secret would let everybody in."""
    (tmp_path / "secret").write_bytes(content)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(UnusableSecret, match="at least 32"):
        cluster_secret(tmp_path / "secret")


def test_a_cluster_keeps_its_id_which_no_other_has(tmp_path: Path) -> None:
    """Objects under another cluster's id in a shared storage are not this cluster's to clean up (B19)."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    first = cluster_id(tmp_path / "one")
    assert cluster_id(tmp_path / "one") == first != cluster_id(tmp_path / "other")


@pytest.mark.parametrize("damaged", ["", "../../etc", "0" * 31, "/"])
def test_a_damaged_cluster_id_is_refused_rather_than_replaced(tmp_path: Path, damaged: str) -> None:
    """With a new id the artifacts of stored jobs would not be found (B19)."""
    (tmp_path / "cluster.id").write_text(damaged)
    with pytest.raises(UnusableClusterId):
        cluster_id(tmp_path)


@pytest.mark.parametrize(
    ("take", "error"),
    [
        (lambda state: StateDirectory(state).take(), UnusableStateDirectory),
        (cluster_id, UnusableStateDirectory),
        (lambda state: cluster_secret(state / "secret"), UnusableSecret),
    ],
)
def test_a_directory_in_one_that_may_not_be_entered_is_named_with_its_option(
    tmp_path: Path, take: Callable[[Path], object], error: type[Exception]
) -> None:
    """Looking at such a path raises an error itself, which must not replace the one that is reported."""
    with closed(tmp_path), pytest.raises(error, match="Permission denied"):
        take(tmp_path / "state")


@pytest.mark.parametrize("mode", [0o604, 0o606, 0o646])
def test_a_secret_that_every_user_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """It may be known to somebody already. A group may be let in on purpose (E40)."""
    file = tmp_path / "secret"
    file.write_bytes(b"s" * 64)
    file.chmod(mode)
    with pytest.raises(UnusableSecret, match="every user of this machine can read or change") as refused:
        cluster_secret(file)
    assert f"chmod 600 {file}" in refused.value.hint
    file.chmod(0o640)
    assert cluster_secret(file) == b"s" * 64


def test_a_state_directory_that_others_can_enter_is_closed_to_them(tmp_path: Path) -> None:
    """Records of jobs are in it, with all their options (E40)."""
    tmp_path.chmod(0o755)
    directory = StateDirectory(tmp_path)
    with capture_logs() as logs:
        directory.take()
    directory.release()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750, "its group was let in on purpose"
    assert [(line["event"], line["mode"]) for line in logs] == [("the state directory was open to other users", "5")]
