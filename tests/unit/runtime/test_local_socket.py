"""Who may use the Unix socket of the HTTP endpoint, and where it is (E40)."""

from __future__ import annotations

import grp
import os
import pwd
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from minflinkd.runtime import local_socket
from minflinkd.runtime.local_socket import Admitted, Peer, admitted, directories, directory, find, peer_of


@pytest.mark.parametrize(
    ("uid", "groups", "let_in"),
    [(0, {0}, True), (990, {990}, True), (1000, {1000, 991}, True), (1000, {1000}, False), (1000, {0}, False)],
)
def test_root_the_daemons_user_and_its_group_are_let_in(uid: int, groups: set[int], let_in: bool) -> None:
    assert Admitted(990, 991).admits(Peer(uid, frozenset(groups))) is let_in


def test_without_a_group_of_its_own_only_root_and_the_user_are_let_in() -> None:
    assert not Admitted(990).admits(Peer(1000, frozenset({1000, 990})))


@pytest.mark.parametrize(
    ("gid", "group", "counts"), [(990, "minflinkd", True), (100, "users", False), (0, "root", False)]
)
def test_a_primary_group_counts_only_if_it_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch, gid: int, group: str, counts: bool
) -> None:
    """`users` has every user in it, and `root` has in some containers, too (E40)."""
    monkeypatch.setattr(os, "getegid", lambda: gid)
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=group))
    name = "root" if gid == 0 else "minflinkd"
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name=name))
    assert admitted().group == (gid if counts else None)


def test_a_group_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        admitted("no-such-group-here")


class Options:
    """A socket whose peer is as given. An empty `groups`: the kernel does not say them."""

    def __init__(self, uid: int, gid: int, groups: tuple[int, ...]) -> None:
        self._credentials = struct.pack("3i", 4711, uid, gid)
        self._groups = struct.pack(f"{len(groups)}I", *groups)

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        if option == 17:  # SO_PEERCRED
            return self._credentials
        if not self._groups:
            raise OSError("not here")
        return self._groups


def test_a_peer_has_its_primary_and_its_other_groups() -> None:
    assert peer_of(Options(1000, 100, (27, 991))) == Peer(1000, frozenset({100, 27, 991}))
    assert peer_of(Options(1000, 100, ())) == Peer(1000, frozenset({100}))


def test_a_daemon_uses_systemds_directory_then_its_users() -> None:
    tmp = Path(f"/tmp/minflinkd-{os.geteuid()}")
    assert directory({"RUNTIME_DIRECTORY": "/run/minflinkd:/run/more"}) == Path("/run/minflinkd")
    assert directory({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/minflinkd")
    assert directory({}) == tmp
    assert {tmp, Path("/run/minflinkd")} <= set(directories({"XDG_RUNTIME_DIR": "/run/user/7"}))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_directory_into_which_others_can_put_a_socket_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    """Whoever answers there would get the user's jobs (E40)."""
    monkeypatch.setattr(local_socket, "directories", lambda _: (tmp_path / "d",))
    (tmp_path / "d").mkdir(mode=0o700)
    os.mknod(tmp_path / "d" / "http-8081.sock", 0o140600)  # a socket
    assert find(8081, {}) == tmp_path / "d" / "http-8081.sock"
    (tmp_path / "d").chmod(mode)
    assert find(8081, {}) is None


def test_a_link_to_a_directory_and_a_file_that_is_no_socket_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_socket, "directories", lambda _: (tmp_path / "link", tmp_path / "files"))
    for name in ("real", "files"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mknod(tmp_path / "real" / "http-8081.sock", 0o140600)
    (tmp_path / "files" / "http-8081.sock").touch()
    assert find(8081, {}) is None
