"""A server that cannot be installed is reported, leaves nothing incomplete, and stops no other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.servers import install

_MAIN = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"
NPM = """#!/bin/sh
echo npm "$@" >> "$CALLS"
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/azurite/dist/src/blob"
touch "$2/node_modules/azurite/dist/src/blob/main.js"
"""
BROKEN = """#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/azurite"
echo "npm error network is unreachable" >&2
exit 7
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let servers be installed in a directory of the test, on a machine with only a few commands."""
    home = tmp_path / "home"
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(install, "HOME", home)
    monkeypatch.setattr(install, "AZURITE", home / f"azurite-{install.AZURITE_VERSION}" / _MAIN)
    monkeypatch.setattr(install, "SERVERS", {"azurite": install.azurite})
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return home


def command(directory: Path, name: str, script: str = "#!/bin/sh\n") -> None:
    path = directory / "bin" / name
    path.write_text(script)
    path.chmod(0o755)


def test_a_server_is_installed_once(home: Path, tmp_path: Path) -> None:
    command(tmp_path, "node")
    command(tmp_path, "npm", NPM)
    install.main()
    install.main()
    assert install.AZURITE.is_file()
    assert os.listdir(home) == [f"azurite-{install.AZURITE_VERSION}"]
    assert (tmp_path / "calls").read_text().count("npm install") == 1


def test_an_installation_that_fails_is_said_and_leaves_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(tmp_path, "node")
    command(tmp_path, "npm", BROKEN)
    install.main()
    said = capsys.readouterr().err
    assert "azurite is not installed" in said
    assert "network is unreachable" in said
    assert os.listdir(home) == ["azurite.failed"]


MVN = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in -DoutputDirectory=*) draft="${argument#*=}" ;; esac
done
grep -c '<dependency>' "$draft/pom.xml" >> "$CALLS"
touch "$draft/a.jar"
mkdir -p "$OTHER"
touch "$OTHER/of-the-other.jar"
"""


@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside another run"])
def test_jars_are_fetched_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool) -> None:
    """If another run was quicker, its jars are used."""
    target = home / "jars-1"
    command(tmp_path, "mvn", MVN)
    monkeypatch.setenv("OTHER", str(target if other else tmp_path / "elsewhere"))
    for _ in range(2):
        install.jars(target, ["org.example:a:1", "org.example:b:2"])
    assert (tmp_path / "calls").read_text() == "2\n"
    assert os.listdir(home) == ["jars-1"]
    assert (target / ("of-the-other.jar" if other else "a.jar")).is_file()


def test_jars_that_cannot_be_fetched_are_said(home: Path, tmp_path: Path) -> None:
    command(tmp_path, "mvn", "#!/bin/sh\necho no network >&2\nexit 1\n")
    with pytest.raises(install.NotInstalled, match="no network"):
        install.jars(home / "jars-1", ["org.example:a:1"])
    assert os.listdir(home) == []


def test_what_failed_is_not_tried_again_on_the_same_day_unless_it_is_asked_for(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(tmp_path, "node")
    command(tmp_path, "npm", BROKEN)
    install.main()
    command(tmp_path, "npm", NPM)
    capsys.readouterr()
    install.main()
    assert "network is unreachable" in capsys.readouterr().err
    assert not (tmp_path / "calls").exists()
    yesterday = time.time() - 25 * 3600
    os.utime(home / "azurite.failed", (yesterday, yesterday))
    install.main()
    assert install.AZURITE.is_file()
    assert not (home / "azurite.failed").exists()


def test_what_failed_is_tried_again_when_it_is_asked_for(home: Path, tmp_path: Path) -> None:
    command(tmp_path, "node")
    command(tmp_path, "npm", BROKEN)
    install.main()
    command(tmp_path, "npm", NPM)
    install.main(again=True)
    assert install.AZURITE.is_file()


def test_a_missing_command_that_may_not_be_installed_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    install.main()
    assert "node is missing: install nodejs" in capsys.readouterr().err
    assert not home.exists()
