"""How a session child is started under another user (`taskmanager.run-as`, E44).

`setpriv` of util-linux changes the user, drops all groups and capabilities, and executes the child. So no code of ours
runs between a fork and an exec. The child and what it starts can never gain a right again (no_new_privs).

Of the supervisor, the child has one socket and the open log. Everything else that they share is below
`taskmanager.state.local.root-dir`, which belongs to the session's user. The supervisor uses these files in threads that
have the user's rights only (`minflinkd.runtime.system_user`), so a link that user code puts there leads nowhere else.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from minflinkd.runtime import private_files
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.system_user import SystemUser, call_as, may_act_as_others, system_user

TIMEOUT = 120.0  # seconds for importing our package; long, since a booting machine starts dozens of processes

_KEPT = (private_files.VARIABLE, "MINFLINKD_CRASH_AT", "MINFLINKD_TASKMANAGER_TOKEN")
_SECRETS = "MINFLINKD_SECRET_"  # of jobs: see `session.job_secrets`
_DROPPED = ("XDG_", "SUDO_", "SSH_", "DBUS_")
_OF_THE_DAEMON = frozenset(
    {
        "CREDENTIALS_DIRECTORY",
        "STATE_DIRECTORY",
        "RUNTIME_DIRECTORY",
        "CONFIGURATION_DIRECTORY",
        "CACHE_DIRECTORY",
        "LOGS_DIRECTORY",
        "NOTIFY_SOCKET",
        "TMPDIR",
        "MAIL",
    }
)


class CannotRunAs(MinflinkError):
    """Sessions cannot run as the user that `taskmanager.run-as` names."""

    code = "run-as"


def prefix(user: SystemUser, program: str, *, root: bool) -> tuple[str, ...]:
    """Return what goes before a command so that it runs as the user. `program`: setpriv. Pure.

    Only root may empty the bounding set. Without it, no_new_privs has the same effect.
    """
    bounding = ("--bounding-set=-all",) if root else ()
    ids = (f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups")
    return (program, *ids, "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all", *bounding, "--")


def environ_of(user: SystemUser, environ: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the environment of a session: without options of the daemon, and paths of its user. Pure."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _OF_THE_DAEMON
        and not name.startswith(_DROPPED)
        and (not name.startswith("MINFLINKD_") or name in _KEPT or name.startswith(_SECRETS))
    }
    return kept | {"HOME": home, "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/sh"}


def launching(name: str, home: Path) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """Return what goes before a session's command, and its environment; None: this process's.

    `home`: the HOME of a user who has none. Raises NoSuchUser, CannotRunAs.
    """
    if not name:
        return (), None
    user = system_user(name)
    found = user.home if Path(user.home).is_dir() else str(home)
    return prefix(user, _setpriv(), root=os.geteuid() == 0), environ_of(user, os.environ, found)


def check_run_as(name: str, root: str) -> None:
    """Check that sessions can run as the user. Blocks for half a second: the user's Python imports our package.

    `name` is `taskmanager.run-as`; `root` is `taskmanager.state.local.root-dir`. Raises NoSuchUser, CannotRunAs.
    """
    if not name:
        return
    user = system_user(name)
    if user.uid in (0, os.geteuid()):
        raise CannotRunAs(
            f"taskmanager.run-as: {name} is {'root' if user.uid == 0 else 'the user of the daemon itself'}",
            hint="name a user that has nothing else to do, or leave the option empty",
        )
    if not may_act_as_others():
        raise CannotRunAs(
            f"taskmanager.run-as: this process may not run sessions as {name}: it is neither root, nor does it have "
            "CAP_SETUID, CAP_SETGID and CAP_KILL",
            hint="for a systemd unit, install the drop-in systemd/run-as.conf; or leave the option empty",
        )
    launch = (*prefix(user, _setpriv(), root=os.geteuid() == 0), *_IMPORT)
    if problem := call_as(user, lambda: directory_problem(Path(root), user)):
        raise CannotRunAs(
            f"taskmanager.state.local.root-dir: {problem}",
            hint=f"install -d -o {name} -m 700 {root}",
        )
    _try(launch, user)


# The shell executes Python a second time, as Spark does for its workers: when setpriv executes a program, it still has
# the rights to reach it. It does not import pyspark, which would take seconds.
_IMPORT: Sequence[str] = (
    *("/bin/sh", "-c", 'exec "$0" "$@"', sys.executable, "-c"),
    "import importlib.util, minflinkd.taskmanager.session.__main__; open(importlib.util.find_spec('pyspark').origin)",
)


def directory_problem(root: Path, user: SystemUser) -> str:
    """Return why sessions of the user cannot have their files in this directory; empty: they can."""
    try:
        found = root.stat()
    except OSError as error:
        return f"the user {user.name} does not reach {root}: {error.strerror or error}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{root} is no directory"
    if found.st_uid != user.uid:
        return f"{root} does not belong to {user.name}, the user of taskmanager.run-as"
    if found.st_mode & 0o077:
        return f"{root} is open to other users than {user.name} (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def _try(command: Sequence[str], user: SystemUser) -> None:
    """Raises CannotRunAs."""
    try:
        tried = subprocess.run(
            command,
            cwd="/",
            env=environ_of(user, os.environ, "/"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRunAs(f"taskmanager.run-as: Python cannot be started as {user.name}: {error}") from error
    if tried.returncode != 0:
        words = tried.stderr.strip().rpartition("\n")[2] or f"exit code {tried.returncode}"
        raise CannotRunAs(
            f"taskmanager.run-as: {user.name} cannot run {sys.executable} with minflinkd and pyspark: {words}",
            hint="install both where every user can read them, for example in /opt, not below a home directory",
        )


def _setpriv() -> str:
    """Raises CannotRunAs."""
    found = shutil.which("setpriv")
    if found is None:
        raise CannotRunAs("taskmanager.run-as needs the program setpriv", hint="install util-linux")
    return found
