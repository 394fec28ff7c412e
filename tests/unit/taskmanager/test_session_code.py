"""The code of several jobs in one process: whose module an import finds, and what is left when a job ends (B30).

Also: which artifacts cannot be used.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import itertools
import linecache
import pickle
import shutil
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.cloudpickle import cloudpickle

from minflinkd.dispatcher.libraries import _members
from minflinkd.jobgraph.libraries import PROTECTED_MODULES
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode
from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.rpc.messages import Analysis, JobContext
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.ids import JobId
from minflinkd.taskmanager.child.protocol import AnalyzeTasks, SessionConfig
from minflinkd.taskmanager.session.child import _analysis
from minflinkd.taskmanager.session.code import isolation
from minflinkd.taskmanager.session.code.artifacts import UnusableArtifact
from minflinkd.taskmanager.session.code.libraries import CodeCache, JobCode, MissingFunction
from minflinkd.taskmanager.session.spark.failures import build_failure

JOB = JobId("a" * 32)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What a cache needs of a session. Afterwards this process is as it was before."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cloudpickle.Pickler, "_dynamic_function_reduce", cloudpickle.Pickler._dynamic_function_reduce)
    config = SessionConfig(name="tm", slots=1, working_directory=str(tmp_path / "work"), log_directory=str(tmp_path))
    yield SimpleNamespace(config=config)
    sys.modules.pop(isolation.MODULE, None)


def caches(session: Any, resolve_order: str = "child-first") -> CodeCache:
    values = {name: getattr(session.config, name) for name in ("name", "slots", "working_directory", "log_directory")}
    return CodeCache(SimpleNamespace(config=SessionConfig(**values, resolve_order=resolve_order)))  # type: ignore[arg-type]


def artifacts(directory: Path, **texts: str) -> dict[str, str]:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / f"{name}.py").write_text(text)
    return {f"{name}.py": str(directory / f"{name}.py") for name in texts}


def archive(path: Path, **members: str) -> dict[str, str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return {path.name: str(path)}


def call(code: JobCode, reference: str = "main:run") -> Any:
    return code.function(reference)()


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


def test_archives_are_looked_up_in_the_jobs_order(session: Any, tmp_path: Path) -> None:
    """As on Python's path, the first archive with a module wins. Namespace packages are joined (B30)."""
    first = archive(tmp_path / "first.zip", **{"space/a.py": "VALUE = 'first'\n", "space/c.py": "VALUE = 3\n"})
    second = archive(tmp_path / "second.zip", **{"space/a.py": "VALUE = 'second'\n", "space/b.py": "VALUE = 2\n"})
    main = artifacts(tmp_path, main="from space import a, b, c\ndef run(): return a.VALUE, b.VALUE, c.VALUE\n")
    code = caches(session).load(JOB, second | first | main)
    assert call(code) == ("second", 2, 3)
    code.release()


def test_members_that_lead_elsewhere_are_left_out(session: Any, tmp_path: Path) -> None:
    """Nothing is written outside the job's directory (B41)."""
    members = {"../escaped.py": "", "/tmp/escaped.py": "", "a/../../escaped.py": "", "fine.py": "def run(): return 1\n"}
    code = caches(session).load(JOB, archive(tmp_path / "bad.zip", **members))
    assert call(code, "fine:run") == 1
    assert not list(tmp_path.rglob("escaped.py"))
    code.release()


def flawed(path: Path, method: int = zipfile.ZIP_STORED, name: str = "main.py") -> bytearray:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr(name, "VALUE = 1\n" * 1000)
    return bytearray(path.read_bytes())


def unsound(kind: str, path: Path) -> dict[str, str]:
    """Write an archive with one fault. Python reports each kind of fault in another way."""
    if kind == "lzma":
        data = flawed(path, zipfile.ZIP_LZMA)
        data[60:70] = b"\xff" * 10
    elif kind == "bzip2":
        data = flawed(path, zipfile.ZIP_BZIP2)
        data[41:60] = b"\xff" * 19
    elif kind == "deflate":
        data = flawed(path, zipfile.ZIP_DEFLATED)
        data[60:80] = bytes(20)
    elif kind == "name":
        data = bytearray(bytes(flawed(path, name="m\xfcin.py")).replace("\xfc".encode(), b"\xff\xff"))
    elif kind == "long name":
        data = flawed(path, name="a" * 300 + ".py")
    elif kind == "position":
        data = flawed(path)
        end = data.rfind(b"PK\5\6")
        data[end + 12 : end + 16] = struct.pack("<I", end + 16)
    else:
        data = bytearray(b"no archive")
    path.write_bytes(data)
    return {path.name: str(path)}


UNSOUND = ("lzma", "bzip2", "deflate", "name", "long name", "position", "text")


@pytest.mark.parametrize("kind", UNSOUND)
def test_a_damaged_archive_is_the_artifacts_fault_however_it_is_damaged(
    session: Any, tmp_path: Path, kind: str
) -> None:
    """The user hears of it, and is not told to submit again.

    The archive claims no modules, or those that it names (B30).
    """
    bad = unsound(kind, tmp_path / "bad.zip")
    with pytest.raises(UnusableArtifact, match=r"artifact bad\.zip"):
        caches(session).load(JOB, bad)
    assert not list((tmp_path / "work" / "code").glob("job_*"))
    claimed = _members(tmp_path / "bad.zip")
    assert not claimed or kind in ("lzma", "bzip2", "deflate", "long name")


def test_a_full_disk_is_not_the_artifacts_fault(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same artifact can be used elsewhere, or later (B30)."""
    job = archive(tmp_path / "fine.zip", **{"main.py": "def run(): return 1\n"})
    cache = caches(session)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="no space left"):
            cache.load(JOB, job)
    code = cache.load(JOB, job)
    assert call(code) == 1
    code.release()


def test_a_package_behind_a_module_of_its_name_is_refused(session: Any, tmp_path: Path) -> None:
    """Python would take the package, although the job's order says the module (B30)."""
    main = artifacts(tmp_path, main="import tools\ndef run(): return tools.VALUE\n", tools="VALUE = 'module'\n")
    package = archive(tmp_path / "lib.zip", **{"tools/__init__.py": "VALUE = 'package'\n"})
    namespace = archive(tmp_path / "space.zip", **{"tools/data.txt": ""})
    cache = caches(session)
    with pytest.raises(UnusableArtifact, match=r"lib\.zip: tools/__init__\.py is a package.* has the module tools\.py"):
        cache.load(JOB, main | package)
    for job, expected in ((package | main, "package"), (main | namespace, "module")):
        code = cache.load(JOB, job)
        assert call(code) == expected
        code.release()


def damaged(path: Path) -> dict[str, str]:
    found = archive(path, **{"main.py": "VALUE = 1\n" * 1000})
    data = bytearray(path.read_bytes())
    data[60:80] = bytes(20)
    path.write_bytes(data)
    return found


@pytest.mark.parametrize("kind", ["no archive", "damaged", "suffix", "file and directory"])
def test_what_cannot_be_used_is_refused_and_leaves_nothing(session: Any, tmp_path: Path, kind: str) -> None:
    """The error names the artifact. A later job is served (B30)."""
    (tmp_path / "text.zip").write_text("no archive")
    bad = {
        "no archive": lambda: {"text.zip": str(tmp_path / "text.zip")},
        "damaged": lambda: damaged(tmp_path / "damaged.zip"),
        "suffix": lambda: {"code.egg": str(tmp_path / "text.zip")},
        "file and directory": lambda: archive(tmp_path / "odd.zip", **{"a": "", "a/b.py": "", "main.py": ""}),
    }[kind]()
    cache = caches(session)
    with pytest.raises(UnusableArtifact, match=next(iter(bad))):
        cache.load(JOB, bad)
    assert not list((tmp_path / "work" / "code").glob("job_*"))
    code = cache.load(JOB, artifacts(tmp_path / "job", main="def run(): return 1\n"))
    assert call(code) == 1
    code.release()


def native(directory: Path, text: str) -> dict[str, str]:
    """Write an archive with a native module. It is never loaded, so its bytes do not matter."""
    return archive(directory / "acme.whl", **{"acme_fast/core.so": text, "acme_fast/__init__.py": f"VALUE = {text}\n"})


def analyse(cache: CodeCache, artifacts: dict[str, str]) -> Analysis:
    job = JobContext(
        job_id=JOB, name="job", params={}, mode=RuntimeMode.STREAMING, checkpointing=Checkpointing(), checkpoint_root=""
    )
    engine: Any = SimpleNamespace(code=cache)
    return _analysis(engine, AnalyzeTasks(job=job, tasks=(), artifacts=artifacts))


def test_native_code_is_there_once_by_its_own_name(session: Any, tmp_path: Path) -> None:
    """Another version is refused. The same one is shared, and stays for later jobs (B31)."""
    cache = caches(session)
    main = artifacts(tmp_path / "job", main="import acme_fast\ndef run(): return acme_fast.VALUE\n")
    for _ in range(2):
        code = cache.load(JOB, main | native(tmp_path / "1", "1"))
        assert call(code) == 1
        code.release()
    with pytest.raises(LibraryConflict, match="another version of acme_fast") as refused:
        cache.load(JOB, native(tmp_path / "2", "2"))
    assert refused.value.info().consequence is Consequence.RETRYABLE
    with pytest.raises(LibraryConflict):  # not reported as a fault of the job: another TaskManager can analyse it
        analyse(cache, native(tmp_path / "2", "2"))
    (fault,) = analyse(cache, unsound("text", tmp_path / "bad.zip")).faults
    assert fault.problem.startswith("artifact bad.zip is no zip archive")
    sys.modules.pop("acme_fast")


def test_two_native_archives_of_a_job_share_a_package(session: Any, tmp_path: Path) -> None:
    """The archives are joined file by file. A file that both have is identical, or belongs to no package (B31)."""
    one = archive(tmp_path / "one.zip", **{"acme_two/core.so": "x", "acme_two/a.py": "V = 1\n", "LICENSE": "one"})
    parts = {"acme_two/fast.so": "y", "acme_two/b/c.py": "V = 2\n", "acme_two/a.py": "V = 1\n", "LICENSE": "two"}
    two = archive(tmp_path / "two.zip", **parts)
    main = "from acme_two import a\nfrom acme_two.b import c\ndef run(): return a.V, c.V\n"
    code = caches(session).load(JOB, one | two | artifacts(tmp_path, main=main))
    assert call(code) == (1, 2)
    code.release()
    for name in [name for name in sys.modules if name.startswith("acme_two")]:
        del sys.modules[name]


@pytest.mark.parametrize("other", ["acme_two/core.so", "acme_two/data.json", "acme_two/data.json/x.py", "acme_two"])
def test_native_archives_with_another_content_of_one_file_are_refused(session: Any, tmp_path: Path, other: str) -> None:
    """No file of the second archive is written, because the session would keep it for good (B31)."""
    one = archive(tmp_path / "one.zip", **{"acme_two/core.so": "x", "acme_two/data.json": "1"})
    two = archive(tmp_path / "two.zip", **{"acme_first/fast.so": "", "acme_two.so": "", other: "another"})
    with pytest.raises(UnusableArtifact, match=r"artifact two\.zip: acme_two"):
        caches(session).load(JOB, one | two)
    native_code = tmp_path / "work" / "code" / "native"
    assert {path.name for path in native_code.iterdir()} == {"acme_two"}


def test_native_code_that_is_installed_cannot_be_replaced(session: Any, tmp_path: Path) -> None:
    """With child-first it is refused. With parent-first the installed one is used (B31)."""
    wheel = archive(tmp_path / "xxhash.whl", **{"xxhash/_xxhash.so": "", "xxhash/__init__.py": ""})
    with pytest.raises(UnusableArtifact, match="xxhash, which is native code and installed already"):
        caches(session).load(JOB, wheel)
    main = artifacts(tmp_path / "job", main="import xxhash\ndef run(): return hasattr(xxhash, 'xxh3_64')\n")
    code = caches(session, "parent-first").load(JOB, main | wheel)
    assert call(code)
    code.release()
