"""The code of a job in Spark's Python workers, which are processes of their own (B30)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import cloudpickle

from tests.unit.taskmanager.job_code import JOB, artifacts, caches, call, session_in


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with session_in(tmp_path, monkeypatch) as session:
        yield session


COUNTING = "SEEN = []\ndef run():\n    import other\n    SEEN.append(other.mark())\n    return len(SEEN), other.COUNT\n"
OTHER = "COUNT = 0\ndef mark():\n    global COUNT\n    COUNT += 1\n"


STARTS = """
import pickle, sys
starts = iter(sys.stdin.buffer.readline, b"")
for line in starts:
    print(pickle.loads(bytes.fromhex(line.decode()))(), flush=True)
"""


def test_a_job_that_starts_again_begins_afresh_also_in_a_worker_that_ran_it_before(
    session: Any, tmp_path: Path
) -> None:
    """What its modules counted before is gone, for instance after a failure (B30)."""
    cache = caches(session)
    job = artifacts(tmp_path / "job", main=COUNTING, other=OTHER)
    environment = {"PYTHONPATH": str(tmp_path / "work" / "code")}
    with subprocess.Popen(
        [sys.executable, "-c", STARTS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for _ in range(2):
            code = cache.load(JOB, job)
            assert call(code) == (1, 1)
            for expected in (b"(1, 1)\n", b"(2, 2)\n"):
                worker.stdin.write(cloudpickle.dumps(code.function("main:run")).hex().encode() + b"\n")
                worker.stdin.flush()
                assert worker.stdout.readline() == expected
            code.release()
        worker.stdin.close()


CLOSURES = """
import importlib
def make():
    def inner():
        import other
        def deeper():
            import other
            return importlib.import_module("other").VALUE + other.VALUE
        return [other.VALUE, deeper()]
    return inner
anonymous = lambda: __import__("other").VALUE
"""
WORKER = "import pickle, sys\nfor function in pickle.load(sys.stdin.buffer):\n    print(function())\n"


def test_functions_by_value_import_in_a_process_that_never_heard_of_the_job(session: Any, tmp_path: Path) -> None:
    """Closures, functions that they define when they run, and lambdas work as in Spark's workers (B30)."""
    cache = caches(session)
    codes = [cache.load(JOB, artifacts(tmp_path / str(n), main=CLOSURES, other=f"VALUE = {n}\n")) for n in (1, 2)]
    functions = [f for code in codes for f in (code.function("main:make")(), code.function("main:anonymous"))]
    for code in codes:
        code.function("main:make")
    result = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=cloudpickle.dumps(functions),
        env={"PYTHONPATH": str(tmp_path / "work" / "code")},
        capture_output=True,
        check=True,
    )
    assert result.stdout.decode().split("\n")[:4] == ["[1, 2]", "1", "[2, 4]", "2"]
    for code in codes:
        code.release()
