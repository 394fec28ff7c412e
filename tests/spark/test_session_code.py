"""User code in a session child: two versions at once, failures, and code that does not come back."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import pytest

from minflinkd.runtime.errors import Consequence, RemoteError
from minflinkd.taskmanager import session_protocol as p
from tests.spark.session_child import Child, call, job, parquet, python, rate, task, until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]

MAIN = """
import pandas as pd
from pyspark.sql import functions as F
from tools import VERSION
from tools.tag import tag

def late(x):
    import tools.tag
    return tools.tag.tag(x)

def build(inputs, params):
    first, second = F.udf(tag, "long"), F.udf(late, "long")
    return inputs["numbers"].select(first("value").alias("a"), second("value").alias("b"))

def write(batch, epoch):
    rows = [VERSION, sorted({(r.a % 10, r.b % 10) for r in batch.collect()})]
    with open(OUT, "a") as out:
        import json
        out.write(json.dumps(rows) + "\\n")
"""


def package(directory: Path, version: int) -> dict[str, str]:
    directory.mkdir()
    (directory / "main.py").write_text(f"OUT = {str(directory / 'seen')!r}\n" + MAIN)
    with zipfile.ZipFile(directory / "tools.zip", "w") as archive:
        archive.writestr("tools/__init__.py", f"VERSION = {version}\n")
        archive.writestr("tools/tag.py", "from . import VERSION\ndef tag(x):\n    return x * 10 + VERSION\n")
    return {name: str(directory / name) for name in ("main.py", "tools.zip")}


async def test_two_jobs_have_modules_of_the_same_names(child: Child, tmp_path: Path) -> None:
    """B (libraries): each job sees its own version, in the driver and in the workers, also in late imports."""
    query = task(rate(10), python("tagged", "main:build", "numbers"), call("main:write", "tagged"))
    attempts = {}
    for version in (1, 2):
        artifacts = package(tmp_path / str(version), version)
        attempts[version] = await child.run(job(), query, artifacts=artifacts)
    for version, attempt in attempts.items():
        await child.batches(attempt, 1)
        await child.ask(p.StopTask(attempt_id=attempt))
        for line in (tmp_path / str(version) / "seen").read_text().splitlines():
            assert json.loads(line) == [version, [[version, version]]]


FAILING = """
from pyspark.sql import functions as F
def picky(x):
    if x > 150:
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
    time.sleep(1000)
def quit(batch, epoch):
    raise SystemExit(3)
"""


async def test_a_failing_udf_is_reported_with_its_traceback(child: Child, tmp_path: Path) -> None:
    """J7: the failure is the task's alone, and says which line of the user's failed."""
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
    assert await child.ask(p.StopTask(attempt_id=attempt)) == p.TaskStopped(ended=True, unloaded=True)
    last = child.notices[-1]
    now = last.metrics.batch_id if isinstance(last, p.BatchFinished) and last.attempt_id == healthy else 0
    await child.batches(healthy, now + 2)
    await child.ask(p.StopTask(attempt_id=healthy))


@pytest.mark.parametrize(
    ("function", "message"), [("write", "KeyError: 'the sink is full'"), ("quit", "SystemExit: 3")]
)
async def test_a_failing_sink_is_reported_with_its_traceback(
    child: Child, tmp_path: Path, function: str, message: str
) -> None:
    """J7: also where the code tries to leave the process."""
    (tmp_path / "failing.py").write_text(FAILING)
    artifacts = {"failing.py": str(tmp_path / "failing.py")}
    attempt = await child.run(job(), task(rate(10), call(f"failing:{function}", "numbers")), artifacts=artifacts)
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    assert failed.error.message == message
    assert f"in {function}" in failed.error.traceback
    await child.ask(p.StopTask(attempt_id=attempt))


async def test_a_task_that_cannot_be_built_is_refused(child: Child, tmp_path: Path) -> None:
    """R: the answer carries the user's exception; nothing of the attempt is left."""
    (tmp_path / "broken.py").write_text("def build(inputs, params):\n    return inputs['nothing']\n")
    query = task(rate(10), python("x", "broken:build", "numbers"), parquet(tmp_path / "out", "x"))
    with pytest.raises(RemoteError) as refused:
        await child.run(job(), query, artifacts={"broken.py": str(tmp_path / "broken.py")})
    assert "vertices.x.python: KeyError: 'nothing'" in str(refused.value)
    assert refused.value.error.code == "task-not-built"
    assert "return inputs['nothing']" in refused.value.error.traceback
    assert (await child.ask(p.Ping())).attempts == ()


async def test_stopping_says_when_user_code_does_not_come_back(child: Child, tmp_path: Path) -> None:
    """The child answers in time, and goes on to answer; the supervisor then replaces it."""
    (tmp_path / "failing.py").write_text(f"MARKER = {str(tmp_path / 'blocks')!r}\n{FAILING}")
    artifacts = {"failing.py": str(tmp_path / "failing.py")}
    attempt = await child.run(job(), task(rate(10), call("failing:block", "numbers")), artifacts=artifacts)
    assert await until((tmp_path / "blocks").exists)
    began = time.monotonic()
    stopped = await child.ask(p.StopTask(attempt_id=attempt, timeout=2.0))
    assert stopped == p.TaskStopped(ended=False, unloaded=False)
    assert time.monotonic() - began < 5
    assert attempt in (await child.ask(p.Ping(), timeout=5.0)).attempts
