"""Another user of this machine, and threads that use files as that user (`taskmanager.run-as`).

Linux has a user for file access besides the one of the process, in each thread: setfsuid(2). A thread that has taken
the session's user makes files that belong to that user, and reaches no file that this user cannot reach, whatever links
user code has put in its way. For signals and for /proc, the process stays who it is.
"""

from __future__ import annotations

import ctypes
import platform
import pwd
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from minflinkd.runtime.errors import MinflinkError

R = TypeVar("R")

# setgroups(2). The C library's function would change all threads of the process.
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "loongarch64": 159, "ppc64le": 81, "s390x": 206}
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


class NoSuchUser(MinflinkError):
    """This machine has no user of that name."""

    code = "run-as"


@dataclass(frozen=True)
class SystemUser:
    name: str
    uid: int
    gid: int
    home: str


def system_user(name: str) -> SystemUser:
    """Look the user up. Raises NoSuchUser."""
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        raise NoSuchUser(
            f"taskmanager.run-as: this machine has no user {name!r}",
            hint=f"make it (useradd --system --shell /usr/sbin/nologin {name}), or name another one",
        ) from error
    return SystemUser(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir)


def use_files_as(user: SystemUser) -> None:
    """Let this thread use files as the user, with the user's main group only, until it ends.

    Threads that it starts do so, too. Needs CAP_SETUID and CAP_SETGID. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise OSError(f"taskmanager.run-as is not supported on {platform.machine()}")
    dumpable = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    if libc.syscall(number, 0, None) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")
    # They report the value before, and no errors: so the second call tells whether the first one worked.
    for change, wanted in ((libc.setfsgid, user.gid), (libc.setfsuid, user.uid)):
        change.restype = ctypes.c_uint
        change(ctypes.c_uint(wanted))
        if change(ctypes.c_uint(-1)) != wanted:
            raise PermissionError(f"files cannot be used as the user {user.name}: this needs CAP_SETUID and CAP_SETGID")
    # The change hides the process in /proc from its own user, who looks for it there. It stays closed to the other one,
    # since user id and saved id differ.
    if dumpable == 1:
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def call_as(user: SystemUser | None, action: Callable[[], R]) -> R:
    """Call `action` in a thread that uses files as the user. None: here. Blocks. Raises what it raises."""
    if user is None:
        return action()
    results: list[R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            use_files_as(user)
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=f"files of {user.name}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def may_act_as_others() -> bool:
    """Whether this process may run programs as other users, use files as them, and signal their processes."""
    with open("/proc/self/status", encoding="ascii") as status:
        lines = dict(line.split(":", 1) for line in status if ":" in line)
    return has_capabilities(int(lines["CapEff"], 16))


def has_capabilities(effective: int) -> bool:
    """Whether a set of capabilities has CAP_KILL, CAP_SETGID and CAP_SETUID. Pure."""
    return all(effective >> bit & 1 for bit in (5, 6, 7))
