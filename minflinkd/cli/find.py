"""Finds what a user means by JOB and TASKMANAGER: an id, the beginning of one, or a job's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.near import did_you_mean, nearest, nearest_id

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import JobSummary

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
        hint = f"{meant_job(text, jobs)}`minflinkd list --all` lists them."
        raise Failure(f"There is no job {text!r}.\n{hint}", ExitCode.NOT_FOUND)
    return found[0].jid


def meant_job(text: str, jobs: Sequence[JobSummary]) -> str:
    """Ask whether the user means a job whose name or id is like the text, with a space after it. Pure."""
    if name := nearest(text, [job.name for job in sorted(jobs, key=lambda job: job.end_time >= 0)]):
        return f"Did you mean {name!r}? "
    if found := nearest_id(text, [job.jid for job in jobs]):
        named = next(job.name for job in jobs if job.jid == found)
        return f"Did you mean {found[: max(len(text), _SHORTEST)]!r} ({named})? "
    if 0 < len(text) < _SHORTEST and any(job.jid.startswith(text) for job in jobs):
        return f"Of an id, name at least {_SHORTEST} digits. "
    return ""


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
        assert text is not None
        hint = f"{did_you_mean(text, known)}There are: {names}."
        raise Failure(f"There is no TaskManager {text!r}.\n{hint}", ExitCode.NOT_FOUND)
    raise Failure(f"Name one of the TaskManagers: {names}.", ExitCode.REFUSED)
