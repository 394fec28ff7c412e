"""Python imports this at its start where this directory is on its path; see the package.

Only the session child has what it changes. Other processes, Python workers too, have a finder that finds nothing.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = "RECORDED_ATTEMPTS"  # <directory>/<job>/<task>/<attempt>, each a file with the attempt's directory
_GUARDED = "minflinkd.taskmanager.session.restore.directory"


def take_away(task: Path, *, but: str) -> None:
    """What the recorded attempts of a task have left, but for this one: their directories, and the logs they wrote."""
    import shutil
    from pathlib import Path

    for record in task.iterdir():
        if record.name == but:
            continue
        directory = Path(record.read_text())
        root = directory.parents[1]
        for number, place in enumerate((directory, root / "exchanges" / record.name)):
            gone = root / f"gone-{record.name}-{number}"
            try:
                place.rename(gone)  # at once, whoever writes there still
            except FileNotFoundError:
                continue  # its TaskManager was faster
            shutil.rmtree(gone, ignore_errors=True)
        record.unlink(missing_ok=True)


def _guard(restoring: Any) -> None:
    from pathlib import Path

    from minflinkd.taskmanager.session.restore import continuation

    prepare = restoring.Restoring.prepare

    def guarded(self: Any, plan: Any) -> Any:
        request, before = self._request, self._before
        if Path(request.directory).name.startswith("rehearsal-"):
            return prepare(self, plan)  # of a hot standby, while the attempt that counts runs
        task = Path(os.environ[RECORDS], request.job.job_id, request.task.id)
        task.mkdir(parents=True, exist_ok=True)
        (task / request.attempt_id).write_text(request.directory)
        if before is None or not continuation.follows(before, request, plan.operators):
            take_away(task, but=request.attempt_id)
        return prepare(self, plan)

    restoring.Restoring.prepare = guarded


class _Finder:
    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _GUARDED:
            return None
        sys.meta_path.remove(cls)
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_guard(module: Any) -> None:
            execute(module)
            _guard(module)

        spec.loader.exec_module = execute_and_guard  # type: ignore[method-assign]
        return spec


def _run_hidden() -> None:
    """The module of this name that would have been imported, were this one not before it."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if os.path.abspath(entry) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    if os.environ.get(RECORDS):
        sys.meta_path.insert(0, _Finder)
    _run_hidden()
