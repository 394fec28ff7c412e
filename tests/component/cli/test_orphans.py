"""`minflinkd orphans` and its endpoint (E2, E10, F7)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minflinkd.checkpoint.orphans import NotLeading
from minflinkd.rpc import jobs as j
from minflinkd.runtime.ids import JobId
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING

OTHER = JobId("0" * 31 + "1")
ORPHAN = j.OrphanFile("1-000000001-tm-1-0-000.seg", 2048, 1_700_000_000_000)


@pytest.fixture
def asked(daemon: RunningDaemon) -> list[j.SweepOrphans]:
    asked: list[j.SweepOrphans] = []

    async def sweep(request: Any) -> j.OrphanReport:
        asked.append(request)
        jobs = (
            j.JobOrphans(job_id=RUNNING, files=(ORPHAN,), kept=3),
            j.JobOrphans(job_id=OTHER, skipped="metadata in it cannot be read"),
        )
        return j.OrphanReport(jobs=jobs, dry_run=request.dry_run, grace=3600.0)

    daemon.dispatcher.mailbox.on(j.SweepOrphans, sweep)
    return asked


def test_orphans_are_listed_and_nothing_is_deleted(command: Command, asked: list[j.SweepOrphans]) -> None:
    """`--dry-run` lists orphans and deletes nothing (F7)."""
    shown = command("orphans", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert [(request.job_id, request.dry_run) for request in asked] == [(None, True)]
    lines = shown.stdout.splitlines()
    assert lines[1].split()[:4] == [ORPHAN.name, RUNNING, "2.0", "KiB"]
    assert lines[-2] == f"{OTHER} was left alone: metadata in it cannot be read."
    assert lines[-1] == "1 file would be deleted, 2.0 KiB; what is younger than 1 h 0 min stays."


def test_orphans_of_one_job_are_deleted(command: Command, asked: list[j.SweepOrphans]) -> None:
    """`--job` takes a name, as everywhere (F7)."""
    shown = command("orphans", "--job", "carrier-delays", "--json")
    assert shown.exit_code == 0, shown.output
    assert [(request.job_id, request.dry_run) for request in asked] == [(RUNNING, False)]
    answer = json.loads(shown.stdout)
    assert (answer["files"], answer["size"], answer["dry-run"]) == (1, 2048, False)
    assert answer["jobs"][0]["orphans"] == [{"name": ORPHAN.name, "size": 2048, "modified": ORPHAN.modified_ms}]
    assert set(answer) == {"jobs", "dry-run", "grace", "files", "size"}


def test_a_daemon_that_does_not_lead_says_so(command: Command, daemon: RunningDaemon) -> None:
    """The status is 503, because another daemon may answer (A11)."""

    async def sweep(request: Any) -> j.OrphanReport:
        raise NotLeading("it is not certain that this daemon leads")

    daemon.dispatcher.mailbox.on(j.SweepOrphans, sweep)
    shown = command("orphans")
    assert shown.exit_code != 0
    assert "not certain that this daemon leads" in shown.output
