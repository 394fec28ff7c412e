"""What a failure restarts (R16): only the task, those that read from it, and sources whose output is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.model import Input, Task, Vertex
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.exchanges import Exchanges, exchanges
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import TaskMetrics, TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.exchange.log import ExchangeDamaged
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind, task

TM1_ADDRESS = f"taskmanager/{TM1}"
FATAL = ErrorInfo(code="user-code", message="broken", consequence=Consequence.FATAL)


def running() -> WideJob:
    """Return a running job with two regions in one slot sharing group."""
    job = WideJob(a=2, b=2, group="default")
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    return job


def state_of(job: WideJob, name: str) -> ExecutionState:
    return job.state.executions[TaskId(name)].state


def of_edges(edges: Mapping[str, str]) -> Exchanges:
    """Return the exchanges of one task for each letter, which reads from the tasks that its letters name."""

    def made(name: str, reads: str) -> Task:
        inputs = tuple(Input(id=VertexId(one), exchange=True) for one in reads)
        return Task(
            id=TaskId(name), vertices=(Vertex(id=VertexId(name), inputs=inputs, sql="SELECT 1"),), parallelism=1
        )

    return exchanges([made(*edge) for edge in edges.items()])


DIAMOND = {"a": "", "b": "a", "c": "a", "d": "bc", "x": "", "y": "x"}


@pytest.mark.parametrize(
    ("failed", "gone", "affected"),
    [
        ("d", "", "d"),  # the last reader alone
        ("b", "", "bd"),  # its reader comes along; `a` and `c` run on
        ("a", "", "abcd"),
        ("b", "a", "abcd"),  # what `b` had read is gone, so `a` writes it again, and `c` reads that
        ("d", "c", "cd"),  # `a` has what `c` reads again
        ("d", "ca", "abcd"),
        ("d", "a", "d"),  # nobody who restarts reads from `a`
        ("dy", "", "dy"),
        ("y", "abcd", "y"),
    ],
)
def test_a_failure_takes_what_depends_on_the_task_and_whose_output_is_gone(
    failed: str, gone: str, affected: str
) -> None:
    """Of a diamond `a` - `b`, `c` - `d`, and of `x` - `y` (R16)."""
    found = of_edges(DIAMOND).affected([TaskId(name) for name in failed], lambda task: task not in gone)
    assert "".join(sorted(found)) == affected


@given(st.data())
def test_what_restarts_of_any_graph_is_complete_and_no_more_than_needed(data: st.DataObject) -> None:
    """Every reader of a restarted task restarts, and every source of one restarts or can run on.

    No smaller set with the failed tasks in it has these properties (R16).
    """
    names = "abcdefgh"[: data.draw(st.integers(1, 8))]
    edges = {
        name: "".join(sorted(data.draw(st.sets(st.sampled_from(names[:at]))))) if at else ""
        for at, name in enumerate(names)
    }
    failed = data.draw(st.sets(st.sampled_from(names), min_size=1))
    gone = data.draw(st.sets(st.sampled_from(names)))
    affected = of_edges(edges).affected([TaskId(name) for name in failed], lambda task: task not in gone)

    def complete(tasks: frozenset[str]) -> bool:
        return all(
            (reader in tasks or source not in tasks) and (source in tasks or source not in gone or reader not in tasks)
            for reader, sources in edges.items()
            for source in sources
        )

    subsets = (frozenset(n for at, n in enumerate(names) if bits >> at & 1) for bits in range(1 << len(names)))
    assert affected == min((s for s in subsets if failed <= s and complete(s)), key=len)


class Chain(WideJob):
    """A running job of `a`, and `b` that reads from it."""

    def __init__(self) -> None:
        super().__init__(a=2, b=2, group="default")
        reader = Vertex(id=VertexId("b"), inputs=(Input(id=VertexId("a"), exchange=True),), sql="SELECT 1")
        tasks = (task("a", 2, "default"), Task(id=TaskId("b"), vertices=(reader,), parallelism=2))
        self.state = replace(self.state, tasks={one.id: one for one in tasks}, exchanges=exchanges(tasks))
        self.offer(TM1, 2)
        self.deploy()
        self.come_up()

    def keeps(self, name: str) -> None:
        self.feed(ev.TaskProgressed(self.attempt(name), TaskMetrics(replayable=True)))


def test_a_reader_that_fails_restarts_alone_while_its_source_has_kept_what_it_had_read() -> None:
    """It reads from the attempt that runs on, whose barriers of ended checkpoints it ignores (R16)."""
    job = Chain()
    job.keeps("a")
    source = job.attempt("a")
    assert job.report("b", TaskState.FAILED, BOOM) == [ev.StopCheckpoints(frozenset({source}))]
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("b")}))
    (deploy,) = job.feed(ev.RestorePointFound(job.state.round, 3, {}, oldest=5))
    assert isinstance(deploy, ev.Deploy)
    assert (deploy.task_id, deploy.oldest) == ("b", 5)
    assert [one.attempt_id for one in deploy.inputs] == [source]
    assert job.state.rollouts[-1].tasks == {"b"}


def test_a_reader_that_fails_takes_a_source_along_that_has_not_kept_what_it_had_read() -> None:
    job = Chain()
    assert of_kind(ev.Cancel, job.report("b", TaskState.FAILED, BOOM)) == [ev.Cancel(job.attempt("a"), TM1_ADDRESS)]


def test_a_reader_that_cannot_read_its_input_takes_the_source_along() -> None:
    """The exchange is damaged, or its entries are gone meanwhile: the source has to write them again."""
    job = Chain()
    job.keeps("a")
    damaged = ExchangeDamaged("entry 7 of an exchange is gone").info()
    assert of_kind(ev.Cancel, job.report("b", TaskState.FAILED, damaged)) == [ev.Cancel(job.attempt("a"), TM1_ADDRESS)]


def test_a_source_that_fails_takes_its_reader_along() -> None:
    job = Chain()
    job.keeps("a")
    assert of_kind(ev.Cancel, job.report("a", TaskState.FAILED, BOOM)) == [ev.Cancel(job.attempt("b"), TM1_ADDRESS)]


def test_a_failure_restarts_its_region_while_the_others_run_on() -> None:
    job = running()
    survivor = job.attempt("b")
    assert job.report("a", TaskState.FAILED, BOOM) == [ev.StopCheckpoints(frozenset({survivor}))]
    assert (job.state.status, state_of(job, "b")) == (JobStatus.RESTARTING, ExecutionState.RUNNING)
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a")}))
    (deploy,) = job.deploy(checkpoint=3)
    assert (deploy.task_id, deploy.number, deploy.parallelism) == ("a", 1, 2)
    commands = job.report("a", TaskState.RUNNING)
    assert commands == [ev.StartCheckpoints({TaskId("a"): job.attempt("a"), TaskId("b"): survivor})]
    assert job.state.executions[TaskId("b")].number == 0


def test_a_region_that_fails_while_another_waits_for_its_restart_joins_it() -> None:
    """There is one restart, and it counts as one attempt of the restart strategy."""
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    assert job.report("b", TaskState.FAILED, BOOM) == [ev.StopCheckpoints()]
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a"), TaskId("b")}))
    assert job.state.history.attempts == 1


def test_a_region_that_fails_while_a_restore_point_is_looked_for_comes_along() -> None:
    """The sinks of that region were not prepared, so nothing of it may be deployed in that round."""
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    job.report("b", TaskState.FAILED, BOOM)
    assert job.deploy() == []
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a"), TaskId("b")}))


def test_a_region_that_fails_while_another_comes_up_leaves_it_alone() -> None:
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    job.deploy()
    job.report("b", TaskState.FAILED, BOOM)
    assert state_of(job, "a") is ExecutionState.DEPLOYING
    (find,) = of_kind(ev.FindRestorePoint, job.wait(2))
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("b")}))


def test_a_hopeless_failure_ends_the_others_too() -> None:
    job = running()
    survivor = job.attempt("b")
    commands = job.report("a", TaskState.FAILED, FATAL)
    assert of_kind(ev.Cancel, commands) == [ev.Cancel(survivor, "taskmanager/tm-1")]
    assert job.state.outcome is JobStatus.FAILED


def test_a_hopeless_failure_counts_also_while_another_region_waits_for_its_restart() -> None:
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.report("b", TaskState.FAILED, FATAL)
    assert job.state.outcome is JobStatus.FAILED


def test_checkpoints_that_fail_concern_all_tasks() -> None:
    """C23."""
    job = running()
    assert len(of_kind(ev.Cancel, job.feed(ev.CheckpointsFailed(BOOM)))) == 2


def test_a_lost_taskmanager_takes_only_what_ran_there() -> None:
    """Tasks and slots on the other TaskManager are not touched (R11)."""
    job = WideJob(a=2, b=2)
    first, second = (job.needs[g].allocation_id for g in "ab")
    job.offer(TM1, 2, first)
    job.offer(TM2, 2, second)
    job.deploy()
    job.come_up()
    job.feed(ev.TaskManagerGone(TM2, "killed"))
    assert (state_of(job, "a"), state_of(job, "b")) == (ExecutionState.RUNNING, ExecutionState.FAILED)
    assert set(job.needs) == {"b"}
    job.wait(1)
    (find,) = of_kind(ev.FindRestorePoint, job.offer(TM1, 2))
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("b")}))
    (deploy,) = job.deploy()
    assert deploy.address == "taskmanager/tm-1"


def test_a_lost_session_takes_all_tasks_of_its_taskmanager() -> None:
    """J7."""
    job = running()
    survivor = job.attempt("b")
    lost = SessionLost("the session child ended").info()
    assert ev.Cancel(survivor, "taskmanager/tm-1") in job.report("a", TaskState.FAILED, lost)
    assert job.report("b", TaskState.FAILED, lost) == []
    assert job.state.history.attempts == 1
