"""Completion in real shells on a terminal: what becomes of a line when somebody types Tab (E10)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner
from msgspec.structs import replace

from minflinkd.cli.completion import SHELLS
from minflinkd.cli.main import main
from minflinkd.runtime.ids import JobId
from tests.component.cli.conftest import RunningDaemon
from tests.unit.rest.parties import RUNNING, TM, details, graph
from tests.waiting import until

# Completes as minflinkd does. Otherwise it tells how it was called, and how often, which the prompt shows.
PROGRAM = """#!{python}
import json, os, pathlib, sys
if "_MINFLINKD_COMPLETE" in os.environ:
    from minflinkd.cli.main import main
    main(prog_name="minflinkd")
calls = pathlib.Path({calls!r})
told = json.loads(calls.read_text())
draft = calls.with_suffix(".draft")
draft.write_text(json.dumps([told[0] + 1, *sys.argv[1:]]))
draft.rename(calls)
"""
START_FILES = {
    "bash": (".bashrc", "PS1='<$(cut -d, -f1 ~/calls)> '\n"),
    "zsh": (".zshrc", "setopt promptsubst; unsetopt beep; PROMPT='<$(cut -d, -f1 ~/calls)> '\n"),
    "fish": (".config/fish/config.fish", "function fish_prompt; printf '<%s> ' (cut -d, -f1 ~/calls); end\n"),
}


class Terminal:
    """A shell that somebody sits at, with the completion that `minflinkd completion install` has installed."""

    def __init__(self, shell: str, home: Path, url: str) -> None:
        self.home = home
        self._calls = home / "calls"
        self._calls.write_text("[0]")
        programs = home / "bin"
        programs.mkdir()
        program = programs / "minflinkd"
        program.write_text(PROGRAM.format(python=sys.executable, calls=str(self._calls)))
        program.chmod(0o755)
        name, content = START_FILES[shell]
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
        # At its first start fish reads all manual pages, for a minute, in a process that outlives it.
        (home / ".local" / "share" / "fish" / "generated_completions").mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ZDOTDIR"))}
        path = f"{programs}:{os.environ['PATH']}"
        environ = {**kept, "HOME": str(home), "PATH": path, "MINFLINKD_URL": url, "TERM": "xterm", "LANG": "C.UTF-8"}
        gone = {name: None for name in os.environ if name.startswith(("XDG_", "ZDOTDIR"))}
        done = CliRunner().invoke(main, ["completion", "install", shell], env={**gone, "HOME": str(home)})
        assert done.exit_code == 0, done.output
        self._end, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 200))
        self.shown = b""
        asyncio.get_running_loop().add_reader(self._end, self._read)
        # The shell needs the terminal as its own, or it would have no job control, and say so.
        self._process = subprocess.Popen(
            ("setsid", "--ctty", shell, "-i"), stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=home
        )
        os.close(theirs)

    async def becomes(self, line: str) -> list[str]:
        """Type the line, in which \\t is Tab, and Enter. Return the arguments with which minflinkd was called."""
        before = await self.prompt()
        self.type(f"{line}\r")
        await self.shows(f"<[{before + 1}")
        count, *arguments = json.loads(self._calls.read_text())
        assert count == before + 1
        return [str(each) for each in arguments]

    async def prompt(self) -> int:
        """Wait for the prompt: no editor of a line gets what is typed sooner. Return the number of calls so far."""
        count = int(json.loads(self._calls.read_text())[0])
        await self.shows(f"<[{count}")
        return count

    async def shows(self, text: str) -> None:
        try:
            await until(lambda: text.encode() in self.shown, text, timeout=15)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.shown.decode(errors='replace')!r}") from error

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        self._process.kill()
        self._process.wait()
        os.close(self._end)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the shell has ended
            self.shown += os.read(self._end, 65536)


def at_a_terminal(shell: str, home: Path, daemon: RunningDaemon) -> Terminal:
    for program in (shell, "setsid"):
        if not shutil.which(program):
            pytest.skip(f"{program} is missing: python -m tests.servers.install")
    return Terminal(shell, home, daemon.url)


@pytest_asyncio.fixture(params=SHELLS)
async def terminal(request: pytest.FixtureRequest, tmp_path: Path, daemon: RunningDaemon) -> AsyncIterator[Terminal]:
    terminal = at_a_terminal(request.param, tmp_path, daemon)
    try:
        yield terminal
    finally:
        terminal.close()


async def test_commands_options_and_names_are_completed(terminal: Terminal) -> None:
    assert await terminal.becomes("minflinkd tok\tcre\tx") == ["token", "create", "x"]
    assert await terminal.becomes("minflinkd info --js\t") == ["info", "--json"]
    assert await terminal.becomes("minflinkd info carr\t--js\t") == ["info", "carrier-delays", "--json"]
    assert await terminal.becomes("minflinkd cancel aa\t") == ["cancel", RUNNING]
    assert await terminal.becomes("minflinkd logs tm-\t") == ["logs", TM]
    assert await terminal.becomes("minflinkd blobs list --job c\t") == ["blobs", "list", "--job", "carrier-delays"]
    assert await terminal.becomes("X=1 minflinkd info 'carr\t") == ["info", "carrier-delays"]


async def test_the_value_of_an_option_is_completed_after_its_name(terminal: Terminal) -> None:
    assert await terminal.becomes("minflinkd blobs list --job=c\t") == ["blobs", "list", "--job=carrier-delays"]
    assert await terminal.becomes("minflinkd blobs list --job=\t") == ["blobs", "list", "--job=carrier-delays"]
    (terminal.home / "my.token").touch()
    assert await terminal.becomes("minflinkd info --token-file=my\t") == ["info", "--token-file=my.token"]


async def test_a_name_with_a_colon_is_completed_on_either_side_of_it(terminal: Terminal, daemon: RunningDaemon) -> None:
    job_id = JobId("e" * 32)
    daemon.dispatcher.jobs[job_id] = replace(details(job_id), graph=graph("eu:orders"))
    for typed in ("eu", "eu:", "eu:ord"):
        assert await terminal.becomes(f"minflinkd info {typed}\t") == ["info", "eu:orders"]


async def test_files_are_completed(terminal: Terminal) -> None:
    (terminal.home / "my-job.yaml").touch()
    assert await terminal.becomes("minflinkd run my-\t") == ["run", "my-job.yaml"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])  # bash shows none
async def test_descriptions_are_shown_whole(shell: str, tmp_path: Path, daemon: RunningDaemon) -> None:
    terminal = at_a_terminal(shell, tmp_path, daemon)
    try:
        await terminal.prompt()
        terminal.type("minflinkd co\t\t")
        await terminal.shows("Name clusters, and choose the one")
    finally:
        terminal.close()
