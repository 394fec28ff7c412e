"""Artifacts of jobs: archives and native code, and which of them cannot be used (B30)."""

from __future__ import annotations

import errno
import shutil
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minflinkd.jobgraph.archives import ArchiveLimits, Contents, contents
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode
from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.rpc.messages import Analysis, JobContext
from minflinkd.runtime.errors import Consequence
from minflinkd.taskmanager.child.protocol import AnalyzeTasks
from minflinkd.taskmanager.session.child import _analysis
from minflinkd.taskmanager.session.code.artifacts import UnusableArtifact
from minflinkd.taskmanager.session.code.libraries import CodeCache
from tests.unit.taskmanager.job_code import JOB, archive, artifacts, caches, call, session_in


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with session_in(tmp_path, monkeypatch) as session:
        yield session


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
    claimed = contents(tmp_path / "bad.zip", ArchiveLimits())
    assert claimed == Contents() or kind in ("lzma", "bzip2", "deflate", "long name")


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
    library = native(tmp_path / "1", "1")  # once: an archive has the time at which it was made
    for _ in range(2):
        code = cache.load(JOB, main | library)
        assert call(code) == 1
        code.release()
    with pytest.raises(LibraryConflict, match="another version of acme_fast") as refused:
        cache.load(JOB, native(tmp_path / "2", "2"))
    assert refused.value.info().consequence is Consequence.RETRYABLE
    with pytest.raises(LibraryConflict):  # not reported as a fault of the job: another TaskManager can analyse it
        analyse(cache, native(tmp_path / "2", "2"))
    (fault,) = analyse(cache, unsound("text", tmp_path / "bad.zip")).faults
    assert fault.problem.startswith("artifact bad.zip is not a zip archive")
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
    with pytest.raises(UnusableArtifact, match="xxhash, which is native code and already installed"):
        caches(session).load(JOB, wheel)
    main = artifacts(tmp_path / "job", main="import xxhash\ndef run(): return hasattr(xxhash, 'xxh3_64')\n")
    code = caches(session, "parent-first").load(JOB, main | wheel)
    assert call(code)
    code.release()
