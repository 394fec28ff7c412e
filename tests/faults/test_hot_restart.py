"""A new version of a running job starts on the same warm session with its state, or the old one stays and says why."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minflinkd.cli.submission import RefusedJob
from tests.cluster import Cluster, free_port, running_cluster, write_job
from tests.faults.hot_restarts import (
    ONE,
    TAGGED,
    ended,
    idle_versions,
    on_trial,
    processes_of,
    restarted,
    running_versions,
)
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

OTHER_CODE = """
def kept(frame):
    return frame.where('v > -1')

def clean(inputs, params):
    return kept(inputs['events'])
"""
IN_EVERY_ROW = """
import time

from pyspark.sql import functions as f
from pyspark.sql.types import LongType

@f.udf(LongType())
def checked(v):
    {does}

def clean(inputs, params):
    return inputs['events'].withColumn('v', checked('v'))
"""
AT_IMPORT = """
{does}

def clean(inputs, params):
    return inputs['events']
"""
IN_WORKERS = """
from pyspark import TaskContext

if TaskContext.get() is not None:
    {does}

def counted(v):
    return v

def clean(inputs, params):
    from pyspark.sql import functions as f
    return inputs['events'].withColumn('v', f.udf(counted, 'long')('v'))
"""
AT_PLANNING = """
import time

def clean(inputs, params):
    {does}
    return inputs['events']
"""
RAISES = "(_ for _ in ()).throw(ValueError('the new version cannot count'))"
HANGS = "__import__('threading').Event().wait()"


async def test_versions_follow_each_other_on_the_same_session_and_the_output_is_exact(
    one: Cluster, tmp_path: Path
) -> None:
    """Params, code and parallelism change. Every row is in the output once, from the right version (H3 - H6, H8)."""
    changes: list[dict[str, Any]] = [{}, {"parallelism": 4}, {"parallelism": 1}]
    async with running_versions(one, tmp_path) as versions:
        before = await processes_of(one)
        for tag, change in zip("234", changes, strict=True):
            await versions.goes_on()
            file = versions.write(tag, artifact=OTHER_CODE + f"# {tag}\n", **change)
            assert (await restarted(one, versions.job_id, file)).state == "completed"
        assert await processes_of(one) == before
        assert (await one.client.job(versions.job_id)).minflinkd.restarts == 0
    assert set(versions.written()) == set("1234")


COMMITTING = """
def clean(inputs, params):
    return inputs['events'].where('v >= 0')

class Noting:
    def __init__(self, *_):
        pass
    def stage(self, batch, epoch):
        return batch.count()
    def commit(self, checkpoint_id, tokens):
        pass
    def abort(self, tokens):
        pass
"""
OUT = {"format": "parquet", "path": "${output}"}
NOTES = {"inputs": ["minutes"], "sink": {"python": "windows:Noting", "delivery": "exactly-once"}}
TOLD_APART = {"inputs": [{"id": "minutes", "exchange": True}], "sql": "SELECT * FROM minutes"}
MAY_CHANGE: dict[str, dict[str, Any]] = {
    "Spark's settings": {"spark": {"spark.sql.adaptive.coalescePartitions.enabled": "false"}},
    "the settings of checkpoints": {"checkpointing": {"interval": "500 ms", "num-retained": 2}},
    "a sink that commits": {"artifact": COMMITTING, "vertices": {"notes": NOTES}},
    "no such sink any more": {},
    "the chaining": {"vertices": {"passed": TOLD_APART, "out": {"inputs": ["passed"], "sink": OUT}}},
    "the chaining as it was": {},
}


@pytest.mark.slow
async def test_settings_sinks_and_chaining_change_while_the_state_goes_on(one: Cluster, tmp_path: Path) -> None:
    """Settings, sinks and chaining change one after the other; every row is in the output once (H1, H2, H8)."""
    async with running_versions(one, tmp_path) as versions:
        for tag, (what, change) in enumerate(MAY_CHANGE.items(), start=2):
            last = await restarted(one, versions.job_id, versions.write(str(tag), **change))
            assert (last.state, last.error) == ("completed", None), what
            await versions.goes_on()
        assert (await one.client.job(versions.job_id)).minflinkd.restarts == 0
    assert set(versions.written()) == {"1", *(str(tag) for tag in range(2, len(MAY_CHANGE) + 2))}


WITH_MORE = "(SELECT k, time, v FROM clean UNION ALL SELECT k, time, v FROM more)"
MORE = {
    "source": {"format": "json", "path": "${input}-more", "schema": "k STRING, time TIMESTAMP, v BIGINT"},
    "watermark": {"column": "time", "delay": "1 minute"},
}


@pytest.mark.slow  # tests/spark/test_session_placement.py has sources that come and go
async def test_a_source_comes_and_goes_beside_state(one: Cluster, tmp_path: Path) -> None:
    """A new source is read from its beginning. One may disappear only with `allow-non-restored-state` (C25, H2)."""
    (tmp_path / "events-more").mkdir()
    wider = {"sql": TAGGED.replace("FROM clean", f"FROM {WITH_MORE}"), "vertices": {"more": MORE}}
    async with running_versions(one, tmp_path) as versions:
        file = versions.write("2", **wider)
        document = json.loads(file.read_text())
        document["vertices"]["minutes"]["inputs"] = ["clean", "more"]
        order = ("events", "clean", "more", "minutes", "out")
        document["vertices"] = {name: document["vertices"][name] for name in order}
        file.write_text(json.dumps(document))
        assert (await restarted(one, versions.job_id, file)).error is None
        (tmp_path / "events-more/1.json").write_text("")
        with pytest.raises(RefusedJob) as refusal:
            await restarted(one, versions.job_id, versions.write("3"))
        assert any("had a source" in fault.problem for fault in refusal.value.faults), refusal.value.faults
        allowed = {"allow-non-restored-state": "true"}
        assert (await restarted(one, versions.job_id, versions.write("3"), **allowed)).error is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "SQL that is none": ({"sql": TAGGED.replace("GROUP", "GRUPPE")}, "GRUPPE"),
    "a column that is not there": ({"sql": TAGGED.replace("sum(v)", "sum(nothing)")}, "nothing"),
    "state of another type": ({"sql": TAGGED.replace("sum(v)", "avg(v)")}, "state"),
    "state that would be of something else": (
        {"sql": TAGGED.replace("sum(v)", "max(v)")},
        "the state of vertex minutes (Aggregate) holds sum(v), and would be read as max(v)",
    ),
    "code that raises at import": ({"artifact": AT_IMPORT.format(does=RAISES)}, "the new version cannot count"),
    "code that raises at planning": ({"artifact": AT_PLANNING.format(does=RAISES)}, "the new version cannot count"),
}


async def test_a_version_that_cannot_run_is_refused_before_anything_of_the_old_one_is_touched(
    one: Cluster, tmp_path: Path
) -> None:
    """The refusal tells the reason, and the old version continues in the same attempt (H2)."""
    async with running_versions(one, tmp_path) as versions:
        before = (await one.client.job(versions.job_id)).vertices[0].minflinkd.attempt_id
        for what, (change, reason) in REFUSED.items():
            with pytest.raises(RefusedJob) as refusal:
                await restarted(one, versions.job_id, versions.write("2", **change))
            assert any(reason in fault.problem for fault in refusal.value.faults), (what, refusal.value.faults)
        job = await one.client.job(versions.job_id)
        assert job.vertices[0].minflinkd.attempt_id == before
        assert job.minflinkd.hot_restarts == ()
    assert set(versions.written()) == {"1"}


FAILS = {
    "at import, in workers only": IN_WORKERS.format(does=RAISES),
    "in its first micro-batch": IN_EVERY_ROW.format(does=f"return {RAISES}"),
}


async def test_a_version_that_fails_gives_way_to_the_one_before_it(one: Cluster, tmp_path: Path) -> None:
    """The version passed its analysis and fails only when it runs. The rollback tells the reason (H7)."""
    async with running_versions(one, tmp_path) as versions:
        before = await processes_of(one)
        for tag, (where, code) in enumerate(FAILS.items(), start=2):
            last = await restarted(one, versions.job_id, versions.write(str(tag), artifact=code))
            assert last.state in ("rolled-back", "failed"), where
            assert last.error is not None
            assert "the new version cannot count" in last.error.message, where
            await versions.goes_on()
        assert await processes_of(one) == before
        assert (await one.client.job(versions.job_id)).minflinkd.restarts == 0
    assert set(versions.written()) == {"1"}


@pytest.mark.slow  # tests/sim/jobmaster/test_trial.py has the decision
async def test_a_version_of_an_idle_job_is_on_trial_until_there_is_input(one: Cluster, tmp_path: Path) -> None:
    """The first row decides about a version that was deployed without input (H7).

    A version that raises for each row is rolled back, and the version before it processes the row. A sound version is
    accepted with the first checkpoint after rows.
    """
    raising = FAILS["in its first micro-batch"]
    async with idle_versions(one, tmp_path) as versions:
        before = (await one.client.checkpoints(versions.job_id)).counts.completed
        number = await on_trial(one, versions.job_id, versions.write("2", artifact=raising))
        (shown,) = (job for job in (await one.client.jobs()).jobs if job.jid == versions.job_id)
        assert (shown.state, shown.minflinkd.on_trial) == ("RUNNING", True)
        await versions.more_events()
        over = partial(ended, one, versions.job_id, number)
        last = await until(over, "the trial is over", timeout=60)
        assert last.state == "rolled-back"
        assert last.error is not None
        assert "the new version cannot count" in last.error.message
        await versions.reads_all()
        assert set(versions.written()) == {"1"}

        completed = (await one.client.checkpoints(versions.job_id)).counts.completed
        assert completed > before
        number = await on_trial(one, versions.job_id, versions.write("3", artifact=OTHER_CODE))
        replaced = await on_trial(one, versions.job_id, versions.write("4", artifact=OTHER_CODE))
        await versions.more_events()
        last = await until(partial(ended, one, versions.job_id, replaced), "the trial is won", timeout=60)
        assert last.state == "completed"
        assert (await ended(one, versions.job_id, number)).state == "replaced"
        await versions.reads_all()
        assert (await one.client.job(versions.job_id)).minflinkd.restarts == 0
    assert "2" not in versions.written()


@pytest.mark.slow
async def test_a_trial_survives_the_daemon_and_the_taskmanager(tmp_path: Path) -> None:
    """Daemon and TaskManager are killed before it gets input. If its first rows fail, it is rolled back (H7, H8)."""
    options = {**ONE, "rest.port": free_port(), "execution.checkpointing.interval": "1 s"}
    async with running_cluster(tmp_path / "cluster", **options) as cluster:
        await cluster.await_ready(1)
        async with idle_versions(cluster, tmp_path) as versions:
            raising = FAILS["in its first micro-batch"]
            number = await on_trial(cluster, versions.job_id, versions.write("2", artifact=raising))
            await cluster.kill()
            await cluster.start_again()

            async def runs_on(other_than: str) -> bool:
                job = await cluster.client.job(versions.job_id)
                runs = job.state == "RUNNING" and job.vertices[0].status == "RUNNING"
                waits = job.minflinkd.hot_restarts[0].state == "on-trial"
                return runs and waits and job.vertices[0].minflinkd.taskmanager_id not in (None, other_than)

            await until(partial(runs_on, ""), "the version is up under another daemon", timeout=60)
            killed = await cluster.task_manager_of(versions.job_id)
            os.kill(killed.minflinkd.pid, signal.SIGKILL)
            await until(partial(runs_on, killed.id), "the version is up on another TaskManager", timeout=90)
            completed = (await cluster.client.checkpoints(versions.job_id)).counts.completed
            await versions.more_events()
            last = await until(partial(ended, cluster, versions.job_id, number), "the trial is over", timeout=60)
            assert last.state == "rolled-back"
            await versions.reads_all()
            assert (await cluster.client.checkpoints(versions.job_id)).counts.completed > completed
    assert set(versions.written()) == {"1"}


@pytest.mark.slow  # tests/sim/jobmaster/test_trial has the decision, and the test below a version that hangs
async def test_a_version_of_an_idle_job_that_hangs_with_its_first_rows_is_turned_back(
    one: Cluster, tmp_path: Path
) -> None:
    """A version that hangs with its first rows is rolled back, although no micro-batch of it ends (H7)."""
    async with idle_versions(one, tmp_path) as versions:
        async with one.configured(**{"hot-restart.timeout": "5 s"}):
            hanging = IN_EVERY_ROW.format(does=HANGS)
            number = await on_trial(one, versions.job_id, versions.write("2", artifact=hanging))
            await versions.more_events()
            over = partial(ended, one, versions.job_id, number)
            last = await until(over, "the trial is over", timeout=60)
        assert last.state == "rolled-back"
        assert last.error is not None
        assert last.error.code == "hot-restart-timeout"
        await versions.reads_all()
    assert set(versions.written()) == {"1"}


@pytest.mark.parametrize("allowed", [False, True])
async def test_state_is_not_taken_for_another_before_the_first_checkpoint_either(
    one: Cluster, tmp_path: Path, allowed: bool
) -> None:
    """At its submission nothing says what the state means; the checkpoint that it starts from does (H2)."""

    def version(function: str) -> Path:
        numbers = {"format": "rate-micro-batch", "options": {"rowsPerBatch": 10, "numPartitions": 1}}
        grouped = f"SELECT value % 3 AS k, {function}(value) AS v FROM numbers GROUP BY value % 3"
        document = {
            "name": "before-the-first",
            "checkpointing": {"interval": "1 h"},
            "vertices": {
                "numbers": {"source": numbers},
                "grouped": {"inputs": ["numbers"], "sql": grouped},
                "out": {"inputs": ["grouped"], "sink": {"format": "console"}, "output-mode": "update"},
            },
        }
        return write_job(tmp_path / f"{function}.json", document)

    job_id = await one.submit(version("sum"))

    async def has_state() -> bool:
        return any(vertex.minflinkd.state_rows for vertex in (await one.client.job(job_id)).vertices)

    try:
        await until(has_state, "it keeps state", timeout=90)
        last = await restarted(one, job_id, version("max"), **({"allow-changed-state": "true"} if allowed else {}))
    finally:
        await one.cancel_all()
    if allowed:
        assert last.state == "completed"
        return
    assert last.state == "rolled-back"
    assert last.error is not None
    assert last.error.code == "state-meaning-changed"
    assert "holds sum(value), and would be read as max(value)" in last.error.message


@pytest.mark.slow  # tests/sim/jobmaster/test_succession.py has the decision
async def test_a_version_that_wants_more_slots_than_there_are_is_given_up_while_the_old_one_runs(
    one: Cluster, tmp_path: Path
) -> None:
    """The version is given up after `hot-restart.timeout`. The old one stays in the same attempt (H4, H7)."""
    async with running_versions(one, tmp_path) as versions, one.configured(**{"hot-restart.timeout": "2 s"}):
        before = (await one.client.job(versions.job_id)).vertices[0].minflinkd.attempt_id
        last = await restarted(one, versions.job_id, versions.write("2", parallelism=5))
        assert last.state == "failed"
        assert last.error is not None
        assert "slots" in last.error.message
        assert (await one.client.job(versions.job_id)).vertices[0].minflinkd.attempt_id == before
    assert set(versions.written()) == {"1"}


@pytest.mark.slow  # tests/sim/jobmaster/test_trial.py has the decision
async def test_a_version_that_hangs_in_its_first_micro_batch_gives_way_to_the_one_before_it(
    one: Cluster, tmp_path: Path
) -> None:
    """The hanging version is rolled back within `hot-restart.timeout`, and not mistaken for one without input (H7)."""
    async with running_versions(one, tmp_path) as versions:
        async with one.configured(**{"hot-restart.timeout": "5 s"}):
            hanging = IN_EVERY_ROW.format(does=HANGS)
            last = await restarted(one, versions.job_id, versions.write("2", artifact=hanging))
        assert last.state == "rolled-back"
        assert last.error is not None
        assert last.error.code == "hot-restart-timeout"
    assert set(versions.written()) == {"1"}
