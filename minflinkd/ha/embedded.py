"""`high-availability.type: none`: one daemon leads by holding its state directory (A10, A11).

lock           held (flock) as long as the daemon lives; a second one is refused
state-version  the directory's format; a daemon that does not know the format refuses the directory (`state_format`)
epoch          how often the directory was taken; part of the names of all that this leader writes
cluster.id     marks what belongs to this cluster in storage that it shares with others
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from minflinkd.ha import state_format
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.private_files import close_to_others, write_whole

log = structlog.get_logger(__name__)

SECRET_BYTES = 32  # as TaskManagers require
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DIRECTORY = (errno.EEXIST, errno.ENOTDIR)
_EPOCH = re.compile(rb"[0-9]{1,15}")
_CLUSTER_ID = re.compile(r"[0-9a-f]{32}")


class StateDirectoryTaken(MinflinkError):
    code = "state-directory-taken"
    consequence = Consequence.REFUSED


class UnusableStateDirectory(MinflinkError):
    """The state directory cannot be made, read or written."""

    code = "unusable-state-directory"


class UnusableEpoch(MinflinkError):
    code = "unusable-epoch"
    consequence = Consequence.REFUSED


class UnusableSecret(MinflinkError):
    code = "unusable-secret"
    consequence = Consequence.REFUSED


class StateDirectory:
    """Taken by `take`, given back by `release` or by the end of the process. Blocking, but quick."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self) -> int:
        """Take the directory. Return the epoch of this leadership, higher than every earlier one.

        Raises StateDirectoryTaken, UnusableStateDirectory, UnusableEpoch, StateDirectoryNewer, UnusableStateVersion.
        """
        with usable(self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if open_to := close_to_others(self.path):
                log.warning("the state directory was open to other users", path=str(self.path), mode=f"{open_to:o}")
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StateDirectoryTaken(
                f"another daemon uses the state directory {self.path}",
                hint="stop it, or give this one a directory of its own (process.working-dir)",
            ) from error
        self._lock = lock
        try:
            with usable(self.path):
                # This comes first: the directory of a later version stays untouched, and an earlier version is kept out
                # before anything is written in the new format.
                if not state_format.require_known(self.path):
                    write_whole(self.path / state_format.FILE, state_format.content(), 0o600)
                epoch = self._last_epoch() + 1
                write_whole(self.path / "epoch", f"{epoch}\n".encode(), 0o600)
        except BaseException:
            self.release()
            raise
        return epoch

    @property
    def held(self) -> bool:
        """Whether this process leads."""
        return self._lock is not None

    def release(self) -> None:
        """Give the directory back. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _last_epoch(self) -> int:
        path = self.path / "epoch"
        try:
            found = path.read_bytes().strip()
        except FileNotFoundError:
            return 0
        if not _EPOCH.fullmatch(found):
            raise UnusableEpoch(
                f"{path} holds {found[:80]!r}, which is no epoch",
                hint="put a number into it that is higher than every earlier one: names in checkpoints begin with it",
            )
        return int(found)


class UnusableClusterId(MinflinkError):
    code = "unusable-cluster-id"
    consequence = Consequence.REFUSED


def cluster_id(state: Path) -> str:
    """Return the cluster's id, made on first use. Raises UnusableClusterId, UnusableStateDirectory."""
    path = state / "cluster.id"
    with usable(state):
        if not path.exists():
            write_whole(path, f"{secrets.token_hex(16)}\n".encode(), 0o600)
        found = path.read_bytes().decode(errors="replace").strip()
    if not _CLUSTER_ID.fullmatch(found):  # it becomes part of paths
        raise UnusableClusterId(
            f"{path} holds {found[:80]!r}, which is no cluster id",
            hint="restore it: without it the artifacts of stored jobs are not found in high-availability.storageDir",
        )
    return found


def cluster_secret(path: Path, *, shared: bool = False) -> bytes:
    """Return the secret that TaskManagers prove to know. It is made on first use, readable only by its owner.

    A secret that is `shared` with other daemons is not made: theirs would be another one. Raises UnusableSecret.
    """
    try:
        if not path.exists():
            if shared:
                raise UnusableSecret(
                    f"the file of the cluster's secret, {path} (security.secret-file), does not exist",
                    hint="all daemons need the same secret: copy the file from another daemon's host, or make it once "
                    "(openssl rand -hex 32)",
                )
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, secrets.token_hex(32).encode(), 0o600)
        secret = path.read_bytes().strip()
        open_to = path.stat().st_mode & 0o007
    except OSError as error:
        raise UnusableSecret(
            f"the file of the cluster's secret, {path} (security.secret-file), cannot be used: {_why(path, error)}",
            hint="name a file that the daemon's user can read, or leave the option out: one is made then",
        ) from error
    if open_to:
        raise UnusableSecret(
            f"every user of this machine can read or change {path}, the file of the cluster's secret",
            hint=f"take that away (chmod 600 {path}); if somebody may have read it, make a new one",
        )
    if len(secret) < SECRET_BYTES:  # an empty file would let everybody in
        raise UnusableSecret(
            f"{path} holds {len(secret)} bytes; a cluster's secret has at least {SECRET_BYTES}",
            hint="put a longer one into it, or delete it to have one made",
        )
    return secret


@contextmanager
def usable(state: Path) -> Iterator[None]:
    """Raises UnusableStateDirectory for every OSError of the block."""
    try:
        yield
    except OSError as error:
        raise UnusableStateDirectory(
            f"the state directory {state} (process.working-dir, --state-dir) cannot be used: {_why(state, error)}",
            hint="name a directory that this user can make and write to"
            if error.errno not in _NO_SPACE
            else "free space there, or name a directory on another file system",
        ) from error


def _why(path: Path, error: OSError) -> str:
    """Return what is wrong: the part of the path that is in the way, if one is.

    `os.path` raises nothing even if this user may not look there.
    """
    for above in (*reversed(path.parents), path):
        if os.path.exists(above) and not os.path.isdir(above) and (above != path or error.errno in _NO_DIRECTORY):
            return f"{above} is a file"
    failed = str(error.filename or path)
    return f"{failed}: {error.strerror or error}"
