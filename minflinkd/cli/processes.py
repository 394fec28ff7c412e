"""Whether a process on the daemon's host is still alive, for commands that wait for its end."""

from __future__ import annotations

from urllib.parse import urlsplit

_HERE = frozenset({"127.0.0.1", "::1", "localhost"})


def lives_here(url: str, pid: int, name: str = "") -> bool:
    """Whether the daemon at `url` is on this host, and the process is alive and has `name` in its command line.

    `name` tells it from another process with the same pid, for example if the TaskManager runs on another host.
    """
    import psutil  # slow to import

    if urlsplit(url).hostname not in _HERE:
        return False
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and name in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
