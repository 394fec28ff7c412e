"""`minflinkd run`, from the file to the end of the job (E10, J4, B6)."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from fcntl import ioctl
from pathlib import Path

import msgspec
import pytest

from minflinkd.checkpoint.state_matching import ALLOW
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rpc.jobs import GetJob, JobDetails, JobStatus
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import FAILURE

JOB = """\
name: carrier-delays
artifacts: [flights.py]
params: {minutes: 60}
vertices:
  flights:
    source: {format: json, path: /data/flights, schema: "carrier STRING, delay DOUBLE"}
  late:
    inputs: [flights]
    python: flights:late
  out:
    inputs: [late]
    sink: {format: parquet, path: /data/out}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "flights.py").write_text("def late(inputs, params):\n    return inputs['flights']\n")
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_run_uploads_the_artifacts_and_submits_under_their_job(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """The artifacts come first, as one set, then the job that names their keys (B6)."""
    shown = command("run", str(job))
    assert shown.exit_code == 0, shown.output
    (submission,) = daemon.dispatcher.submissions
    assert shown.stdout == f"{submission.job_id}\n"
    (artifact,) = json.loads(submission.document)["artifacts"]
    assert artifact.keys() == {"name", "key", "size"}
    assert any(artifact["key"] in str(path) and submission.job_id in str(path) for path in daemon.stored())


def test_what_an_accepted_job_should_know_is_told_beside_its_id(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """Warnings about an accepted job are not in the output that a script reads (J8a)."""
    daemon.dispatcher.warnings = ("the input of flights had ended",)
    done = command("run", str(job))
    assert done.exit_code == 0
    assert "Warning: the input of flights had ended." in done.stderr
    assert "Warning" not in done.stdout


def test_params_and_the_name_are_replaced(command: Command, daemon: RunningDaemon, job: Path) -> None:
    params = ["minutes=30", "carrier=AA", "exact=true", 'odd="x"']
    arguments = [word for param in params for word in ("-p", param)]
    shown = command("run", str(job), *arguments, "--name", "other", "--json")
    document = json.loads(daemon.dispatcher.submissions[0].document)
    assert document["params"] == {"minutes": 30, "carrier": "AA", "exact": True, "odd": '"x"'}
    assert document["name"] == "other"
    assert json.loads(shown.stdout)["jobid"] == daemon.dispatcher.submissions[0].job_id


def test_a_wrong_file_is_refused_with_every_fault_and_its_line(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """All faults are shown at once, and nothing is uploaded or submitted (J4)."""
    job.write_text(JOB.replace("[late]", "[lat]").replace("flights.py", "none.py"))
    shown = command("run", str(job))
    assert shown.exit_code == 2
    assert f"{job}:11: vertices.out.inputs[0]" in shown.stderr
    assert f"{job}:2: artifacts[0]" in shown.stderr
    assert [submission.dry_run for submission in daemon.dispatcher.submissions] == [True]  # Spark may find more
    assert daemon.stored() == []


def test_a_job_that_the_daemon_refuses_leaves_no_blob(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """Faults that only Spark finds are shown with their lines too, and the uploaded artifacts are deleted (J4)."""
    daemon.dispatcher.faults = (
        GraphFault(path="vertices.late.python", problem="flights has no function late", traceback="Traceback\n  ..."),
    )
    shown = command("run", str(job))
    assert shown.exit_code == 2
    assert f"{job}:9: vertices.late.python: flights has no function late" in shown.stderr
    assert "    Traceback" in shown.stderr
    assert daemon.stored() == []


def test_a_savepoint_that_does_not_fit_is_told_in_the_options_of_the_command(
    command: Command, daemon: RunningDaemon, job: Path
) -> None:
    """Whoever wrote `--from-savepoint` did not write `restore`, and finds no such line in the file."""
    problem = "there is state of joined, and no such vertex"
    daemon.dispatcher.faults = (GraphFault(path="restore.path", problem=problem, hint=ALLOW),)
    shown = command("run", str(job), "--from-savepoint", "/savepoints/savepoint-1")
    assert f"{job}: --from-savepoint: {problem} (to drop it: --allow-non-restored-state)" in shown.stderr


def test_a_submission_that_was_turned_down_is_not_repeated(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """The artifacts of a refused submission are deleted, so a second try would only report them as missing (R5)."""
    daemon.dispatcher.no_session = True
    shown = command("run", str(job))
    assert shown.exit_code != 0
    assert "No TaskManager was there to analyse the job" in shown.stderr
    assert len(daemon.dispatcher.submissions) == 1


def test_faults_as_json_have_paths_and_lines(command: Command, daemon: RunningDaemon, job: Path) -> None:
    daemon.dispatcher.faults = (GraphFault(path="vertices.out", problem="wrong", hint="right"),)
    answer = json.loads(command("run", str(job), "--json").stderr)
    assert answer["code"] == "invalid-job-graph"
    assert answer["faults"] == [{"path": "vertices.out", "problem": "wrong", "hint": "right", "line": 10}]


def test_a_dry_run_leaves_nothing(command: Command, daemon: RunningDaemon, job: Path) -> None:
    """The job is checked completely, by Spark too, and nothing is kept (E2)."""
    shown = command("run", str(job), "--dry-run")
    assert (shown.exit_code, "no faults" in shown.output) == (0, True)
    assert daemon.dispatcher.submissions[0].dry_run
    assert daemon.stored() == []


@pytest.mark.parametrize(
    ("end", "exit_code"), [(JobStatus.FINISHED, 0), (JobStatus.FAILED, 1), (JobStatus.CANCELED, 1)]
)
def test_wait_ends_with_the_job(
    command: Command, daemon: RunningDaemon, job: Path, end: JobStatus, exit_code: int
) -> None:
    """The exit code says how the job ended. A failure shows the traceback of user code (E10)."""
    seen_running = threading.Event()
    answer = daemon.dispatcher.get_job

    def let_it_end() -> None:
        seen_running.wait(10)
        job_id = daemon.dispatcher.submissions[0].job_id
        failures = (FAILURE,) if end is JobStatus.FAILED else ()
        daemon.dispatcher.jobs[job_id] = msgspec.structs.replace(daemon.dispatcher.jobs[job_id], failures=failures)
        daemon.dispatcher.become(job_id, end)

    async def watched(question: GetJob) -> JobDetails:
        details = await answer(question)
        seen_running.set()
        return details

    daemon.dispatcher.mailbox.on(GetJob, watched)
    ending = threading.Thread(target=let_it_end)
    ending.start()
    shown = command("run", str(job), "--wait")
    ending.join()
    assert shown.exit_code == exit_code, shown.output
    assert f"is {end} after" in shown.stdout
    assert "RUNNING" in shown.stderr
    assert ("selectt" in shown.stderr) == (end is JobStatus.FAILED)


def test_a_param_without_a_value_is_a_usage_error(command: Command, job: Path) -> None:
    shown = command("run", str(job), "-p", "minutes")
    assert shown.exit_code == 2
    assert "KEY=VALUE" in shown.output


def test_the_live_line_is_one_row_of_a_narrow_terminal(daemon: RunningDaemon, job: Path) -> None:
    """The line is one row with 60 columns too. A row that wrapped was left behind at each refresh (issue 15, 11)."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    program = [sys.executable, "-m", "minflinkd", "run", str(job), "--wait", "--url", daemon.url]
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    running = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
            if shown.count(b"RUNNING") >= 3:
                daemon.dispatcher.become(daemon.dispatcher.submissions[0].job_id, JobStatus.FINISHED)
    except OSError:  # EIO: the command has ended
        pass
    finally:
        os.close(ours)
        running.kill()
    assert running.wait(10) == 0
    rows = [row.strip() for row in re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", shown.decode())]
    live = [row for row in rows if "tasks " in row or "rows " in row or "cp " in row or "checkpoints" in row]
    assert live
    assert all(row.startswith(("RUNNING", "FINISHED")) and len(row) <= 60 for row in live), live


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_leaves_the_job_running_and_says_how_to_cancel_it(daemon: RunningDaemon, job: Path) -> None:
    """Whoever only wants to stop watching must not stop a pipeline (E10)."""
    program = [sys.executable, "-m", "minflinkd", "run", str(job), "--wait", "--url", daemon.url]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        lines = []
        while not lines or "RUNNING" not in lines[-1]:
            lines.append(running.stderr.readline())
            assert lines[-1], lines
        running.send_signal(signal.SIGINT)
        try:
            _, rest = running.communicate(timeout=60)
        finally:
            running.kill()  # otherwise leaving the block would wait for it without limit
    job_id = daemon.dispatcher.submissions[0].job_id
    assert (running.returncode, daemon.dispatcher.jobs[job_id].status) == (130, JobStatus.RUNNING)
    assert f"minflinkd cancel {job_id}" in rest
    assert "Traceback" not in rest
