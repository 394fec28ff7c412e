"""PySpark scripts as jobs: `minflinkd run views.py`.

The script itself is executed on a TaskManager, which records its queries. Here it becomes an artifact, together with
the modules beside it that it imports, and with a small module that names it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minflinkd.runtime.errors import Consequence, MinflinkError

if TYPE_CHECKING:
    from minflinkd.jobgraph.document import JobDocument  # slow to import

MODULE: Final = "minflinkd_script"
_TEXT: Final = '''\
"""Made by `minflinkd run`: the queries of a script, as a job's sources and sinks."""

from minflinkd.taskmanager.session.scripts import Script

_script = Script(globals(), {file!r}, {args!r})
queries = _script.queries


def __getattr__(name):
    return _script.function(name)
'''


class UnusableScript(MinflinkError):
    """The script cannot become a job: Python does not understand it, or it imports what cannot be sent along."""

    code = "unusable-script"
    consequence = Consequence.REFUSED


def is_script(path: Path) -> bool:
    return path.suffix == ".py"


def read_script(path: Path, args: Sequence[str]) -> JobDocument:
    """Return the job of a script, without its vertices. Raises UnusableScript, OSError."""
    from minflinkd.jobgraph.document import JobDocument

    artifacts = [file.name for file in with_imports(path)]
    value: dict[str, Any] = {
        "name": path.stem,
        "script": f"{MODULE}:queries",
        "vertices": {},
        "artifacts": [*artifacts, f"{MODULE}.py"],
    }
    made = {f"{MODULE}.py": _TEXT.format(file=path.name, args=list(args))}
    return JobDocument(value, base=path.parent, made=made)


def with_imports(script: Path) -> list[Path]:
    """Return the script, and the modules beside it that it imports, or that those import. Raises UnusableScript."""
    found, left = dict[Path, None](), [script]
    while left:
        file = left.pop()
        if file in found:
            continue
        found[file] = None
        for name in _imported(file):
            if (module := script.with_name(f"{name}.py")).is_file():
                left.append(module)
            elif any(script.with_name(name).glob("*.py")):
                raise UnusableScript(
                    f"{file.name} imports {name}, a package beside it, which is not sent along",
                    hint=f"make it one file {name}.py, or write a job file that has it as a zip among its artifacts",
                )
    return list(found)


def _imported(file: Path) -> list[str]:
    """Return the first parts of the names of all modules that a file imports anywhere."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        where = f"{file.name}:{error.lineno}"
        raise UnusableScript(f"{where}: {error.msg}", hint="is it for another version of Python?") from error
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module.partition(".")[0])
    return names
