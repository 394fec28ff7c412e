"""Sink directories in other storages are checked before a job starts (J4)."""

from __future__ import annotations

import pytest

from minflinkd.jobgraph.model import Checkpointing, Input, RuntimeMode, Sink, Task, Vertex
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.ids import JobId, TaskId, VertexId
from minflinkd.storage.interface import PermissionDenied
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts.sink_paths import sink_path_faults
from tests.unit.storage.memory import Memory

REFUSED = PermissionDenied("no access", hint="look at the keys")
JOB = JobContext(
    job_id=JobId("1" * 32),
    name="job",
    mode=RuntimeMode.STREAMING,
    params={"place": "bucket"},
    checkpointing=Checkpointing(),
    checkpoint_root="file:///nowhere",
)


def task(path: str, *, format: str = "parquet") -> Task:
    read = (Input(id=VertexId("a")),)
    return Task(
        id=TaskId("a"),
        vertices=(Vertex(id=VertexId("out"), inputs=read, sink=Sink(format=format, path=path)),),
        parallelism=1,
    )


def storages(*script: str | Exception) -> Storages:
    """Storages with one backend, `mem`. The arguments say what it does with the next requests."""
    found, memory = Storages(), Memory()
    memory.script = list(script)
    found.add(memory)
    return found


async def test_a_storage_that_answers_is_no_fault() -> None:
    """It does not matter whether anything is there (J4)."""
    assert await sink_path_faults(storages(), JOB, [task("mem://${place}/out")]) == ()


async def test_local_directories_and_sinks_without_one_are_not_looked_at() -> None:
    """The session checks local directories (J4)."""
    for path in ("/data/out", "file:///data/out"):
        assert await sink_path_faults(storages(REFUSED), JOB, [task(path)]) == ()
    assert await sink_path_faults(storages(REFUSED), JOB, [task("mem://x/out", format="console")]) == ()


@pytest.mark.parametrize(
    ("answer", "words"),
    [(REFUSED, "no access"), ("hang", "no answer within 1 s")],
    ids=["refuses", "does not answer"],
)
async def test_a_storage_that_fails_is_a_fault_of_the_path(answer: str | Exception, words: str) -> None:
    """The message has the params filled in and says what to check (J4)."""
    (found,) = await sink_path_faults(storages(answer), JOB, [task("mem://${place}/out")], patience=1.0)
    assert found.path == "vertices.out.sink.path"
    assert found.problem == f"mem://bucket/out cannot be written: {words}"
    assert found.hint


async def test_a_place_where_a_check_fails_is_a_fault_that_names_it() -> None:
    opened = Storages({"memory.writable": "true"})
    (found,) = await sink_path_faults(opened, JOB, [task("memory://${place}/out")])
    assert found.path == "vertices.out.sink.path"
    assert "memory://bucket/out cannot be written: the check exclusive-create failed" in found.problem
    (found,) = await sink_path_faults(Storages(), JOB, [task("memory://${place}/out")])
    assert "storages of memory:// are only read" in found.problem


async def test_an_unknown_scheme_is_a_fault_of_the_path() -> None:
    """The hint names the package that provides it (J4)."""
    (found,) = await sink_path_faults(storages(), JOB, [task("gopher://bucket/out")])
    assert found.path == "vertices.out.sink.path"
    assert "no storage backend for gopher://" in found.problem
