"""The output of `make setup`, with a stand-in for the real Python. What pip does is not tested."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """\
#!/bin/sh
# `-c` (the look at the version), `--version`, and `-m venv DIR`, which makes two programs.
case "$1 $2" in
  "-m venv")
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\nexit %s\\n' "${PIP_EXIT:-0}" > "$3/bin/python"
    printf '#!/bin/sh\\necho minflinkd, version 0.1.0\\n' > "$3/bin/minflinkd"
    chmod +x "$3/bin/python" "$3/bin/minflinkd" ;;
  "--version ") echo "Python 3.11.9" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in (("python", PYTHON), ("java", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def setup(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    inherited = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "MAKEFLAGS", "MAKELEVEL")}
    path = {"PATH": f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["make", f"PYTHON={checkout / 'bin' / 'python'}", "setup"],
        cwd=checkout,
        env={**inherited, **path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_setup_says_what_it_does_and_how_long_it_takes(checkout: Path) -> None:
    """A newcomer sees that something happens, and for how long (issue 15, 12)."""
    done = setup(checkout)
    assert done.returncode == 0, done.stderr
    assert "2 to 10 minutes" in done.stdout
    steps = re.findall(r"^\[\d+ s\] (\S+)", done.stdout, re.MULTILINE)
    assert steps == ["1/3", "2/3", "3/3", "done."]
    assert "make demo" in done.stdout
    assert setup(checkout).stdout.count("\n") <= 1, "the second time there is nothing to do"


def test_a_setup_that_fails_says_so_and_is_not_taken_for_done(checkout: Path) -> None:
    failed = setup(checkout, PIP_EXIT="1")
    assert failed.returncode != 0
    assert "FAILED" in failed.stdout
    assert not (checkout / ".venv" / ".installed").exists()


def test_a_java_home_without_java_is_named(checkout: Path) -> None:
    """As in Spark, JAVA_HOME comes before the PATH."""
    refused = setup(checkout, JAVA_HOME="/no/such/jdk")
    assert refused.returncode != 0
    assert "there is no /no/such/jdk/bin/java" in refused.stdout
