"""The layer contracts work: a planted violation fails the lint, which names the broken contract."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of both packages and of the settings that the lint reads."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in ("minflinkd", "plugins/local/minflinkd_local"):
        shutil.copytree(ROOT / package, copy / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def lint(checkout: Path) -> subprocess.CompletedProcess[str]:
    # The copy comes before the installed packages, as the first entry of the path.
    path = f"import sys; sys.path.insert(0, {str(checkout)!r})"
    program = f"{path}; from importlinter import cli; cli.lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_tree_as_it_is_keeps_every_contract(checkout: Path) -> None:
    """See architecture.md, Layout."""
    done = lint(checkout)
    assert done.returncode == 0, done.stdout
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert f"{len(contracts)} kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "planted", "contract"),
    [
        ("minflinkd/jobmaster/scheduler/restart.py", "import pyspark", "only taskmanager imports pyspark"),
        ("minflinkd/cli/text.py", "from pyspark.sql import SparkSession", "only taskmanager imports pyspark"),
        ("minflinkd_local/files.py", "import pyspark", "only taskmanager imports pyspark"),
        (
            "minflinkd/storage/registry.py",
            "import minflinkd_local",
            "plugins are loaded through their entry points only",
        ),
        ("minflinkd/runtime/clock.py", "import minflinkd.rpc.network", "dependencies point downwards"),
        (
            "minflinkd/taskmanager/settings.py",
            "import minflinkd.jobmaster.scheduler.restart",
            "dependencies point downwards",
        ),
        ("minflinkd/jobgraph/api.py", "from minflinkd.client import SubmittedJob", "dependencies point downwards"),
        ("minflinkd_local/files.py", "import minflinkd.rpc.network", "a plugin sees the storage interface"),
    ],
)
def test_a_planted_import_breaks_its_contract(checkout: Path, module: str, planted: str, contract: str) -> None:
    """The imports are one of pyspark outside taskmanager, one of a plugin, and one upwards (A2, A8)."""
    file = checkout / module
    sound = file.read_text()
    try:
        file.write_text(f"{sound}\n{planted}\n")
        done = lint(checkout)
    finally:
        file.write_text(sound)
    assert done.returncode != 0
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert any(line.startswith(contract) for line in broken), done.stdout
