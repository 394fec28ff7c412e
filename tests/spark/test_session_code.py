"""User code in a session child: failures, code that cannot be imported, and code that never returns."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from minflinkd.jobgraph.model import Source, Vertex
from minflinkd.runtime.errors import Consequence, RemoteError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, parquet, python, rate, task
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FAILING = """
from pyspark.sql import functions as F
def picky(x):
    if x == 151:
        raise ValueError(f"no room for {x}")
    return x
def build(inputs, params):
    return inputs["numbers"].select(F.udf(picky, "long")("value").alias("value"))
def write(batch, epoch):
    if epoch == 1:
        raise KeyError("the sink is full")
def block(batch, epoch):
    import pathlib, time
    pathlib.Path(MARKER).touch()
    while pathlib.Path(MARKER).exists():
        time.sleep(0.05)
def quit(batch, epoch):
    raise SystemExit(3)
"""


async def test_a_failing_udf_is_reported_with_its_traceback(child: Child, tmp_path: Path) -> None:
    """Only the task fails, and the failure says which line of the user's code failed (J7)."""
    (tmp_path / "failing.py").write_text(FAILING)
    artifacts = {"failing.py": str(tmp_path / "failing.py")}
    healthy = await child.run(job(), task(rate(100), parquet(tmp_path / "healthy", "numbers")))
    query = task(rate(100), python("picky", "failing:build", "numbers"), parquet(tmp_path / "out", "picky"))
    attempt = await child.run(job(), query, artifacts=artifacts)
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    assert failed.error.code == "user-code"
    assert failed.error.message == "ValueError: no room for 151"
    assert "in picky" in failed.error.traceback
    assert failed.error.consequence is Consequence.RETRYABLE
    await child.stop(attempt)
    last = child.notices[-1]
    now = last.metrics.batch_id if isinstance(last, p.BatchFinished) and last.attempt_id == healthy else 0
    await child.batches(healthy, now + 2)
    await child.stop(healthy)


async def test_a_failure_names_the_files_of_its_micro_batch(child: Child, tmp_path: Path) -> None:
    """The record that code raises on is in the files that were being read (Issue 15, 13)."""
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "in").mkdir()
    for number in (1, 2, 151):
        file = tmp_path / "in" / f"{number}.json"
        file.write_text(json.dumps({"value": number}))
        os.utime(file, (number, number))
    path, options = str(tmp_path / "in"), {"maxFilesPerTrigger": "1"}
    numbers = Vertex(
        id=VertexId("numbers"), source=Source(format="json", path=path, schema="value BIGINT", options=options)
    )
    query = task(numbers, python("picky", "failing:build", "numbers"), parquet(tmp_path / "out", "picky"))
    attempt = await child.run(job(), query, artifacts={"failing.py": str(tmp_path / "failing.py")})
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    assert failed.error.message == "ValueError: no room for 151"
    assert failed.error.hint == f"micro-batch 2 read numbers: {tmp_path / 'in' / '151.json'}"


async def test_a_file_that_cannot_be_read_is_named_in_sparks_sentence(child: Child, tmp_path: Path) -> None:
    """The error has no stack of the parser, and is not a fault of the user's code (Issue 15, 13)."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "1.json"
    file.write_text('{"value": 1}\nno json\n')
    numbers = Vertex(
        id=VertexId("numbers"),
        source=Source(format="json", path=str(file.parent), schema="value BIGINT", options={"mode": "FAILFAST"}),
    )
    attempt = await child.run(job(), task(numbers, parquet(tmp_path / "out", "numbers")))
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    assert failed.error.code == "spark-query"
    assert failed.error.message.startswith("[FAILED_READ_FILE")
    assert str(file) in failed.error.message
    assert "MALFORMED_RECORD" in failed.error.message
    assert "\n" not in failed.error.message


@pytest.mark.parametrize(
    ("function", "message"), [("write", "KeyError: 'the sink is full'"), ("quit", "SystemExit: 3")]
)
async def test_a_failing_sink_is_reported_with_its_traceback(
    child: Child, tmp_path: Path, function: str, message: str
) -> None:
    """Code that tries to leave the process is reported, too (J7)."""
    (tmp_path / "failing.py").write_text(FAILING)
    artifacts = {"failing.py": str(tmp_path / "failing.py")}
    attempt = await child.run(job(), task(rate(10), call(f"failing:{function}", "numbers")), artifacts=artifacts)
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    assert failed.error.message == message
    assert f"in {function}" in failed.error.traceback
    await child.stop(attempt)


async def test_a_task_that_cannot_be_built_is_refused(child: Child, tmp_path: Path) -> None:
    """The answer has the user's exception, and nothing of the attempt is left (R)."""
    (tmp_path / "broken.py").write_text("def build(inputs, params):\n    return inputs['nothing']\n")
    query = task(rate(10), python("x", "broken:build", "numbers"), parquet(tmp_path / "out", "x"))
    with pytest.raises(RemoteError) as refused:
        await child.run(job(), query, artifacts={"broken.py": str(tmp_path / "broken.py")})
    assert "vertices.x.python: KeyError: 'nothing'" in str(refused.value)
    assert refused.value.error.code == "task-not-built"
    assert "return inputs['nothing']" in refused.value.error.traceback
    assert (await child.ask(p.Ping())).attempts == ()


async def test_stopping_says_when_user_code_does_not_come_back(child: Child, tmp_path: Path) -> None:
    """The child answers in time and keeps answering. The supervisor then replaces it."""
    blocks = tmp_path / "blocks"
    (tmp_path / "failing.py").write_text(f"MARKER = {str(blocks)!r}\n{FAILING}")
    artifacts = {"failing.py": str(tmp_path / "failing.py")}
    attempt = await child.run(job(), task(rate(10), call("failing:block", "numbers")), artifacts=artifacts)
    await until(blocks.exists)
    began = time.monotonic()
    stopped = await child.ask(p.StopTask(attempt_id=attempt, timeout=2.0))
    assert stopped == p.TaskStopped(ended=False)
    assert time.monotonic() - began < 30
    assert attempt in (await child.ask(p.Ping(), timeout=30.0)).attempts
    blocks.unlink()
    await child.stop(attempt)


def artifact(directory: Path, name: str, text: str) -> dict[str, str]:
    (directory / name).write_text(text)
    return {name: str(directory / name)}


BROKEN = """
from pyspark.sql import functions as F
def late(x):
    import worse
    return x
def build(inputs, params):
    return inputs["numbers"].select(F.udf(late, "long")("value").alias("value"))
"""
WORSE = "BEFORE = 1\nraise LookupError('worse cannot be imported')\n"


async def test_a_module_that_fails_to_import_fails_the_task(child: Child, tmp_path: Path) -> None:
    """The failure has the user's file and line, in the driver and in a worker (B30)."""
    artifacts = artifact(tmp_path, "main.py", BROKEN) | artifact(tmp_path, "worse.py", WORSE)
    with pytest.raises(RemoteError) as refused:
        await child.run(job(), task(rate(4), call("worse:write", "numbers")), artifacts=artifacts)
    assert refused.value.error.code == "task-not-built"
    assert 'File "worse.py", line 2, in <module>' in refused.value.error.traceback
    query = task(rate(4), python("x", "main:build", "numbers"), parquet(tmp_path / "out", "x"))
    attempt = await child.run(job(), query, artifacts=artifacts)
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    assert (failed.error.code, failed.error.message) == ("user-code", "LookupError: worse cannot be imported")
    assert 'File "main.py", line 4, in late' in failed.error.traceback
    assert 'File "worse.py", line 2, in <module>' in failed.error.traceback
    assert "minflinkd_job_code" not in failed.error.traceback
    await child.stop(attempt)


async def test_analysis_loads_the_code_and_lets_go_of_it(child: Child, tmp_path: Path) -> None:
    """Analysed code waits for its deployment. Another analysis of the job discards it completely (B30, J4)."""
    text = "def build(inputs, params):\n    import helper\n    return helper.pick(inputs)\n"
    helper = "def pick(inputs):\n    return inputs['numbers'].select('value')\n"
    artifacts = artifact(tmp_path, "main.py", text) | artifact(tmp_path, "helper.py", helper)
    query = task(rate(4), python("x", "main:build", "numbers"), parquet(tmp_path / "out", "x"))
    code = child.directory / "work" / "code"
    before = set(code.iterdir())
    context = job()
    found = await child.ask(p.AnalyzeTasks(job=context, tasks=(query,), artifacts=artifacts))
    assert found.faults == ()
    assert found.schemas["x"] == "struct<value:bigint>"
    assert len(set(code.iterdir()) - before) == 1  # the code of an earlier job may not be deleted yet
    faulty = task(rate(4), python("x", "main:missing", "numbers"), parquet(tmp_path / "out", "x"))
    found = await child.ask(p.AnalyzeTasks(job=context, tasks=(faulty,), artifacts=artifacts))
    assert len(found.faults) == 1
    assert set(code.iterdir()) <= before
