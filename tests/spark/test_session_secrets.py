"""Secrets that a job names: they are looked up where its tasks run, and hidden in what is said about them (E44)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.jobgraph.model import Source, Vertex
from minflinkd.runtime.errors import Consequence, RemoteError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, job, parquet, task
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


def keep(child: Child, name: str, value: str) -> None:
    """Write a secret as an operator does."""
    child.secrets.mkdir(exist_ok=True)
    place = child.secrets / name
    place.write_text(value + "\n")
    place.chmod(0o600)


def reading(option: str) -> Vertex:
    """A source whose number of rows a second is this option."""
    return Vertex(id=VertexId("rows"), source=Source(format="rate", options={"rowsPerSecond": option}))


async def test_a_source_gets_the_secret_and_its_new_value_when_it_starts_again(child: Child, tmp_path: Path) -> None:
    """It is looked up for each start of the task, so that a secret can be exchanged (E44)."""
    for round_, value in enumerate(("100", "300")):
        keep(child, "rows-a-second", value)
        out = tmp_path / f"out{round_}"
        query = task(reading("${secret:rows-a-second}"), parquet(out, "rows"))
        assert (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults == ()
        attempt = await child.run(job(), query)
        await until(lambda out=out: any(out.rglob("part-*")), "rows are written")  # type: ignore[misc]
        await child.stop(attempt)


async def test_an_error_does_not_show_the_secret(child: Child, tmp_path: Path) -> None:
    """Spark puts the value of an option into its message (E44)."""
    keep(child, "wrong", "geheimes-kennwort")
    query = task(reading("${secret:wrong}"), parquet(tmp_path / "out", "rows"))
    faults = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert faults
    assert "geheimes-kennwort" not in str(faults)
    assert "******" in str(faults)
    keep(child, "wrong", "noch-eines")
    faults = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert "noch-eines" not in str(faults)


async def test_a_secret_that_is_not_there_is_a_fault_of_its_vertex(child: Child, tmp_path: Path) -> None:
    """The fault says where to put it (E44)."""
    query = task(reading("${secret:nobody-knows}"), parquet(tmp_path / "out", "rows"))
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert fault.path == "vertices.rows"
    assert "the secret nobody-knows is not known" in fault.problem
    assert str(child.secrets / "nobody-knows") in fault.hint
    assert "$MINFLINKD_SECRET_NOBODY_KNOWS" in fault.hint


async def test_a_secret_that_has_gone_by_the_time_of_a_start_is_worth_another_try(child: Child, tmp_path: Path) -> None:
    """Somebody may be replacing it, or another TaskManager has it. A plan that was checked before is not used (E44)."""
    keep(child, "gone-soon", "100")
    query = task(reading("${secret:gone-soon}"), parquet(tmp_path / "out", "rows"))
    assert (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults == ()
    (child.secrets / "gone-soon").unlink()
    with pytest.raises(RemoteError) as refused:
        await child.run(job(), query)
    assert (refused.value.info().code, refused.value.info().consequence) == ("unknown-secret", Consequence.RETRYABLE)
