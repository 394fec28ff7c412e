"""What the commands print, and the exit codes that scripts rely on (E10)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from minflinkd.cli.client import Client
from minflinkd.cli.main import COMMANDS, GROUPS, main
from minflinkd.rest.schemas import Logs
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.resource_profile import parse_profile
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import FAILED, LOG, RUNNING, TM, collecting, failing


def test_help_names_every_command_and_imports_none_of_them() -> None:
    """Help and completion are fast: they import no HTTP client, no Spark and no event loop (E10)."""
    program = (
        "import sys\nfrom minflinkd.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('aiohttp', 'asyncio', 'rich', 'pyspark', 'pyarrow', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name, lazy in COMMANDS.items():
        assert name in done.stdout
        assert lazy.help.split()[0] in done.stdout


def test_help_groups_the_commands_and_begins_with_examples() -> None:
    """What a newcomer needs first comes first, and no text wraps on 80 columns (issue 15, 12)."""
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    places = [shown.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    assert shown.index("Examples:") < places[0]
    assert "minflinkd check job.yaml" in shown
    assert "--help" in shown[: places[0]], "where the options of a command are found"
    for name, lazy in COMMANDS.items():
        assert f"  {name} " in shown
        assert lazy.help in shown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_examples(name: str) -> None:
    """Every command also has --json, except where a daemon or a TaskManager itself runs (E10)."""
    if name == "demo":
        pytest.importorskip("minflinkd.cli.demo")
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Examples:" in shown.output
    assert f"minflinkd {name}" in shown.output
    if name not in ("serve", "taskmanager", "demo"):
        assert "--json" in shown.output


def test_a_misspelt_command_is_told_the_nearest() -> None:
    shown = CliRunner().invoke(main, ["lits"])
    assert shown.exit_code == 2
    assert "Did you mean 'list'?" in shown.output


@pytest.mark.parametrize(("arguments", "meant"), [(("token", "lst"), "list"), (("context", "ad"), "add")])
def test_so_is_a_misspelt_command_of_a_group(arguments: tuple[str, ...], meant: str) -> None:
    shown = CliRunner().invoke(main, list(arguments))
    assert shown.exit_code == 2
    assert f"Did you mean {meant!r}?" in shown.output


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("carier-delays", "Did you mean 'carrier-delays'?"),
        ("Carrier", "Did you mean 'carrier-delays'?"),
        ("aaab", "Did you mean 'aaaa' (carrier-delays)?"),
        ("a", "Did you mean 'a"),
        ("zzz", "`minflinkd list --all` lists them."),
    ],
)
def test_a_misspelt_job_is_told_the_nearest(command: Command, text: str, hint: str) -> None:
    """Both a name and the beginning of an id (E10)."""
    shown = command("info", text)
    assert shown.exit_code == 4
    assert shown.stderr.startswith(f"Error: There is no job {text!r}.\n")
    assert hint in shown.stderr or text == "a"


def test_all_errors_look_the_same(command: Command) -> None:
    """A sentence, then what to do; with --json or --output a document on stderr, whoever found the error (E10)."""
    assert command("info", "nope").stderr.startswith("Error: There is no job 'nope'.\n`minflinkd list")
    assert re.match(r"Error: .*conflict|Error: [A-Z].*\.?\n", command("cancel", FAILED).stderr)
    told = json.loads(command("info", "nope", "--json").stderr)
    assert (told["code"], told["errors"]) == ("not-found", ["There is no job 'nope'."])
    assert "lists them" in told["hint"]
    assert command("info", "nope", "--output", "yaml").stderr.startswith(
        "errors:\n- There is no job 'nope'.\ncode: not-found"
    )


def test_every_answer_is_there_as_yaml(command: Command) -> None:
    shown = command("list", "--all", "--output", "yaml")
    assert shown.stdout.startswith(f"jobs:\n- jid: {RUNNING}\n  name: carrier-delays\n")
    assert json.loads(command("list", "-o", "json").stdout).keys() == {"jobs"}
    assert command("list", "-o", "table").stdout.startswith("JOB ")
    assert command("list", "--json", "-o", "yaml").exit_code == 2
    assert command("checkpoints", RUNNING, "-o", "yaml").stdout.startswith("counts:\n")


def test_exceptions_are_shown_with_their_traceback(command: Command) -> None:
    shown = command("exceptions", FAILED)
    assert shown.exit_code == 0
    assert "AttributeError: 'DataFrame' object has no attribute 'selectt'" in shown.stdout
    assert json.loads(command("exceptions", FAILED, "--json").stdout)["exceptionHistory"]["entries"]
    assert command("exceptions", RUNNING).stdout == "The job has had no failures.\n"


def test_metrics_say_what_each_task_does(command: Command) -> None:
    shown = command("metrics", "carrier-delays")
    assert shown.exit_code == 0
    assert "carrier-delays is RUNNING: " in shown.stdout
    assert re.search(r"flights -> delays +\S+ +120 ms", shown.stdout)
    first, second = json.loads(command("metrics", RUNNING, "--json").stdout)["tasks"]
    assert (first["batch-duration"], second["batch-duration"]) == (120.0, None), "no micro-batch, no figure"


def test_a_finished_job_has_all_its_tasks(command: Command, daemon: RunningDaemon) -> None:
    """A task that is FINISHED has done its part; 0/2 would look like a fault."""
    job = daemon.dispatcher.jobs[RUNNING]
    ended = tuple(replace(task, state=ExecutionState.FINISHED) for task in job.tasks)
    daemon.dispatcher.jobs[RUNNING] = replace(job, status=JobStatus.FINISHED, tasks=ended)
    assert " 2/2 " in command("list", "--all").stdout


def test_list_shows_what_runs_and_all_what_ended(command: Command) -> None:
    running = command("list")
    assert (running.exit_code, RUNNING in running.output, FAILED in running.output) == (0, True, False)
    assert FAILED in command("list", "--all").output
    jobs = json.loads(command("list", "--all", "--json").output)["jobs"]
    assert {job["jid"] for job in jobs} == {RUNNING, FAILED}


def test_a_job_that_restarts_repeatedly_is_marked_with_where_it_fails(daemon: RunningDaemon, command: Command) -> None:
    """The state of such a job alone says RUNNING."""
    daemon.dispatcher.jobs[RUNNING] = failing()
    listed = command("list").output
    assert "RUNNING, restarting repeatedly" in listed
    _, row, told = listed.splitlines()
    assert row.split()[6] == "7"
    assert (
        told
        == f"carrier-delays: 7 failures in a row, the last on {TM} in task out: user-code: ValueError: seven is poison"
    )
    shown = command("info", RUNNING).output
    assert "Restarting repeatedly: 7 failures in a row since" in shown
    assert f"in task out on {TM}: user-code: ValueError: seven is poison" in shown
    assert f"minflinkd logs {TM}" in shown
    assert "Next restart: in" in shown
    told = json.loads(command("info", RUNNING, "--json").output)["minflinkd"]
    assert (told["restarts"], told["restarting-repeatedly"]["task"]) == (7, "out")
    (job,) = json.loads(command("list", "--json").output)["jobs"]
    assert job["minflinkd"]["restarting-repeatedly"] == told["restarting-repeatedly"]


def test_a_failure_of_no_task_is_told_without_a_place(daemon: RunningDaemon, command: Command) -> None:
    """As when a job gets no slots again and again."""
    job = failing()
    assert job.repeated is not None
    last = replace(job.repeated.last, task_id=None, task_name="", resource_id=None)
    daemon.dispatcher.jobs[RUNNING] = replace(job, repeated=replace(job.repeated, last=last))
    told = command("list").output.splitlines()[-1]
    assert told == "carrier-delays: 7 failures in a row, the last: user-code: ValueError: seven is poison"


@pytest.mark.parametrize("width", [80, 100, 132])
def test_where_a_job_fails_is_read_in_one_line_of_a_terminal(
    daemon: RunningDaemon, command: Command, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """The table has no room for it, and a line that wraps is hard to read: what is cut is the end of the message."""
    daemon.dispatcher.jobs[RUNNING] = failing()
    monkeypatch.setattr(
        "minflinkd.cli.text.console", lambda: Console(file=sys.stdout, width=width, force_terminal=True)
    )
    lines = click.unstyle(command("list").output).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].startswith(f"carrier-delays: 7 failures in a row, the last on {TM} in task out")


def test_info_without_a_job_is_about_the_cluster(command: Command) -> None:
    shown = command("info").output
    assert "Jobs: 1 running, 0 finished, 0 canceled, 1 failed" in shown
    assert "Slots: 1 of 2 free" in shown
    assert "Leader: alpha:17 since " in shown
    assert "(epoch 7)" in shown
    assert "Standby: beta:18 at http://beta:8081" in shown
    assert json.loads(command("info", "--json").output)["slots-total"] == 2


def test_info_shows_tasks_checkpoints_recoveries_what_is_waited_for_and_the_last_failure(command: Command) -> None:
    shown = command("info", RUNNING).output
    assert "Waiting for slots: 2 slots of one TaskManager are needed; 1 TaskManager is registered" in shown
    assert "flights -> delays" in shown
    assert "Sink out: parquet, exactly-once" in shown
    assert "Bad records: 1,200 of delays" in shown
    assert json.loads(command("info", RUNNING, "--json").output)["minflinkd"]["bad-records"] == {"delays": 1200}
    assert "Checkpoints: 7 completed, 1 failed, the last took 300 ms, 4.0 KiB" in shown
    assert "TaskManager lost from checkpoint 3" in shown
    assert "AttributeError: 'DataFrame' object has no attribute 'selectt'" in command("info", FAILED).output
    assert json.loads(command("info", RUNNING, "--json").output)["state"] == "RUNNING"


@pytest.mark.parametrize("text", ["aaaa", "a" * 32])
def test_a_job_is_found_by_the_beginning_of_its_id(command: Command, text: str) -> None:
    assert json.loads(command("info", text, "--json").output)["jid"] == RUNNING


def test_a_name_means_the_job_that_has_not_ended(command: Command) -> None:
    assert json.loads(command("info", "carrier-delays", "--json").output)["jid"] == RUNNING


def test_a_text_that_means_two_jobs_is_refused(command: Command, daemon: RunningDaemon) -> None:
    daemon.dispatcher.become(FAILED, JobStatus.RUNNING)
    shown = command("info", "carrier-delays")
    assert shown.exit_code == 2
    assert RUNNING in shown.output
    assert FAILED in shown.output


@pytest.mark.parametrize("arguments", [("info", "nope"), ("info", "9" * 32), ("cancel", "nope"), ("logs", "tm-x")])
def test_what_does_not_exist_is_exit_code_4(command: Command, arguments: tuple[str, ...]) -> None:
    """Exit codes are documented (E10)."""
    assert command(*arguments).exit_code == 4


def test_cancel_waits_until_the_job_has_ended(command: Command, daemon: RunningDaemon) -> None:
    shown = command("cancel", RUNNING)
    assert (shown.exit_code, shown.stdout) == (0, f"{RUNNING} is CANCELED.\n")
    assert daemon.dispatcher.jobs[RUNNING].status is JobStatus.CANCELED


def test_handover_asks_the_daemon_to_end_and_says_what_to_do_next(command: Command, daemon: RunningDaemon) -> None:
    """The daemon here does not end, so the command does not wait (A15)."""
    shown = command("handover", "--no-wait")
    assert shown.exit_code == 0
    assert f"(pid {os.getpid()}) is ending" in shown.output
    assert "start the next daemon on the same state directory" in shown.output
    assert daemon.handed_over.is_set()


def test_cancelling_an_ended_job_is_a_conflict(command: Command) -> None:
    """The exit code is 5. With --json, stderr has the daemon's answer as the error (E10)."""
    shown = command("cancel", FAILED, "--json")
    assert (shown.exit_code, shown.stdout) == (5, "")
    assert json.loads(shown.stderr)["code"] == "conflict"


def test_checkpoints_are_listed_and_one_is_shown_whole(command: Command) -> None:
    shown = command("checkpoints", RUNNING).output
    assert "7 completed, 1 failed, 0 in progress; the last 2 failed" in shown
    assert "Failed by cause: 1 expired" in shown
    assert "Durations: median 250 ms, p95 300 ms, p99 310 ms, at most 320 ms" in shown
    assert "Files: 3 of 40 segments; 4.5 KiB for 4.0 KiB of state (1.12 times); 2 to delete" in shown
    assert "/state/checkpoints/7" in shown
    assert "300 ms !" in shown
    assert "Checkpoint 7 is slow: it took long." in shown
    assert json.loads(command("checkpoints", RUNNING, "--json").output)["counts"]["completed"] == 7
    one = command("checkpoints", RUNNING, "--id", "7").output
    assert "Checkpoint 7 (periodic): COMPLETED" in one
    assert "written in 7 ms; published after 15 ms" in one
    row = next(line.split() for line in one.splitlines() if line.startswith("flights"))
    assert " ".join(row) == "flights 300 ms 120 ms 80 ms 512 B 4 ms 90 ms 4.0 KiB 2.0 KiB 9 3"
    assert [line.split() for line in one.splitlines() if line.startswith("out")] == [["out", *["-"] * 10]]
    assert json.loads(command("checkpoints", RUNNING, "--id", "7", "--json").output)["id"] == 7


def test_collected_rows_are_printed_one_a_line(command: Command, daemon: RunningDaemon) -> None:
    """Rows come from the only collect sink, or from the one that is named (J2)."""
    daemon.dispatcher.jobs[RUNNING] = collecting()
    assert command("collected", RUNNING).output == '{"carrier":"UA"}\n{"carrier":"AA"}\n'
    assert json.loads(command("collected", RUNNING, "seen", "--json").output)["dropped"] == 7
    assert command("collected", RUNNING, "out").exit_code == 4


def test_taskmanagers_show_what_each_slot_has(command: Command, daemon: RunningDaemon) -> None:
    """The list has what jobs compete for, and nothing if a TaskManager does not say (R40)."""
    assert "Each slot" not in command("taskmanagers", TM[:6]).output
    profile = {"cpu": 0.5, "memory": "1 GiB", "disk": "10 GB", "gpu": 1}
    daemon.resource_manager.slot_profile = parse_profile(profile)
    assert re.search(r"EACH SLOT\n.* 0\.5 cpu, 1 GiB memory, 1 gpu\n", command("taskmanagers").output)
    assert "Each slot: 0.5 cpu, 1 GiB memory, 10 GB disk, 1 gpu" in command("taskmanagers", TM[:6]).output


def test_a_job_without_a_collect_sink_has_collected_nothing(command: Command) -> None:
    shown = command("collected", RUNNING)
    assert (shown.exit_code, "has no collect sink" in shown.output) == (4, True)


def test_taskmanagers_show_who_holds_their_slots_and_their_versions(command: Command) -> None:
    """After a restart with another version of minflinkd, TaskManagers of the version before go on (A15a)."""
    listed = command("taskmanagers").output
    assert TM in listed
    assert re.search(r"VERSION.*\n.* 0\.0\.9 ", listed)
    shown = command("taskmanagers", TM[:6]).output
    assert f"{TM}, minflinkd 0.0.9, pid 4711" in shown
    assert RUNNING in shown
    assert "free" in shown
    assert json.loads(command("taskmanagers", "--json").output)["taskmanagers"][0]["freeSlots"] == 1


def test_logs_prints_the_main_log_of_the_only_taskmanager(command: Command) -> None:
    assert command("logs").stdout_bytes == LOG


def test_a_log_that_is_rotated_away_meanwhile_is_printed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log existed when it was chosen; its existence is checked only once."""
    listed = Client.logs
    looks: list[str] = []

    async def once(client: Client, resource_id: str) -> Logs:
        looks.append(resource_id)
        return await listed(client, resource_id) if len(looks) == 1 else Logs(logs=())

    monkeypatch.setattr(Client, "logs", once)
    assert command("logs").stdout_bytes == LOG


def test_logs_chooses_a_file_and_its_last_lines(command: Command) -> None:
    assert command("logs", TM, "session.log").stdout == "spark\n"
    assert command("logs", "--tail", "2").stdout_bytes == b"".join(LOG.splitlines(keepends=True)[-2:])
    assert command("logs", TM, "none.log").exit_code == 4
    assert "session.log" in command("logs", "--list").output
    assert json.loads(command("logs", "--json").output)["logs"][0]["name"] == "session.log"


def test_the_daemons_log_is_printed_once_or_its_last_lines(command: Command) -> None:
    """It has no file: the daemon keeps the end, and says where in the whole log that is."""
    assert command("logs", "--daemon").stdout == "one\ntwo\nthree\n"
    assert command("logs", "--daemon", "--tail", "2").stdout == "two\nthree\n"
    assert command("logs", "--daemon", "--tail", "2", "--grep", "o").stdout == "one\ntwo\n"


def test_logs_can_be_searched(command: Command) -> None:
    found = command("logs", "--grep", "LINE 0012[0-9]", "--ignore-case").stdout.splitlines()
    assert [line.split()[2] for line in found] == [f"{number:05d}" for number in range(120, 130)]
    assert len(command("logs", "--grep", "line 0001", "--tail", "3").stdout.splitlines()) == 3
    assert command("logs", "--grep", "(").exit_code == 2
    assert command("logs", "--ignore-case").exit_code == 2


def of_attempt(attempt: str, event: str, job: str = "") -> bytes:
    return b'{"attempt": "%s", "event": "%s", "job": "%s"}\n' % (attempt.encode(), event.encode(), job.encode())


@pytest.fixture
def shared_logs(daemon: RunningDaemon) -> None:
    """Logs of a TaskManager with lines of two attempts of the job, a present and an earlier one, and of another job."""
    earlier, other = "e" * 32, "f" * 32
    daemon.task_manager.logs = {
        "session.log": of_attempt(earlier, "an earlier attempt's") + of_attempt(other, "theirs") + b"printed, no end",
        "taskmanager.log": b"".join(
            [
                of_attempt(earlier, "a task is deployed", RUNNING),
                of_attempt(other, "a task is deployed", "9" * 32),
                of_attempt("c" * 32, "a present attempt's"),
                b'{"event": "the session is ready"}\n',
            ]
        ),
    }


@pytest.mark.usefixtures("shared_logs")
def test_logs_of_a_job_are_its_lines_in_every_log_of_its_taskmanagers(command: Command) -> None:
    """A user knows his job, and not where it runs (issue 15, 11)."""
    shown = command("logs", RUNNING)
    assert shown.exit_code == 0, shown.output
    headers = [line for line in shown.stdout.splitlines() if line.startswith("==>")]
    assert headers == [f"==> {TM} taskmanager.log <==", f"==> {TM} session.log <=="]
    events = [line.split('"event": "')[1].split('"')[0] for line in shown.stdout.splitlines() if line.startswith("{")]
    assert events == ["a task is deployed", "a present attempt's", "an earlier attempt's"]
    assert shown.stdout.endswith("printed, no end\n")


@pytest.mark.usefixtures("shared_logs")
def test_logs_of_a_job_can_be_whole_one_file_or_the_end(command: Command) -> None:
    whole = command("logs", RUNNING, "taskmanager.log", "--whole").stdout
    assert whole.count("\n") == 5, "the header and every line"
    assert command("logs", RUNNING, "session.log", "--tail", "1").stdout.splitlines()[1:] == ["printed, no end"]
    assert "session.log" in command("logs", RUNNING, "--list").output
    listed = json.loads(command("logs", "--job", RUNNING, "--json").stdout)
    assert (listed["job"], [manager["id"] for manager in listed["taskmanagers"]]) == (RUNNING, [TM])
    assert command("logs", RUNNING, "none.log").exit_code == 4
    assert command("logs", "no-such-job").exit_code == 4
    assert command("logs", "tm-none").exit_code == 4
    assert command("logs", "--job").exit_code == 2


def test_logs_of_a_job_whose_taskmanager_is_gone_says_where_they_are(command: Command, daemon: RunningDaemon) -> None:
    gone = ResourceId("tm-gone00000000")
    job = daemon.dispatcher.jobs[RUNNING]
    tasks = tuple(msgspec.structs.replace(task, resource_id=gone) for task in job.tasks)
    daemon.dispatcher.jobs[RUNNING] = msgspec.structs.replace(job, tasks=tasks)
    shown = command("logs", RUNNING)
    assert shown.exit_code == 4
    assert f"taskmanagers/{gone}/log of the state directory" in shown.stderr
    assert "on its host" in shown.stderr


def test_plugins_lists_the_backends_of_the_entry_points() -> None:
    found = json.loads(CliRunner().invoke(main, ["plugins", "--json"]).output)
    assert {"scheme": "file", "problem": ""}.items() <= next(p for p in found if p["scheme"] == "file").items()
    assert "file" in CliRunner().invoke(main, ["plugins"]).output


def test_plugins_shows_at_a_place_what_a_backend_declares(tmp_path: Path) -> None:
    """Capabilities are believed only if they are shown (S1, S5)."""
    shown = CliRunner().invoke(main, ["plugins", "--check", str(tmp_path), "--json"])
    assert shown.exit_code == 0
    holds = {finding["name"]: (finding["declared"], finding["holds"]) for finding in json.loads(shown.stdout)}
    assert holds["objects"] == holds["exclusive-create"] == holds["atomic-rename"] == (True, True)
    assert holds["server-side-copy"] == (False, False)
    assert list(tmp_path.iterdir()) == []


def test_plugins_tells_what_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    shown = CliRunner().invoke(main, ["plugins", "--check", f"{tmp_path}/file"])
    assert shown.exit_code == 2
    assert "ot a directory" in shown.output
    assert CliRunner().invoke(main, ["plugins", "--check", "gopher://x"]).exit_code == 2


def test_without_a_daemon_the_user_is_told_how_to_start_one() -> None:
    """Errors say what to do next (E10)."""
    began = time.monotonic()
    shown = CliRunner().invoke(main, ["list", "--url", "http://127.0.0.1:9"])
    assert shown.exit_code == 3
    assert "minflinkd serve" in shown.output
    assert time.monotonic() - began < 5


def test_a_daemon_that_is_not_ready_is_exit_code_3(command: Command, daemon: RunningDaemon) -> None:
    daemon.network.detach(daemon.dispatcher.mailbox)
    assert command("list").exit_code == 3


def test_an_error_of_the_daemon_is_exit_code_6(command: Command, daemon: RunningDaemon) -> None:
    daemon.dispatcher.broken = True
    assert command("list").exit_code == 6
