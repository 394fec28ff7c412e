"""How the modules of a job find each other, in the session's driver and in Spark's Python workers.

A job's modules are unpacked into a directory with a new name each time. The directory is a package, and the modules are
imported below it: `tools.tag` of one version is `job_0123....tools.tag`. That name is never used again once the job has
ended. Modules import each other by the names that their authors gave them. So each is executed with its own
`__import__`, which looks in the job first. `importlib` and `pickle` import by name at run time; they find out from the
calling frames which job asks, because every function of a job has the job's package in its globals.

A copy of this file, named `minflinkd_job_code`, lies next to the jobs' directories, because minflinkd is not installed
on executors. It therefore uses only the standard library, and changes nothing in a process before the first job is
adopted.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import io
import linecache
import os
import pickle
import pkgutil
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

MODULE = "minflinkd_job_code"
JOB_PACKAGE = re.compile(r"job_[0-9a-f]{20}(?=\.|\Z)")
# A process can hold these only once, so they are the same for every job. minflinkd.jobgraph.libraries has the same set.
PROTECTED = frozenset(sys.stdlib_module_names) | {"pyspark", "minflinkd", "py4j", MODULE}

_import = builtins.__import__
_import_module = importlib.import_module
_find_spec = importlib.util.find_spec
_get_data = pkgutil.get_data
_loads, _load, _find_class = pickle.loads, pickle.load, pickle._Unpickler.find_class
_EVERYTHING = importlib.metadata.DistributionFinder.Context()
_jobs: dict[str, Job] = {}
_lock = threading.Lock()


class Job:
    """The modules of one job's package, and the names by which the job imports them."""

    def __init__(self, package: str, directory: str, names: Iterable[str], *, parent_first: bool) -> None:
        self.package = package
        self.directory = directory
        self._names = frozenset(names) - PROTECTED
        self._parent_first = parent_first
        self._installed: dict[str, bool] = {}
        self.builtins = {**vars(builtins), "__import__": self.import_statement}

    def owns(self, name: str) -> bool:
        """Whether this job's code means its own module when it says `name`."""
        top = name.partition(".")[0]
        if top not in self._names:
            return False
        if self._parent_first and top not in self._installed:
            self._installed[top] = _is_installed(top)
        return not (self._parent_first and self._installed[top])

    def import_statement(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not self.owns(name):
            return _import(name, globals, locals, fromlist or (), level)
        module = self.module(name, fromlist or ())
        return module if fromlist else sys.modules[f"{self.package}.{name.partition('.')[0]}"]

    def module(self, name: str, fromlist: Sequence[str] = ()) -> ModuleType:
        """Import a module of the job. Raises ModuleNotFoundError with the name as the user wrote it."""
        full = f"{self.package}.{name}"
        try:
            _import(full, None, None, fromlist, 0)
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(self.package + "."):
                raise
            plain = error.name[len(self.package) + 1 :]
            raise ModuleNotFoundError(f"No module named {plain!r}", name=plain) from None
        return sys.modules[full]


def adopt(package: str, directory: str, names: Iterable[str], *, parent_first: bool) -> None:
    """Make the modules below a job's package importable. Called by the package when it is imported."""
    with _lock:
        if not _jobs:
            _install()
        gone = [job.package for job in _jobs.values() if not os.path.isdir(job.directory)]
        _jobs[package] = Job(package, directory, names, parent_first=parent_first)
    for ended in gone:  # a worker is not told when a job has ended
        forget(ended)


def forget(package: str) -> None:
    """Drop a job's modules, so that no import finds any of them. Idempotent."""
    with _lock:
        job = _jobs.pop(package, None)
        if not _jobs:
            _uninstall()
    # Other threads import meanwhile, so loop over copies. `list` makes a copy in one step.
    for name in [name for name in list(sys.modules) if name == package or name.startswith(package + ".")]:
        sys.modules.pop(name, None)
    if job is not None:
        inside = job.directory + os.sep
        caches: tuple[dict[str, Any], ...] = (linecache.cache, sys.path_importer_cache)
        for cache in caches:
            for path in [path for path in list(cache) if path == job.directory or path.startswith(inside)]:
                cache.pop(path, None)


def is_job(package: str) -> bool:
    return package in _jobs


def job_of(package: str) -> Job:
    """Return the job of a package, and import the package first if necessary.

    Raises ModuleNotFoundError if the job's directory is not there.
    """
    if package not in _jobs:
        _import_module(package)
    return _jobs[package]


# --- finding and loading ---------------------------------------------------------------------------------------------


class _Source(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        _bind(module)
        super().exec_module(module)


class _Compiled(SourcelessFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        _bind(module)
        super().exec_module(module)


def _bind(module: ModuleType) -> None:
    module.__dict__["__builtins__"] = _jobs[module.__name__.partition(".")[0]].builtins


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules below the packages of jobs, and nowhere else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, below, _ = fullname.partition(".")
        if not below or package not in _jobs:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Source(spec.loader.name, spec.loader.path)
        elif spec is not None and type(spec.loader) is SourcelessFileLoader:
            spec.loader = _Compiled(spec.loader.name, spec.loader.path)
        return spec

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = _EVERYTHING
    ) -> Iterable[importlib.metadata.Distribution]:
        """Find a job's own packages for `importlib.metadata.version`, with which packages look up their version."""
        job, _ = _calling_job()
        if job is None:
            return ()
        where = importlib.metadata.DistributionFinder.Context(name=context.name, path=[job.directory])
        return importlib.metadata.MetadataPathFinder.find_distributions(where)


_finder = _Finder()


def _is_installed(name: str) -> bool:
    try:
        return _find_spec(name) is not None
    except (ImportError, ValueError):  # it is in sys.modules without a spec
        return True


# --- who asks --------------------------------------------------------------------------------------------------------


def _calling_job() -> tuple[Job | None, bool]:
    """Return the job nearest in the calling frames, and whether its code asks directly, not through a library."""
    frame = sys._getframe(1)
    direct = True
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if JOB_PACKAGE.match(name):
            return _jobs.get(name.partition(".")[0]), direct
        if name != __name__ and name.partition(".")[0] not in ("importlib", "pkgutil", "_frozen_importlib"):
            direct = False
        frame = frame.f_back  # type: ignore[assignment]
    return None, False


def _import_module_for_caller(name: str, package: str | None = None) -> ModuleType:
    job, direct = (None, False) if name.startswith((".", "job_")) else _calling_job()
    if job is None or not job.owns(name):
        return _import_module(name, package)
    if direct:
        return job.module(name)
    try:
        return _import_module(name, package)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there, but something that it imports is not
    return job.module(name)


def _find_spec_for_caller(name: str, package: str | None = None) -> ModuleSpec | None:
    job, direct = (None, False) if name.startswith((".", "job_")) else _calling_job()
    if job is None or not job.owns(name):
        return _find_spec(name, package)
    found = None if direct or not _is_installed(name.partition(".")[0]) else _find_spec(name, package)
    return found or _find_spec(f"{job.package}.{name}")


def _get_data_for_caller(package: str, resource: str) -> bytes | None:
    job, direct = _calling_job()
    if job is None or not job.owns(package) or not (direct or _find_spec(package) is None):
        return _get_data(package, resource)
    return _get_data(f"{job.package}.{package}", resource)


# --- pickles ---------------------------------------------------------------------------------------------------------
# A pickle names a class by the package of the job version that wrote it. A later version reads it as its own class.


def _present(module: str) -> str:
    """Return the name of a pickled module in the version of the job that reads it."""
    written = JOB_PACKAGE.match(module)
    if written is None:
        return module
    job, _ = _calling_job()
    if job is None or written[0] == job.package:
        return module
    name = job.package + module[written.end() :]
    try:
        return name if name in sys.modules or _find_spec(name) is not None else module
    except ModuleNotFoundError:
        return module


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(_present(module), name)


def _find_class_for_caller(self: Any, module: str, name: str) -> Any:
    return _find_class(self, _present(module), name)


def _loads_for_caller(data: Any, /, **options: Any) -> Any:
    if isinstance(data, bytes | bytearray) and b"job_" not in data:
        return _loads(data, **options)
    return _Unpickler(io.BytesIO(data), **options).load()


def _load_for_caller(file: Any, /, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


def make_function(
    package: str, code: CodeType, globals: dict[str, Any], name: str | None, defaults: Any, closure: Any
) -> FunctionType:
    """Make a job's function that was pickled by value (a closure, a lambda), with the job's `__import__`."""
    globals["__builtins__"] = job_of(package).builtins
    return FunctionType(code, globals, name, defaults, closure)


def set_function_state(function: FunctionType, state: Any) -> None:
    """Set a function's state as cloudpickle does, but keep the job's `__builtins__` instead of the interpreter's."""
    from pyspark.cloudpickle.cloudpickle import _function_setstate

    own = function.__globals__["__builtins__"]
    _function_setstate(function, state)  # type: ignore[no-untyped-call]
    function.__globals__["__builtins__"] = own


# --- changes to the process ------------------------------------------------------------------------------------------

_REPLACED: tuple[tuple[Any, str, Any, Any], ...] = (
    (importlib, "import_module", _import_module, _import_module_for_caller),
    (importlib.util, "find_spec", _find_spec, _find_spec_for_caller),
    (pkgutil, "get_data", _get_data, _get_data_for_caller),
    (pickle, "loads", _loads, _loads_for_caller),
    (pickle, "load", _load, _load_for_caller),
    (pickle, "Unpickler", pickle.Unpickler, _Unpickler),
    (pickle._Unpickler, "find_class", _find_class, _find_class_for_caller),
)


def _copied() -> Iterator[tuple[Any, str, Any, Any]]:
    """Yield the copies in cloudpickle, Spark's and an installed one: they keep what `pickle` had at their import."""
    for name in ("cloudpickle", "pyspark.cloudpickle"):
        for module in (sys.modules.get(name), sys.modules.get(f"{name}.cloudpickle")):
            if hasattr(module, "loads") and hasattr(module, "load"):
                yield module, "loads", _loads, _loads_for_caller
                yield module, "load", _load, _load_for_caller


def _install() -> None:
    sys.meta_path.insert(0, _finder)
    for owner, name, before, ours in (*_REPLACED, *_copied()):
        if getattr(owner, name) is before:
            setattr(owner, name, ours)


def _uninstall() -> None:
    """Put the originals back, except where other code has replaced ours meanwhile."""
    # Make a new list: an import on another thread may be looping over the old one, and would skip the next finder.
    sys.meta_path = [finder for finder in sys.meta_path if finder is not _finder]
    for owner, name, before, ours in (*_REPLACED, *_copied()):
        if getattr(owner, name) is ours:
            setattr(owner, name, before)
