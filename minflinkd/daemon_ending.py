"""How a daemon ends when it is told to: do its TaskManagers and tasks end with it (A15)?

Example: `systemctl stop` and `systemctl restart` both send SIGTERM. After a stop nothing may be left running. After a
restart the next daemon is up within seconds, and adopts the tasks. systemd knows which of the two it is doing: it has a
job of type `stop` or `restart` for the unit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import structlog

ANSWER_TIMEOUT = 5.0  # seconds for systemd to say what it is doing
CGROUP = Path("/proc/self/cgroup")

log = structlog.get_logger(__name__)


class Ending(StrEnum):
    STOP = "stop"  # everything ends, after the `on-stop` action
    HANDOVER = "handover"  # TaskManagers and tasks keep running, for the next daemon


async def ending_of_signal(environ: Mapping[str, str], cgroup: Path = CGROUP, *, in_pods: bool = False) -> Ending:
    """Return what SIGTERM means for this process. Without systemd, or if it does not answer, it is a stop.

    `in_pods`: TaskManagers are Pods. Then Kubernetes starts the daemon again after every end, unless its StatefulSet is
    deleted, and the TaskManagers with it.
    """
    if in_pods:
        return Ending.HANDOVER
    if not environ.get("NOTIFY_SOCKET"):
        return Ending.STOP
    try:
        groups = await asyncio.to_thread(cgroup.read_text)
        unit = unit_of(groups)
        if unit is None:
            return Ending.STOP
        return ending_of_jobs(await _jobs_of_systemd(user=is_of_user(groups)), unit)
    except OSError as error:
        log.warning("systemd does not say whether it stops or restarts the daemon; a stop is assumed", error=str(error))
        return Ending.STOP


def unit_of(cgroup: str) -> str | None:
    """Return the service that has the process in its control group. `cgroup`: content of /proc/self/cgroup. Pure."""
    for line in cgroup.splitlines():
        for part in reversed(line.split("/")):
            if part.endswith(".service"):
                return part
    return None


def is_of_user(cgroup: str) -> bool:
    """Whether the process belongs to a user's systemd instead of the system's. Pure."""
    return any("/user@" in line for line in cgroup.splitlines())


def ending_of_jobs(jobs: str, unit: str) -> Ending:
    """Return what systemd does with the unit. `jobs` has a line "number unit type state" for each job. Pure.

    If systemd has no job for the unit, somebody else sent the signal, and wants a stop.
    """
    for line in jobs.splitlines():
        match line.split():
            case [_, name, "restart" | "try-restart", *_] if name == unit:
                return Ending.HANDOVER
    return Ending.STOP


async def _jobs_of_systemd(*, user: bool) -> str:
    """Return the jobs of systemd's queue. Raises OSError if systemctl is missing, fails or does not answer."""
    process = await asyncio.create_subprocess_exec(
        "systemctl",
        *(("--user",) if user else ()),
        *("list-jobs", "--no-legend", "--no-pager", "--plain"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, problem = await asyncio.wait_for(process.communicate(), ANSWER_TIMEOUT)
    except TimeoutError as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise TimeoutError(f"systemctl did not answer within {ANSWER_TIMEOUT:g} s") from error
    if process.returncode != 0:
        raise OSError(problem.decode(errors="replace").strip() or f"systemctl ended with {process.returncode}")
    return output.decode(errors="replace")
