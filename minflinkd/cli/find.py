"""Finds what a user means by JOB and TASKMANAGER: an id, the beginning of one, or a job's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from minflinkd.cli.exits import ExitCode, Failure

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that

_ID = re.compile(r"[0-9a-f]{32}")
_SHORTEST = 4  # characters of the beginning of an id


async def find_job(client: Client, text: str) -> str:
    """Return the job's id. A name means the job of that name that has not ended, if there is exactly one."""
    if _ID.fullmatch(text):
        return text
    jobs = (await client.jobs()).jobs
    found = [job for job in jobs if len(text) >= _SHORTEST and job.jid.startswith(text)]
    if not found:
        named = [job for job in jobs if job.name == text]
        found = [job for job in named if job.end_time < 0] or named
    if len(found) > 1:
        several = ", ".join(f"{job.jid} ({job.state})" for job in found[:5])
        raise Failure(f"{text!r} means {len(found)} jobs: {several}\nName one by its id.", ExitCode.REFUSED)
    if not found:
        raise Failure(f"There is no job {text!r}.\n`minflinkd list --all` lists them.", ExitCode.NOT_FOUND)
    return found[0].jid


async def find_task_manager(client: Client, text: str | None) -> str:
    """Return the TaskManager's id; without `text`, the id of the only one."""
    known = [info.id for info in (await client.task_managers()).taskmanagers]
    if not known:
        raise Failure(
            "No TaskManager is registered.\n`minflinkd info` shows those that are starting.", ExitCode.NOT_FOUND
        )
    if text is None:
        found = known
    else:
        found = [name for name in known if name == text] or [name for name in known if name.startswith(text)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(known)[:5])
    if not found:
        raise Failure(f"There is no TaskManager {text!r}; there are: {names}", ExitCode.NOT_FOUND)
    raise Failure(f"Name one of the TaskManagers: {names}", ExitCode.REFUSED)
