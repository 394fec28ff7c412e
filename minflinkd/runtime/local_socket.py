"""The Unix socket of the HTTP endpoint: where it is, who may connect, and who has connected (E40).

Its name has the endpoint's port, so that the command line finds it by the address of the daemon. Its mode lets in root,
the daemon's user and one group. Who has connected is what the kernel says, not what the client says.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

SYSTEM: Final = Path("/run/minflinkd")  # systemd's RuntimeDirectory=minflinkd; only root makes directories in /run
_PEER: Final = struct.Struct("3i")  # pid, uid, gid
_PEER_GROUPS: Final = 59  # SO_PEERGROUPS, which Python does not name
_MOST: Final = 1024  # bytes that Python lets an option have; enough for 256 groups
_FOREIGN: Final = stat.S_IWGRP | stat.S_IWOTH


class HasOptions(Protocol):
    """What is needed of a socket."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a Unix socket, as it was when it connected."""

    uid: int
    groups: frozenset[int]


@dataclass(frozen=True)
class Admitted:
    """Who may use the socket, besides root: the daemon's `uid`, and the members of `group`, if there is one."""

    uid: int
    group: int | None = None

    def admits(self, peer: Peer) -> bool:
        return peer.uid in (0, self.uid) or (self.group is not None and self.group in peer.groups)


def peer_of(connected: HasOptions) -> Peer:
    """Raises OSError."""
    _, uid, gid = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    groups = frozenset({gid})
    with contextlib.suppress(OSError):  # an old kernel, or more groups than fit: then only the primary one counts
        found = connected.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, _MOST)
        groups |= {group for (group,) in struct.iter_unpack("I", found[: len(found) // 4 * 4])}
    return Peer(uid, groups)


def admitted(group: str = "") -> Admitted:
    """Return who may use the socket of this process. `group` names the group.

    If it is empty, this is the group that has the name of this process's user, if the process is in it: a group of its
    own, such as systemd-sysusers and useradd make. A primary group such as `users` has everybody in it, and `root` has
    in some containers, too, so neither counts by itself. Raises KeyError: there is no such group.
    """
    uid = os.geteuid()
    if group:
        return Admitted(uid, grp.getgrnam(group).gr_gid)
    gid = os.getegid()
    try:
        own = gid if gid != 0 and grp.getgrgid(gid).gr_name == pwd.getpwuid(uid).pw_name else None
    except KeyError:  # a container's user that has no name
        own = None
    return Admitted(uid, own)


def directory(environ: Mapping[str, str]) -> Path:
    """Return where a daemon of this user makes its socket, unless an option says where."""
    if granted := environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(granted)
    return _of_user(environ)[0]


def directories(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where a client of this user looks for sockets. `sudo` and cron leave $XDG_RUNTIME_DIR out."""
    return (*_of_user(environ), Path(f"/run/user/{os.geteuid()}/minflinkd"), SYSTEM)


def _of_user(environ: Mapping[str, str]) -> tuple[Path, ...]:
    in_tmp = Path(f"/tmp/minflinkd-{os.geteuid()}")  # noqa: S108  # nobody trusts it before `_is_own`
    granted = environ.get("XDG_RUNTIME_DIR", "")
    return (Path(granted) / "minflinkd", in_tmp) if granted else (in_tmp,)


def name_of(port: int) -> str:
    return f"http-{port}.sock"


def find(port: int, environ: Mapping[str, str]) -> Path | None:
    """Return the socket of the endpoint at this port of this machine, if there is one that can be trusted."""
    for each in directories(environ):
        path = each / name_of(port)
        with contextlib.suppress(OSError):
            if (_is_systems(each) or _is_own(each)) and stat.S_ISSOCK(path.stat().st_mode):
                return path
    return None


def _is_systems(path: Path) -> bool:
    """Whether root alone can have made the directory. Raises OSError."""
    above = path.parent.lstat()
    return path == SYSTEM and above.st_uid == 0 and not above.st_mode & _FOREIGN


def _is_own(path: Path) -> bool:
    """Whether nobody else can put anything into the directory: in /tmp anybody may have made it. Raises OSError."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _FOREIGN


class LocalSocket:
    """A bound socket, which does not listen yet. `close` removes it, unless another daemon has taken its place."""

    def __init__(self, path: Path, bound: socket.socket) -> None:
        self.path = path
        self.socket = bound
        self._inode = path.stat().st_ino

    @classmethod
    def bind(cls, where: Path, port: int, allowed: Admitted) -> LocalSocket:
        """Blocking, but quick. Raises OSError."""
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        if where.lstat().st_uid == os.geteuid() and where.name.startswith("minflinkd") and not _is_own(where):
            where.chmod(stat.S_IMODE(where.stat().st_mode) & ~_FOREIGN)
        if not _is_own(where):
            raise PermissionError(f"{where} belongs to another user, or others can change it")
        path = where / name_of(port)
        new = path.with_name(f".{port}")  # shorter than the name that it gets, and no other daemon has this port
        new.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.setblocking(False)
            bound.bind(_short(new))
            if allowed.group is not None:
                if where.stat().st_gid != allowed.group:
                    os.chown(where, -1, allowed.group)
                where.chmod(0o750)
                os.chown(new, -1, allowed.group)
            new.chmod(0o600 if allowed.group is None else 0o660)
            new.replace(path)  # what a killed daemon has left goes away
            return cls(path, bound)
        except BaseException:
            bound.close()
            new.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Idempotent."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


def _short(path: Path) -> str:
    """Return the path, or raise OSError with words that say what is wrong with it: the kernel takes 107 bytes."""
    if len(os.fsencode(path)) > 107:
        raise OSError(f"{path} is longer than the name of a socket may be")
    return str(path)
