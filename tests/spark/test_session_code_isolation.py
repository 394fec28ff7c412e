"""Two versions of one job in one session, in every place in which Spark runs its code (B30)."""

from __future__ import annotations

import asyncio
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.model import OutputMode, Source, Vertex
from minflinkd.runtime.ids import AttemptId, VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, python, rate, task
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

MAIN = Path(__file__).parent / "code_job" / "main.py"
TOOLS = {
    "tools/__init__.py": """
VERSION = {version}
try:
    import tools.nowhere as OPTIONAL
except ModuleNotFoundError as error:
    assert error.name == "tools.nowhere", error.name
    OPTIONAL = None
""",
    "tools/tag.py": """
import functools
from . import VERSION
def tag():
    return VERSION
def remember(function):
    @functools.wraps(function)
    def remembering(*arguments):
        from tools import VERSION as late
        remembering.version = late
        return function(*arguments)
    return remembering
""",
    "tools/star.py": "from tools.tag import VERSION as STAR\n__all__ = ['STAR']\n",
    "tools/circle_a.py": """
import tools.circle_b
from . import VERSION
def other():
    return tools.circle_b.seen()
""",
    "tools/circle_b.py": "import tools.circle_a as a\ndef seen():\n    return a.VERSION\n",
    "tools/data.txt": "{version}",
    "space/mod.py": "from tools import VERSION\n",
    "acme_tools-{version}.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-tools\nVersion: {version}\n",
}


def version_of_job(directory: Path, version: int) -> dict[str, str]:
    """Return artifacts whose modules have the same names in every version."""
    directory.mkdir()
    main = MAIN.read_text().replace('JSON = "seen', f'OUT = {str(directory / "seen")!r}\nJSON = "seen')
    (directory / "main.py").write_text(main)
    with zipfile.ZipFile(directory / "acme_tools-py3-none-any.whl", "w") as archive:
        for name, text in TOOLS.items():
            archive.writestr(name.format(version=version), text.format(version=version))
    return {path.name: str(path) for path in sorted(directory.iterdir())}


def query(function: str) -> Any:
    sink = call("main:write", function, OutputMode.UPDATE if function in ("stateful", "transform") else None)
    if function == "source":
        read = Vertex(id=VertexId("versions"), source=Source(python="main:read"))
        return task(read, python(function, "main:source", "versions"), sink, parallelism=1)
    return task(rate(4), python(function, f"main:{function}", "numbers"), sink, parallelism=1)


def seen(directory: Path) -> list[Any]:
    path = directory / "seen"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def run(child: Child, directory: Path, version: int, function: str) -> AttemptId:
    artifacts = version_of_job(directory / f"{function}-{version}", version)
    attempt = await child.run(job(), query(function), artifacts=artifacts)
    await child.batches(attempt, 0)
    return attempt


@pytest.mark.parametrize(
    "function",
    ["columns", "stateful", *(pytest.param(name, marks=pytest.mark.slow) for name in ("transform", "source"))],
)
async def test_two_versions_see_their_own_modules_everywhere(child: Child, tmp_path: Path, function: str) -> None:
    """In the driver, in functions by reference and by value, in each kind of worker, at the same time (B30)."""
    attempts = await asyncio.gather(*(run(child, tmp_path, version, function) for version in (1, 2)))
    await asyncio.gather(*(child.stop(attempt) for attempt in attempts))
    for version in (1, 2):
        lines = seen(tmp_path / f"{function}-{version}")
        wrong = {place: found for line, _ in lines for place, found in line.items() if found != [str(version)]}
        assert lines
        assert not wrong
    if function == "columns":
        places = lines[0][0].keys()
        assert {"lambda", "closure", "deeper", "local class", "vector", "partition"} <= places
        assert {"table function", "decorator", "group", "batch", "metadata", "pickle"} <= places


async def test_a_new_version_reads_the_pickled_objects_of_the_one_before(child: Child, tmp_path: Path) -> None:
    """A worker that ran the earlier version reads them as well (B30)."""
    before = await run(child, tmp_path, 1, "stateful")
    target = tmp_path / "snapshot"
    taken = await child.ask(p.TakeSnapshot(attempt_id=before, checkpoint_id=1, target_directory=str(target)))
    await child.stop(before)
    directory = child.fresh_directory()
    shutil.copytree(target, directory / "checkpoint")
    artifacts = version_of_job(tmp_path / "later", 2)
    restored = p.Restored(checkpoint_id=1, batch_id=taken.batch_id)
    later = await child.run(job(), query("stateful"), artifacts=artifacts, directory=directory, restored=restored)
    await until(lambda: seen(tmp_path / "later"))
    await child.stop(later)
    for line, begun in seen(tmp_path / "later"):
        assert begun == ["1"]
        assert line["state"] == ["2"]
