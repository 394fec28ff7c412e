"""The code of several jobs in one process: whose module an import finds, and what is left when a job ends (B30).

Also: which artifacts cannot be used.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import linecache
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import cloudpickle

from minflinkd.jobgraph.libraries import PROTECTED_MODULES
from minflinkd.runtime.ids import JobId
from minflinkd.taskmanager.session.code import isolation
from minflinkd.taskmanager.session.code.libraries import CodeCache, MissingFunction
from minflinkd.taskmanager.session.spark.failures import build_failure
from tests.unit.taskmanager.job_code import JOB, artifacts, caches, call, session_in


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with session_in(tmp_path, monkeypatch) as session:
        yield session


LATE = "def run():\n    import other\n    return other.VALUE\n"


def test_each_job_sees_its_own_module_of_a_name(session: Any, tmp_path: Path) -> None:
    """Calls are made in turn and mixed. The tasks of one job share its modules (B30)."""
    cache = caches(session)
    versions = [artifacts(tmp_path / str(n), main=LATE, other=f"VALUE = {n}\n") for n in (1, 2, 1)]
    one, two, again = (cache.load(JOB, version) for version in versions)
    assert [call(code) for code in (one, two, one, two)] == [1, 2, 1, 2]
    assert again.function("main:run") is one.function("main:run")
    assert "other" not in sys.modules
    for code in (one, two, again):
        code.release()


COUNTING = "SEEN = []\ndef run():\n    import other\n    SEEN.append(other.mark())\n    return len(SEEN), other.COUNT\n"
OTHER = "COUNT = 0\ndef mark():\n    global COUNT\n    COUNT += 1\n"


def test_two_jobs_with_the_same_artifacts_share_no_state_of_their_modules(session: Any, tmp_path: Path) -> None:
    """Each job sees its own modules, although both have the same code (B30)."""
    cache = caches(session)
    same = artifacts(tmp_path / "job", main=COUNTING, other=OTHER)
    one, two = cache.load(JOB, same), cache.load(JobId("b" * 32), same)
    assert [call(code) for code in (one, one, two, one)] == [(1, 1), (2, 2), (1, 1), (3, 3)]
    for code in (one, two):
        code.release()


@pytest.mark.parametrize(("order", "seen"), [("child-first", "the job's"), ("parent-first", "installed")])
def test_the_resolve_order_decides_between_the_jobs_module_and_an_installed_one(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, seen: str
) -> None:
    """The order counts for import statements, imports by name and a vertex's own reference.

    A module that only one of the two has is found (B30).
    """
    artifacts(tmp_path / "installed", installed_here="VALUE = 'installed'\ndef run(): return VALUE\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    main = """
import importlib, installed_here, only_here
from installed_here import VALUE
def run():
    assert only_here.VALUE == importlib.import_module("only_here").VALUE == 1
    assert importlib.import_module("installed_here") is installed_here
    return VALUE
"""
    job = artifacts(
        tmp_path / "job",
        main=main,
        installed_here='VALUE = "the job\'s"\ndef run(): return VALUE\n',
        only_here="VALUE = 1\n",
    )
    code = caches(session, order).load(JOB, job)
    assert call(code) == seen
    assert call(code, "installed_here:run") == seen
    code.release()
    sys.modules.pop("installed_here", None)


def test_the_standard_library_pyspark_and_minflinkd_are_nobodys(session: Any, tmp_path: Path) -> None:
    """Child-first does not apply to them: two versions of one of them in a process would break all jobs (B30)."""
    main = "import json, pyspark\ndef run():\n    return hasattr(json, 'dumps') and hasattr(pyspark, 'SparkContext')\n"
    code = caches(session).load(JOB, artifacts(tmp_path / "job", main=main, json="", pyspark="", minflinkd=""))
    assert call(code)
    code.release()
    assert PROTECTED_MODULES | {isolation.MODULE} == isolation.PROTECTED


def test_the_last_holder_takes_everything_with_it(session: Any, tmp_path: Path) -> None:
    """Modules, files and changes to the interpreter are removed. A release may be repeated (B30)."""
    before = importlib.import_module, importlib.util.find_spec, pickle.loads, pickle.Unpickler, list(sys.meta_path)
    cache = caches(session)
    job = artifacts(tmp_path / "job", main=LATE, other="VALUE = 1\n")
    first, second = cache.load(JOB, job), cache.load(JOB, job)
    assert call(first) == call(second) == 1
    assert pickle.loads is not before[2]
    first.release()
    first.release()
    assert call(second) == 1
    second.release()
    work = tmp_path / "work" / "code"
    assert {path.name for path in work.iterdir()} - {"__pycache__"} == {"jars", "native", f"{isolation.MODULE}.py"}
    assert not [name for name in sys.modules if name.startswith("job_")]
    assert not [path for path in sys.path_importer_cache if "/job_" in path]
    now = importlib.import_module, importlib.util.find_spec, pickle.loads, pickle.Unpickler, list(sys.meta_path)
    assert now == before
    later = cache.load(JOB, job)
    assert call(later) == 1
    later.release()


def test_a_job_that_ends_hides_nothing_from_an_import_that_is_under_way(session: Any, tmp_path: Path) -> None:
    """Another thread has asked the jobs' finder, and continues with the finder after it."""
    code = caches(session).load(JOB, artifacts(tmp_path / "job", main=LATE, other="VALUE = 1\n"))
    finders = iter(sys.meta_path)
    behind = sys.meta_path[1]
    next(finders)
    code.release()
    assert next(finders) is behind


def test_code_is_loaded_and_released_while_other_threads_import(session: Any, tmp_path: Path) -> None:
    """Each load succeeds, and nothing is left (B30)."""
    cache, over = caches(session), threading.Event()
    versions = [artifacts(tmp_path / str(n), main=LATE, other=f"VALUE = {n}\n") for n in range(3)]

    def import_others() -> None:
        for n in itertools.cycle(range(5000)):
            if over.is_set():
                return
            if n < 2500:  # the dictionary grows, then shrinks: another size at each look
                sys.modules[f"imported_{n}"] = sys
                linecache.cache[f"imported_{n}"] = (0, None, [], "")
                sys.path_importer_cache[f"imported_{n}"] = None
            for known in (sys.modules, linecache.cache, sys.path_importer_cache) if n >= 2500 else ():
                known.pop(f"imported_{n - 2500}", None)  # type: ignore[attr-defined]

    def use(job: int) -> list[int]:
        found = []
        for n in range(25):
            code = cache.load(JobId(f"{job % 2}" * 32), versions[(job + n) % 3])
            found.append(call(code) - (job + n) % 3)
            code.release()
            with cache._lock:
                assert not cache._ended  # no release had to be repeated
        return found

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    importer = threading.Thread(target=import_others)
    importer.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(use, range(4))) == [[0] * 25] * 4
    finally:
        over.set()
        importer.join()
        sys.setswitchinterval(interval)
        for n in range(2500):
            for known in (sys.modules, linecache.cache, sys.path_importer_cache):
                known.pop(f"imported_{n}", None)  # type: ignore[attr-defined]
    assert not list((tmp_path / "work" / "code").glob("job_*"))
    assert not [name for name in sys.modules if name.startswith("job_")]
    assert not isolation_of(cache)._jobs


def isolation_of(_: CodeCache) -> Any:
    return importlib.import_module(isolation.MODULE)


def test_a_release_that_fails_is_nobodys_failure_and_is_done_again(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session and its other jobs go on. Files are deleted at once, modules when the next job comes (B30)."""
    cache = caches(session)
    job = artifacts(tmp_path / "job", main=COUNTING, other=OTHER)
    code = cache.load(JOB, job)
    assert call(code) == (1, 1)

    def fail(_: str) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with monkeypatch.context() as patch:
        patch.setattr(isolation_of(cache), "forget", fail)
        code.release()
    assert not list((tmp_path / "work" / "code").glob("job_*"))
    left = {name for name in sys.modules if name.startswith("job_")}
    assert left
    again = cache.load(JOB, job)
    assert call(again) == (1, 1)
    assert not left & sys.modules.keys()
    again.release()


def test_a_worker_forgets_jobs_that_have_ended(session: Any, tmp_path: Path) -> None:
    """Nobody tells it. When the next job comes, the worker sees that their directories are gone (B30)."""
    jobs, gone = isolation._jobs, tmp_path / "gone"
    package = "job_" + "0" * 20
    isolation.adopt(package, str(gone), ["main"], parent_first=False)
    isolation.adopt("job_" + "1" * 20, str(tmp_path), ["main"], parent_first=False)
    try:
        assert package not in jobs
    finally:
        isolation.forget("job_" + "1" * 20)
    assert not jobs


def test_objects_of_an_earlier_version_become_the_readers(session: Any, tmp_path: Path) -> None:
    """Each way of unpickling gives the reader's class, while the earlier version is there and afterwards (B30)."""
    main = """
import io, pickle
class Point: VERSION = %d
from pyspark import cloudpickle
class Own(pickle.Unpickler): pass
def write(): return pickle.dumps([Point(), Point])
def read(data):
    ways = pickle.loads(data), pickle.load(io.BytesIO(data)), Own(io.BytesIO(data)).load(), \\
        pickle._Unpickler(io.BytesIO(data)).load(), cloudpickle.loads(data), cloudpickle.load(io.BytesIO(data))
    return [type(way[0]) is way[1] is Point for way in ways]
"""
    cache = caches(session)
    one, two = (cache.load(JOB, artifacts(tmp_path / str(n), main=main % n)) for n in (1, 2))
    written = one.function("main:write")()
    assert two.function("main:read")(written) == [True] * 6
    one.release()
    assert two.function("main:read")(written) == [True] * 6
    two.release()
    again = cache.load(JOB, artifacts(tmp_path / "1", main=main % 1))
    assert again.function("main:read")(written) == [True] * 6
    again.release()
    assert cloudpickle.loads is pickle.loads is isolation._loads


def test_an_import_that_fails_is_told_with_the_users_file_and_line(session: Any, tmp_path: Path) -> None:
    """The frames of the isolation are left out, and names are the user's (B30)."""
    job = artifacts(tmp_path / "job", main="x = 1\nimport nowhere_at_all\n", loud="import main\n")
    code = caches(session).load(JOB, job)
    with pytest.raises(ModuleNotFoundError) as missing:
        code.function("loud:run")
    info = build_failure(missing.value)
    assert info.message == "ModuleNotFoundError: No module named 'nowhere_at_all'"
    assert 'File "loud.py", line 1, in <module>' in info.traceback
    assert 'File "main.py", line 2, in <module>' in info.traceback
    assert "isolation.py" not in info.traceback
    assert isolation.MODULE not in info.traceback
    code.release()


def test_what_a_reference_lacks_is_named(session: Any, tmp_path: Path) -> None:
    """The error names the module, or the function in it (B30)."""
    code = caches(session).load(JOB, artifacts(tmp_path / "job", main="def build(): pass\n"))
    with pytest.raises(MissingFunction, match=r"there is no module 'mian'"):
        code.function("mian:build")
    with pytest.raises(MissingFunction, match=r"has no function 'biuld'"):
        code.function("main:biuld")
    code.release()
