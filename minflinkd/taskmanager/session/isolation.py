"""How modules of a repacked archive find each other. This file's source becomes `__init__.py` of every archive.

An archive holds a job's modules below one package of a unique name (`code.py`). Its modules import each other by the
names that their authors gave them; so each is executed with an `__import__` of its own, that looks in the archive
first. It must run in Spark's Python workers, and therefore uses the standard library alone.
"""

# ruff: noqa: S102 - executing the job's modules is this file's whole purpose
from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.util
import linecache
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Archive(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the modules below `package` in the zip at `path`."""

    def __init__(self, package: str, path: str) -> None:
        self._package = package
        with zipfile.ZipFile(path) as archive:
            self._sources = {
                name[len(package) + 1 :]: archive.read(name)
                for name in archive.namelist()
                if name.startswith(package + "/") and name.endswith(".py")
            }
        self._tops = {name.split("/")[0].removesuffix(".py") for name in self._sources} - {"__init__"}

    def _locate(self, name: str) -> tuple[str, bool] | None:
        place = name.replace(".", "/")
        for path, is_package in ((place + "/__init__.py", True), (place + ".py", False)):
            if path in self._sources:
                return path, is_package
        # A directory without __init__.py is a package as well (PEP 420).
        return (place, True) if any(path.startswith(place + "/") for path in self._sources) else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._package + "."):
            return None
        hit = self._locate(fullname[len(self._package) + 1 :])
        return importlib.util.spec_from_loader(fullname, self, is_package=hit[1]) if hit else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        hit = self._locate(module.__name__[len(self._package) + 1 :])
        assert hit is not None
        source = self._sources.get(hit[0], b"").decode("utf-8")
        filename = f"<{self._package}>/{hit[0]}"
        # Lets a traceback show the lines of user code.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        module.__file__ = filename
        exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level != 0 or name.split(".")[0] not in self._tops:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = importlib.import_module(f"{self._package}.{name}")
        if not fromlist:
            return importlib.import_module(f"{self._package}.{name.split('.')[0]}")
        for attribute in fromlist:
            if attribute != "*" and not hasattr(module, attribute):
                try:
                    importlib.import_module(f"{self._package}.{name}.{attribute}")
                except ModuleNotFoundError:
                    break  # the import statement itself says what is missing
        return module


if __name__ != "minflinkd.taskmanager.session.isolation":
    sys.meta_path.insert(0, Archive(__name__, __file__.rpartition(".zip")[0] + ".zip"))
