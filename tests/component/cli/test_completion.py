"""Completion in a shell: quick, and with the names that the daemon knows (E10)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.main import main
from tests.component.cli.conftest import RunningDaemon
from tests.unit.rest.parties import RUNNING, TM

SLOW = ("aiohttp", "asyncio", "msgspec", "rich", "stamina", "structlog", "pyspark", "ssl")


def completed(words: str, incomplete: str = "", **environ: str) -> list[str]:
    """What a shell gets for the last word. Fails if a library was imported that makes it slow."""
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('slow', [m for m in {SLOW!r} if m in sys.modules], file=sys.stderr))\n"
        "from minflinkd.cli.main import main\nmain(prog_name='minflinkd')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            **environ,
            "COMP_WORDS": f"{words} {incomplete}",
            "COMP_CWORD": str(len(words.split())),
            "_MINFLINKD_COMPLETE": "bash_complete",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1:] == ["slow []"], done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")]


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ("minflinkd info", "", ["carrier-delays"]),
        ("minflinkd cancel", "aa", [RUNNING]),
        ("minflinkd savepoint", "carr", ["carrier-delays"]),
        ("minflinkd savepoint take", "", ["carrier-delays"]),
        ("minflinkd blobs list --job", "c", ["carrier-delays"]),
        ("minflinkd logs", "tm-", [TM]),
        ("minflinkd taskmanager drain", "", [TM]),
    ],
)
def test_names_are_completed_without_slow_imports(
    daemon: RunningDaemon, words: str, incomplete: str, found: list[str]
) -> None:
    """A completion asks the daemon by hand: it imports neither aiohttp nor asyncio."""
    assert completed(words, incomplete, MINFLINKD_URL=daemon.url) == found


def test_an_address_on_the_command_line_is_the_one_that_is_asked(daemon: RunningDaemon) -> None:
    assert completed(f"minflinkd info --url {daemon.url}") == ["carrier-delays"]


def test_without_a_daemon_nothing_is_completed_and_nothing_said() -> None:
    assert completed("minflinkd info", MINFLINKD_URL="http://127.0.0.1:9") == []


def test_commands_are_completed_without_importing_any() -> None:
    assert completed("minflinkd", "tok") == ["token"]


def test_completion_is_installed_and_taken_away_by_one_command(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "SHELL": "/bin/zsh", "XDG_DATA_HOME": "", "ZDOTDIR": "", "XDG_CONFIG_HOME": ""}
    (tmp_path / ".zshrc").write_text("setopt x\n")
    for _ in range(2):  # as after an upgrade
        done = CliRunner().invoke(main, ["completion", "install"], env=environ)
        assert done.exit_code == 0, done.output
    script = tmp_path / ".local/share/minflinkd/completion.zsh"
    assert script.is_file()
    assert (tmp_path / ".zshrc").read_text().count(str(script)) == 1
    assert CliRunner().invoke(main, ["completion", "uninstall"], env=environ).exit_code == 0
    assert (tmp_path / ".zshrc").read_text() == "setopt x\n"
    assert not script.exists()
    unknown = CliRunner().invoke(main, ["completion", "install"], env={**environ, "SHELL": "/bin/csh"})
    assert (unknown.exit_code, "bash, zsh, fish" in unknown.output) == (2, True)
