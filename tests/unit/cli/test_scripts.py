"""What a script becomes before a TaskManager executes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.job_files import read_job
from minflinkd.cli.main import main
from minflinkd.cli.scripts import UnusableScript, read_script, with_imports
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.places import place_of
from minflinkd.jobgraph.validation import parse_job


def test_a_script_brings_the_modules_beside_it_that_it_imports(tmp_path: Path) -> None:
    """Also those that only its functions import, or its modules. What is installed stays where it is."""
    (tmp_path / "views.py").write_text("import json, lib\ndef f():\n    from late import g\n")
    (tmp_path / "lib.py").write_text("import deeper.inner as d\nimport views\n")
    (tmp_path / "late.py").write_text("")
    (tmp_path / "deeper.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    names = {file.name for file in with_imports(tmp_path / "views.py")}
    assert names == {"views.py", "lib.py", "late.py", "deeper.py"}


def test_a_package_beside_a_script_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text("from tools import x\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("")
    with pytest.raises(UnusableScript, match=r"views.py imports tools, a package beside it"):
        with_imports(tmp_path / "views.py")


def test_what_is_not_python_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(UnusableScript, match=r"views\.py:2: "):
        read_script(tmp_path / "views.py", ())


def test_the_job_of_a_script_has_its_vertices_later(tmp_path: Path) -> None:
    """Its document is a job's in everything else."""
    (tmp_path / "views.py").write_text("")
    document = read_script(tmp_path / "views.py", ["a'b", "--x"])
    graph = parse_job(document.value)
    assert (graph.name, graph.vertices, graph.script) == ("views", (), "minflinkd_script:queries")
    (text,) = document.made.values()
    assert "Script(globals(), 'views.py', [\"a'b\", '--x'])" in text
    with pytest.raises(InvalidJobGraph, match="a script defines the vertices itself"):
        parse_job(document.value | {"vertices": {"a": {"source": {"format": "rate"}}}})


async def test_a_script_is_a_file_of_this_machine() -> None:
    """Nothing is fetched."""
    with pytest.raises(UnusableScript, match=r"https://host/views\.py is a script at a URL"):
        await read_job(place_of("https://host/views.py"))


async def test_a_job_file_takes_no_arguments(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x")
    with pytest.raises(UnusableScript, match="is a job file, and takes no arguments"):
        await read_job(tmp_path / "job.yaml", ["x"])


def test_a_script_is_not_explained(tmp_path: Path) -> None:
    """It has no vertices before it was executed."""
    (tmp_path / "views.py").write_text("")
    shown = CliRunner().invoke(main, ["explain", str(tmp_path / "views.py")])
    assert shown.exit_code == 2
    assert "run FILE --dry-run" in shown.output
