"""Artifacts of jobs, and the caches that load them in this process."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.cloudpickle import cloudpickle

from minflinkd.runtime.ids import JobId
from minflinkd.taskmanager.child.protocol import SessionConfig
from minflinkd.taskmanager.session.code import isolation
from minflinkd.taskmanager.session.code.libraries import CodeCache, JobCode

JOB = JobId("a" * 32)


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


@contextmanager
def session_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What a cache needs of a session. Afterwards this process is as it was before."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cloudpickle.Pickler, "_dynamic_function_reduce", cloudpickle.Pickler._dynamic_function_reduce)
    config = SessionConfig(name="tm", slots=1, working_directory=str(tmp_path / "work"), log_directory=str(tmp_path))
    yield SimpleNamespace(config=config)
    sys.modules.pop(isolation.MODULE, None)
