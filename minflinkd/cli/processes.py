"""Whether a process on the daemon's host is still alive, for commands that wait for its end."""

from __future__ import annotations

from urllib.parse import urlsplit

_HERE = frozenset({"127.0.0.1", "::1", "localhost"})


def lives_here(url: str, pid: int) -> bool:
    """Whether the daemon at `url` is on this host, and the process is alive."""
    import psutil  # slow to import

    if urlsplit(url).hostname not in _HERE:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
