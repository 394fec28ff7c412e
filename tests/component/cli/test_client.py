"""Jobs from a Python script: minflinkd.client against a real endpoint and BlobServer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import stamina

from minflinkd.cli.endpoint import DaemonUnreachable
from minflinkd.client import Job, JobEndedBadly, NotEndedYet
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.rpc.jobs import JobStatus
from tests.component.cli.conftest import RunningDaemon
from tests.unit.rest.parties import FAILED, FAILURE
from tests.waiting import until_blocking


@pytest.fixture
def url(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MINFLINKD_URL", daemon.url)
    return daemon.url


def clicks(directory: Path, *, broken: bool = False) -> Job:
    (directory / "clicks.py").write_text("def late(inputs, params):\n    return inputs['clicks']\n")
    job = Job("clicks", params={"minutes": 60})
    job.artifact(directory / "clicks.py")
    source = job.source("clicks", format="json", path="/data/clicks", schema="user STRING")
    late = job.python("late", "clicks.late" if broken else "clicks:late", inputs=[source])
    late.sink("out", format="parquet", path="/data/out")
    return job


def test_a_job_is_submitted_with_its_artifacts(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    """`job.submit()` uses the daemon of $MINFLINKD_URL (issue 15, 11)."""
    running = clicks(tmp_path).submit()
    (submission,) = daemon.dispatcher.submissions
    assert (running.id, running.url) == (submission.job_id, url)
    document = json.loads(submission.document)
    assert document["name"] == "clicks"
    assert document["artifacts"][0]["key"] in "".join(map(str, daemon.stored()))
    assert running.state == "RUNNING"


def test_paths_of_artifacts_are_relative_to_base(daemon: RunningDaemon, tmp_path: Path) -> None:
    clicks(tmp_path)
    job = Job("clicks")
    job.artifact("clicks.py")
    job.source("s", format="rate").sink("out", format="parquet", path="/data/out")
    job.submit(url=daemon.url, base=tmp_path)
    assert len(daemon.stored()) == 1
    with pytest.raises(InvalidJobGraph, match="artifacts"):
        job.submit(url=daemon.url, base=tmp_path / "elsewhere")


def test_a_dry_run_starts_and_leaves_nothing(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    clicks(tmp_path).dry_run()
    assert [submission.dry_run for submission in daemon.dispatcher.submissions] == [True]
    assert daemon.stored() == []


def test_every_fault_is_told_at_once(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    """The faults are those in the job itself and those that Spark finds in its sound part (J4)."""
    daemon.dispatcher.faults = (GraphFault(path="vertices.clicks.source", problem="no such path"),)
    with pytest.raises(InvalidJobGraph) as refused:
        clicks(tmp_path, broken=True).dry_run()
    assert {fault.path for fault in refused.value.faults} == {"vertices.late.python", "vertices.clicks.source"}
    with pytest.raises(InvalidJobGraph) as refused:
        clicks(tmp_path).submit()
    assert [fault.path for fault in refused.value.faults] == ["vertices.clicks.source"]
    assert daemon.stored() == [], "a refused job leaves nothing"


def test_wait_returns_when_the_job_is_finished(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    running = clicks(tmp_path).submit()
    with pytest.raises(NotEndedYet, match=r"not ended within 0\.3 s"):
        running.wait(timeout=0.3)
    daemon.dispatcher.become(daemon.dispatcher.submissions[0].job_id, JobStatus.FINISHED)
    assert running.wait(timeout=10).state == "FINISHED"


def test_calls_of_several_threads_leave_the_scripts_own_retry_hooks(
    daemon: RunningDaemon, url: str, tmp_path: Path
) -> None:
    """Hooks belong to the process. The second call must not lose what the first one has set aside."""
    hooks = stamina.instrumentation.get_on_retry_hooks()  # commands own their process and have set none
    stamina.instrumentation.set_on_retry_hooks([stamina.instrumentation.LoggingOnRetryHook])
    try:
        _calls_of_two_threads(tmp_path)
    finally:
        stamina.instrumentation.set_on_retry_hooks(hooks)


def _calls_of_two_threads(tmp_path: Path) -> None:
    before = stamina.instrumentation.get_on_retry_hooks()
    assert before
    running = clicks(tmp_path).submit()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(running.wait, timeout=0.5)
        until_blocking(lambda: not stamina.instrumentation.get_on_retry_hooks(), "the first call sets them aside")
        second = threads.submit(running.wait, timeout=1)
        assert {type(call.exception()) for call in (first, second)} == {NotEndedYet}
    assert stamina.instrumentation.get_on_retry_hooks() == before


def test_a_job_that_ends_badly_raises_with_its_cause(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    running = clicks(tmp_path).submit()
    failed = daemon.dispatcher.jobs[FAILED]
    daemon.dispatcher.jobs[daemon.dispatcher.submissions[0].job_id] = failed
    with pytest.raises(JobEndedBadly, match="is FAILED") as ended:
        running.wait(timeout=10)
    assert FAILURE.error.message in ended.value.message


def test_a_job_is_cancelled(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    running = clicks(tmp_path).submit()
    running.cancel()
    with pytest.raises(JobEndedBadly, match="is CANCELED"):
        running.wait(timeout=10)


def test_no_daemon_is_an_error_that_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written to the script's output."""
    began = time.monotonic()
    with pytest.raises(DaemonUnreachable, match=r"no daemon answers at http://127\.0\.0\.1:9") as error:
        clicks(tmp_path).submit(url="http://127.0.0.1:9")
    assert "minflinkd serve" in error.value.hint
    assert time.monotonic() - began < 10
    assert capsys.readouterr() == ("", "")


def test_a_notebook_has_a_loop_of_its_own(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    """The calls are not coroutines, and work while an event loop runs."""

    async def cell(call: Callable[[], None]) -> None:
        call()

    asyncio.run(cell(clicks(tmp_path).dry_run))
    assert len(daemon.dispatcher.submissions) == 1
