"""LibraryCacheManager: keeps the code of many jobs apart in one session (B30, B31).

A job's Python code is unpacked once for all of its tasks, below a directory that driver and workers have on their path.
`isolation.py` describes how its modules find each other there. The code is removed when its last holder releases it.
The directory's name is never used again: a worker that outlives the job still has its modules, and the job's next start
must not get those.

Native modules and jars belong to the session as a whole and stay until it ends: a process can have only one version of
a native module, and Spark gives the jars of a session, isolated or not, to the tasks of all others. The ResourceManager
makes sure that a session gets only one version of each (`jobgraph/libraries.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import FileFinder
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import SparkSession

from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.taskmanager.session.code import artifacts as files
from minflinkd.taskmanager.session.code import isolation as shipped
from minflinkd.taskmanager.session.code.artifacts import Artifact, UnusableArtifact
from minflinkd.taskmanager.session.code.pickling import send_functions_of_jobs
from minflinkd.taskmanager.session.spark.session import Session, code_directory

log = structlog.get_logger(__name__)

_PACKAGE = """\
import {module}

{module}.adopt(__name__, __path__[0], {names!r}, parent_first={parent_first!r})
"""


class MissingFunction(MinflinkError):
    """`module:function` names a module or function that the job's artifacts do not have."""

    code = "missing-function"
    consequence = Consequence.FATAL


class JobCode:
    """The code of one job, held until `release`. Without artifacts, it is what the TaskManager has installed."""

    def __init__(self, package: str | None, jars: bool, release: Callable[[], None]) -> None:
        self._package = package
        self._jars = jars
        self._release = release
        self._lock = threading.Lock()
        self._released = False

    def release(self) -> None:
        """Let go of the code: its modules must not be used afterwards. Idempotent."""
        with self._lock:
            if self._released:
                return
            self._released = True
        self._release()

    @contextmanager
    def in_session(self, spark: SparkSession) -> Iterator[None]:
        """Let this thread, and queries that it starts inside the block, find the classes of the job's jars."""
        if not self._jars:
            yield
            return
        jvm: Any = spark._jvm
        thread = jvm.java.lang.Thread.currentThread()
        before = thread.getContextClassLoader()
        thread.setContextClassLoader(spark._jsparkSession.sharedState().jarClassLoader())
        try:
            yield
        finally:
            thread.setContextClassLoader(before)

    def function(self, reference: str) -> Callable[..., Any]:
        """Return the function that `module:function` names. Raises MissingFunction, and what importing it raises."""
        module_name, _, name = reference.partition(":")
        module = self._module(module_name)
        found = getattr(module, name, None)
        if not callable(found):
            known = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
            raise MissingFunction(
                f"{reference}: the module {module_name} has no function {name!r}",
                hint=f"it has {', '.join(known[:10])}" if known else "it defines none",
            )
        function: Callable[..., Any] = found
        return function

    def _module(self, name: str) -> Any:
        own = _isolation().job_of(self._package) if self._package else None
        try:
            return own.module(name) if own is not None and own.owns(name) else importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                raise  # the module is there, but something that it imports is not
        raise MissingFunction(f"there is no module {name!r}", hint="is its artifact part of the job?")


NO_CODE = JobCode(None, False, lambda: None)


def _isolation() -> Any:
    return importlib.import_module(shipped.MODULE)


@dataclass
class _Package:
    """One job's code on disk."""

    name: str
    holders: int = 0


class CodeCache:
    """Makes the code of jobs importable here and in the workers. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parent_first = session.config.resolve_order == "parent-first"
        self._directory = code_directory(session.config)
        self._native_directory = self._directory / "native"
        self._jar_directory = self._directory / "jars"
        self._lock = threading.Lock()
        self._packages: dict[str, _Package] = {}  # by job, artifacts and their order
        self._ended = set[str]()  # packages that nobody holds any more and that are not removed yet
        self._libraries: dict[str, set[str]] = {}  # unit -> the digests of what defines it
        for path in (self._native_directory, self._jar_directory):
            path.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped.__file__, self._directory / f"{shipped.MODULE}.py")
        for path in (self._directory, self._native_directory):
            sys.path.append(str(path))
            self._changed(path)
        send_functions_of_jobs(_isolation())

    def load(self, job_id: JobId, artifacts: Mapping[str, str]) -> JobCode:
        """Make a job's artifacts importable. Tasks of one job share their modules.

        The caller releases what is returned. Raises UnusableArtifact, LibraryConflict.
        """
        if not artifacts:
            return NO_CODE
        found = files.read(artifacts)
        python = tuple(artifact for artifact in found if not artifact.is_library)
        key = files.digest_of(python, job_id)
        with self._lock:
            self._clear()
            self._check_libraries(found)
            for artifact in found:
                if artifact.is_library:
                    self._add_library(artifact)
            package = self._hold(key, python) if python else None
        jars = any(artifact.is_jar for artifact in found)
        return JobCode(package, jars, lambda: None if package is None else self._let_go(key))

    # --- Python ------------------------------------------------------------------------------------------------------

    def _hold(self, key: str, python: tuple[Artifact, ...]) -> str:
        package = self._packages.get(key)
        if package is None:
            package = _Package(f"job_{secrets.token_hex(10)}")
            with self._staged(package.name) as partial:
                self._lay_out(python, partial)
                partial.rename(self._directory / package.name)
            self._changed(self._directory)
            self._packages[key] = package
        package.holders += 1
        return package.name

    def _let_go(self, key: str) -> None:
        with self._lock:
            package = self._packages[key]
            package.holders -= 1
            if not package.holders:
                del self._packages[key]
                self._ended.add(package.name)
                self._clear()

    def _clear(self) -> None:
        """Remove what nobody holds any more. A removal that fails harms no job; it is tried again with the next one."""
        for package in tuple(self._ended):
            directory = self._directory / package
            try:
                try:
                    _isolation().forget(package)
                finally:
                    files.remove(directory)
            except Exception:
                log.exception("code of a job that has ended is still there", package=package)
            else:
                if not os.path.lexists(directory):
                    self._ended.discard(package)

    def _lay_out(self, python: tuple[Artifact, ...], target: Path) -> None:
        names = sorted(frozenset[str]().union(*(artifact.names for artifact in python)))
        text = _PACKAGE.format(module=shipped.MODULE, names=names, parent_first=self._parent_first)
        (target / "__init__.py").write_text(text, "utf-8")
        for artifact in python:
            files.unpack(artifact, target)

    @contextmanager
    def _staged(self, name: str) -> Iterator[Path]:
        partial = self._directory / f"{name}.part"
        files.remove(partial)
        partial.mkdir()
        try:
            yield partial
        finally:
            files.remove(partial)

    def _changed(self, directory: Path) -> None:
        """Make the importers of all processes look at a directory again.

        They compare its modification time, which the file system may count in large steps: so it is moved forward.
        """
        now = max(time.time_ns(), directory.stat().st_mtime_ns + 1_000_000)
        os.utime(directory, ns=(now, now))
        for path, finder in sys.path_importer_cache.copy().items():  # importlib.invalidate_caches is not thread-safe
            if isinstance(finder, FileFinder) and Path(path).is_relative_to(directory):
                finder.invalidate_caches()

    # --- native modules and jars -------------------------------------------------------------------------------------

    def _check_libraries(self, found: tuple[Artifact, ...]) -> None:
        """Raise LibraryConflict if the session has another version of a library.

        Two artifacts of one job may share a package. If another job's artifact has it too, that is another version.
        """
        own = {artifact.digest for artifact in found}
        for artifact in found:
            for unit in artifact.units:
                if self._libraries.get(unit, own) - own:
                    raise LibraryConflict(
                        f"artifact {artifact.name}: the session has another version of {unit.partition(':')[2]}",
                        hint="another TaskManager can run the job; `isolation: job` gives it TaskManagers of its own",
                    )

    def _add_library(self, artifact: Artifact) -> None:
        if all(artifact.digest in self._libraries.get(unit, ()) for unit in artifact.units):
            return
        if artifact.is_jar:
            path = (
                self._jar_directory / f"{artifact.digest[:20]}-{artifact.name}"
            )  # unique: Spark keeps all in one place
            shutil.copyfile(artifact.path, path)
            java: Any = self._session.spark._jsparkSession
            java.sessionState().resourceLoader().addJar(str(path))
        elif not self._is_installed(artifact):
            with self._staged(f"native_{artifact.digest[:20]}") as partial:
                files.unpack(artifact, partial)
                files.merge(artifact, partial, self._native_directory)
            self._changed(self._native_directory)
        for unit in artifact.units:
            self._libraries.setdefault(unit, set()).add(artifact.digest)

    def _is_installed(self, artifact: Artifact) -> bool:
        """Whether a native module is installed already. Raises UnusableArtifact if the job's own should win."""
        known = {unit.partition(":")[2] for unit in self._libraries}
        installed = [name for name in sorted(artifact.names - known) if importlib.util.find_spec(name) is not None]
        if installed and not self._parent_first:
            raise UnusableArtifact(
                f"artifact {artifact.name} contains {installed[0]}, which is native code and already installed",
                hint="leave it out; or set classloader.resolve-order to parent-first, to use what is installed",
            )
        return bool(installed)
