"""User code of many jobs in one process and in its Python workers, without two of them ever meeting (B: libraries).

A job's artifacts are repacked into one archive below a package whose name is the hash of their contents, and sent to
the workers once. Two jobs with modules of the same names thus load different modules, and two attempts with the same
artifacts share them. Not covered: native wheels, `importlib.resources`, `importlib.import_module` by a module's
original name, and jars. Such artifacts are refused here where they can be recognised.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.session import isolation
from minflinkd.taskmanager.session.spark import Session

_BOOTSTRAP = Path(isolation.__file__)
_NATIVE = (".so", ".pyd", ".dylib")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents make equal archives


class UnusableArtifact(MinflinkError):
    """An artifact that cannot be isolated on a shared TaskManager, or is damaged."""

    code = "unusable-artifact"
    consequence = Consequence.FATAL


class MissingFunction(MinflinkError):
    """`module:function` names something that the job's artifacts do not have."""

    code = "missing-function"
    consequence = Consequence.FATAL


def collect(artifacts: Mapping[str, str]) -> dict[str, bytes]:
    """The modules and data of a job's artifacts, by their path in the archive. Raises UnusableArtifact."""
    files: dict[str, bytes] = {}
    for name, path in sorted(artifacts.items()):
        suffix = PurePosixPath(name).suffix
        if suffix == ".py":
            files[name] = Path(path).read_bytes()
        elif suffix in (".zip", ".whl"):
            files |= _unpack(name, path)
        else:
            raise UnusableArtifact(f"artifact {name}: {suffix or 'no suffix'} is not supported", hint=".py, .zip, .whl")
    return files


def _unpack(name: str, path: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if native := [m.filename for m in members if m.filename.endswith(_NATIVE)]:
                raise UnusableArtifact(
                    f"artifact {name} holds native code ({native[0]})",
                    hint="install it in the TaskManager's environment, or give the job TaskManagers of its own",
                )
            return {m.filename: archive.read(m) for m in members if not _leaves(m.filename)}
    except zipfile.BadZipFile as error:
        raise UnusableArtifact(f"artifact {name} is no zip archive: {error}") from error


def _leaves(filename: str) -> bool:
    path = PurePosixPath(filename)
    return path.is_absolute() or ".." in path.parts


def package_name(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(_BOOTSTRAP.read_bytes())
    for name, data in sorted(files.items()):
        digest.update(f"{len(name)}:{name}:{len(data)}:".encode())
        digest.update(data)
    return f"job_{digest.hexdigest()[:20]}"


def repack(files: Mapping[str, bytes], package: str, target: Path) -> None:
    """Write the archive atomically; one that exists is the same already."""
    if target.exists():
        return
    partial = target.with_suffix(f".{threading.get_ident()}.part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(f"{package}/__init__.py", _EPOCH), _BOOTSTRAP.read_bytes())
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(f"{package}/{name}", _EPOCH), data)
    os.replace(partial, target)


class JobCode:
    """The functions of one job. Without artifacts, what the TaskManager's own environment has."""

    def __init__(self, package: str | None) -> None:
        self._package = package

    def function(self, reference: str) -> Callable[..., Any]:
        """The function that `module:function` names. Raises MissingFunction, and what importing it raises."""
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
        for full in (f"{self._package}.{name}", name) if self._package else (name,):
            try:
                return importlib.import_module(full)
            except ModuleNotFoundError as error:
                if error.name is None or not (full == error.name or full.startswith(error.name + ".")):
                    raise  # the module is there, but what it imports is not
        raise MissingFunction(f"there is no module {name!r}", hint="is its artifact part of the job?")


class CodeCache:
    """Makes the code of jobs importable here and in the workers. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._directory = Path(session.config.working_directory) / "code"
        self._lock = threading.Lock()
        self._sent: set[str] = set()

    def load(self, artifacts: Mapping[str, str]) -> JobCode:
        """Raises UnusableArtifact."""
        if not artifacts:
            return JobCode(None)
        files = collect(artifacts)
        package = package_name(files)
        archive = self._directory / f"{package}.zip"
        with self._lock:
            if package not in self._sent:
                repack(files, package, archive)
                # Once only: Spark refuses a file of a name that it has from another path.
                self._session.spark.sparkContext.addPyFile(str(archive))
                self._sent.add(package)
        return JobCode(package)
