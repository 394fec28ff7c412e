"""`minflinkd explain`, with and without a daemon (E10)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.main import main
from minflinkd.rpc.jobs import ExplainedTask
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.ids import TaskId
from tests.component.cli.conftest import Command, RunningDaemon
from tests.component.cli.test_run import JOB


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "flights.py").write_text("def late(inputs, params):\n    return inputs['flights']\n")
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_with_a_daemon_spark_says_what_it_will_do(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """The daemon is asked as by a dry run: nothing is started, and nothing is left."""
    nodes = (PlanNode(number=0, stateful=True, vertex="late", kind="dedupe"),)
    daemon.dispatcher.explained = (ExplainedTask(task_id=TaskId("flights"), plan="Scan json", operators=nodes),)
    shown = command("explain", str(job))
    assert shown.exit_code == 0, shown.output
    assert "carrier-delays: 1 task, 1 slot" in shown.stdout
    assert "  state: dedupe of late" in shown.stdout
    assert "  Scan json" in shown.stdout
    (submission,) = daemon.dispatcher.submissions
    assert (submission.dry_run, submission.explain) == (True, True)
    assert daemon.stored() == []
    assert json.loads(command("explain", str(job), "--json").stdout)["tasks"][0]["plan"] == "Scan json"


def test_without_a_daemon_the_rest_is_shown_and_what_is_missing_said(job: Path) -> None:
    shown = CliRunner().invoke(main, ["explain", str(job), "--url", "http://127.0.0.1:9"])
    assert shown.exit_code == 0, shown.output
    assert "Task flights: 1 slot in group default" in shown.stdout
    assert "not shown: no daemon answers at http://127.0.0.1:9." in shown.stdout


def test_a_faulty_job_is_refused_with_its_faults(command: Command, job: Path) -> None:
    job.write_text(JOB.replace("inputs: [late]", "inputs: [lat]"))
    shown = command("explain", str(job), "--no-plan")
    assert shown.exit_code == 2
    assert "did you mean late?" in shown.stderr
