"""The pytest plugin for tests of jobs, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path


def test_the_plugin_imports_nothing_heavy_until_it_is_used() -> None:
    """Every pytest run of a project that has minflinkd installed loads it."""
    heavy = (
        "pyspark",
        "pyarrow",
        "pandas",
        "asyncio",
        "msgspec",
        "aiohttp",
        "minflinkd.jobgraph",
        "minflinkd.taskmanager",
    )
    code = (
        "import sys, pytest; before = set(sys.modules); import minflinkd.testing.plugin\n"
        f"print([name for name in {heavy!r} if name in sys.modules and name not in before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_names_the_plugin_to_pytest() -> None:
    """A project that depends on minflinkd needs no conftest.py for it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"minflinkd.testing.plugin": "minflinkd.testing.plugin"}


def test_all_public_names_can_be_imported() -> None:
    import minflinkd.testing as public

    assert {name for name in public.__all__ if getattr(public, name) is None} == set()
