"""What a shell completes: names of jobs, TaskManagers and contexts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from minflinkd.cli.job_names import Job
    from minflinkd.cli.target import Target

Completion = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]

_PLAIN = re.compile(r"[\w.@%+=:/-]+")  # what a shell takes as one word


def jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of all jobs, those that have not ended first."""
    return _jobs(context, incomplete, ended=True)


def live_jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the jobs that have not ended."""
    return _jobs(context, incomplete, ended=False)


def task_managers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from minflinkd.cli import job_names

    target = _target(context)
    found = [] if target is None else job_names.task_managers(target)
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def jobs_and_task_managers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return jobs(context, parameter, incomplete) or task_managers(context, parameter, incomplete)


def contexts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from minflinkd.cli.contexts import read_contexts

    with suppress(click.ClickException):
        known = read_contexts(os.environ).contexts
        return [CompletionItem(name, help=one.address) for name, one in known.items() if name.startswith(incomplete)]
    return []


def _jobs(context: click.Context, incomplete: str, *, ended: bool) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from minflinkd.cli import job_names

    target = _target(context)
    found = [] if target is None else job_names.jobs(target)
    return [CompletionItem(word, help=told) for word, told in words(found, incomplete, ended=ended).items()]


def words(jobs: list[Job], incomplete: str, *, ended: bool) -> dict[str, str]:
    """Return what the word may become, with a text for each. Pure.

    These are names; or ids, if the word is the beginning of one and of no name, or if the job's name is no single word.
    """
    wanted = sorted((job for job in jobs if ended or not job.ended), key=lambda job: job.ended)
    named = [job for job in wanted if _PLAIN.fullmatch(job.name)]
    found = {job.name: job.state for job in reversed(named) if job.name.startswith(incomplete)}
    if not found:
        return {job.id: f"{job.name}, {job.state}" for job in wanted if job.id.startswith(incomplete)}
    return dict(reversed(found.items()))


def _target(context: click.Context) -> Target | None:
    from minflinkd.cli.target import target_of

    with suppress(click.ClickException):
        return target_of(context, context.params, os.environ)
    return None
