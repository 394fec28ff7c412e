"""A state directory with jobs, and the checkpoints of one of them, as one version of minflinkd writes them.

One job is as a user would submit it: it runs, has completed two checkpoints and failed once, and is in the middle of a
hot restart. One job and one result have every field set (`samples`), so that no field of a record is forgotten.
All is written by the code that the daemon uses. What the daemon draws at random, such as ids, is fixed here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from minflinkd.checkpoint import layout, offsets
from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.dispatcher.job_store import JobStore, StoredJob, StoredOutcome, StoredResult, StoredTrigger
from minflinkd.dispatcher.versions import Restart, Version, Versions
from minflinkd.ha import meeting_point
from minflinkd.ha.embedded import StateDirectory, cluster_id
from minflinkd.ha.meeting_point import MeetingPoint
from minflinkd.jobgraph.model import Input, JobGraph, Restore, Sink, Source, Vertex
from minflinkd.jobmaster import job_history
from minflinkd.resourcemanager import process
from minflinkd.rpc.jobs import HotRestart, JobDetails, JobStatus, RestartState
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId, VertexId
from minflinkd.storage.registry import Storages
from tests.golden.samples import sample

CLUSTER = "c" * 32
RUNNING, FULL, CANCELLED, ENDED = (JobId(digit * 32) for digit in "1234")
TM = ResourceId("tm-0123456789ab")
NOON = 1_700_000_000_000  # in ms
PORT = 40_001
UNDER_WAY, OVER = "a" * 32, "b" * 32  # operations


def graph(threshold: int) -> JobGraph:
    return JobGraph(
        name="clicks",
        vertices=(
            Vertex(id=VertexId("ticks"), source=Source(format="rate", options={"rowsPerSecond": "1"})),
            Vertex(
                id=VertexId("some"),
                inputs=(Input(id=VertexId("ticks")),),
                sql=f"SELECT value FROM ticks WHERE value > {threshold}",
            ),
            Vertex(
                id=VertexId("out"),
                inputs=(Input(id=VertexId("some")),),
                sink=Sink(format="parquet", path="/nowhere/out"),
            ),
        ),
    )


async def write_state(state: Path) -> None:
    leadership = StateDirectory(state)
    leadership.take()
    leadership.release()
    (state / "lock").unlink()
    (state / "cluster.id").write_text(f"{CLUSTER}\n")
    assert cluster_id(state) == CLUSTER
    (state / meeting_point.FILE).write_bytes(msgspec.json.encode(MeetingPoint.of_this_version(PORT)))
    home = state / "taskmanagers" / TM
    home.mkdir(parents=True)
    process._write_identity(home, process.Identity(token="t" * 32, pid=2**30, created=1.5))
    storages = Storages()
    try:
        await _write_jobs(JobStore(storages.at(str(state / "jobs"))))
        await _write_checkpoints(storages, state / "checkpoints")
    finally:
        await storages.aclose()


async def _write_jobs(store: JobStore) -> None:
    await store.put_job(StoredJob(job_id=RUNNING, submitted_ms=NOON, graph=graph(1), submission={"stored": 0.5}))
    await store.put_versions(RUNNING, 4, in_a_hot_restart())
    await store.put_job(replace(sample(StoredJob), job_id=FULL, graph=sound(sample(JobGraph)), cancelled=False))
    await store.put_versions(FULL, 1, replace(sample(Versions), current=Version(graph=sound(sample(JobGraph)))))
    await store.put_job(StoredJob(job_id=CANCELLED, submitted_ms=NOON, graph=graph(0)))
    await store.mark_cancelled(CANCELLED)
    await store.put_trigger(replace(sample(StoredTrigger), job_id=RUNNING, trigger_id=UNDER_WAY))
    await store.put_outcome(replace(sample(StoredOutcome), job_id=RUNNING, trigger_id=OVER))
    details = replace(sample(JobDetails), job_id=ENDED, graph=graph(5), status=JobStatus.FINISHED)
    await store.put_result(replace(sample(StoredResult), dirty=False, details=details))


def in_a_hot_restart() -> Versions:
    """The second restart: its version is current, and has not completed a checkpoint."""
    old, new = Version(graph=graph(2), base=1, base_published=True), Version(graph=graph(3), base=2)
    return Versions(
        current=new,
        restart=Restart(
            number=2, requested_ms=NOON + 9000, target=graph(3), phase=RestartState.STARTING, old=old, checkpoint_id=2
        ),
        past=(HotRestart(number=1, state=RestartState.COMPLETED, requested_ms=NOON + 5000, checkpoint_id=1),),
        restarts=2,
        sinks=((VertexId("out"), "/nowhere/out"),),
        outcomes={RestartState.COMPLETED: 1},
    )


def sound(graph: JobGraph) -> JobGraph:
    """Every field set, in a graph that could be submitted: it waits for slots that nobody has."""
    return replace(graph, restore=Restore(path="/nowhere/savepoint"))


async def _write_checkpoints(storages: Storages, directory: Path) -> None:
    root = storages.at(str(directory / RUNNING))
    store = CheckpointStore(root, job_id=RUNNING, epoch=1)
    for number in (1, 2):
        await store.write(checkpoint(number))
        for file in checkpoint(number).physical_files():
            await root.child(file).write_bytes(b"segment")
    await root.child(layout.id_block(1)).create_exclusive(b"\0" * 16)
    await root.child(job_history.FILE).write_bytes(job_history.encode(sample(job_history.JobHistory)))
    recorded = replace(sample(offsets.Offsets), job_id=RUNNING, version=offsets.VERSION)
    await root.child(offsets.FILE).write_bytes(offsets.encode(recorded))


def checkpoint(number: int) -> CompletedCheckpoint:
    attempt = AttemptId("a" * 32)
    file = f"1-{number}-{TM}-{attempt}-0.seg"
    full: TaskSnapshot = sample(TaskSnapshot)
    (only,) = full.files
    task = replace(
        full,
        task_id=TaskId("out"),
        attempt_id=attempt,
        resource_id=TM,
        checkpoint_id=number,
        files=(replace(only, handle=replace(only.handle, file=file, length=7)),),
        physical_files=(file,),
        file_sizes={file: 7},
    )
    return replace(
        sample(CompletedCheckpoint),
        job_id=RUNNING,
        checkpoint_id=number,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=NOON + 1000 * number,
        completed_ms=NOON + 1000 * number + 200,
        tasks=(task,),
        self_contained=False,
    )
