"""`minflinkd completion`: completion in a shell, installed by one command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.groups import Group
from minflinkd.cli.output import output_options, print_json

SHELLS: Final = ("bash", "zsh", "fish")
_PROGRAM: Final = "minflinkd"
_BEGIN: Final = "# minflinkd: completion (`minflinkd completion uninstall` takes this line away)"
# Where bash-completion is: it loads scripts of users by the name of the command.
_BASH_COMPLETION: Final = (
    Path("/usr/share/bash-completion/bash_completion"),
    Path("/usr/local/share/bash-completion/bash_completion"),
    Path("/opt/homebrew/etc/profile.d/bash_completion.sh"),
)


class Place(NamedTuple):
    script: Path
    start_file: Path | None  # the shell's start file that needs a line; None: the shell finds the script by itself
    line: str = ""


def place_of(shell: str, environ: Mapping[str, str], *, loads_by_itself: bool) -> Place:
    """Return where the script of a shell belongs. `loads_by_itself`: bash-completion is there. Pure."""
    home = Path(environ.get("HOME") or Path.home())
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    if shell == "fish":
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return Place(config / "fish/completions" / f"{_PROGRAM}.fish", None)
    if shell == "bash":
        script = data / "bash-completion/completions" / _PROGRAM
        return Place(script, None if loads_by_itself else home / ".bashrc", f'. "{script}"')
    script = data / _PROGRAM / "completion.zsh"
    ready = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    return Place(script, Path(environ.get("ZDOTDIR") or home) / ".zshrc", f'{ready}; . "{script}"')


def script_of(shell: str) -> str:
    """Return what the shell runs."""
    from click.shell_completion import get_completion_class

    from minflinkd.cli.main import COMPLETING, main
    from minflinkd.cli.shells import register

    register()
    found = get_completion_class(shell)
    assert found is not None
    return found(main, {}, _PROGRAM, COMPLETING).source()


@click.group(cls=Group)
def completion() -> None:
    """Let your shell complete commands, options, and names of jobs, TaskManagers and contexts.

    `install` and `uninstall` have --json.

    \b
    Examples:
      minflinkd completion install
      minflinkd completion show zsh > _minflinkd
    """


_shell = click.argument("shell", required=False, type=click.Choice(SHELLS))


@completion.command()
@_shell
@output_options
def install(shell: str | None, as_json: bool) -> None:
    """Install completion for SHELL; the default is that of $SHELL. May be repeated, as after an upgrade.

    The script is written into your own directories. If the shell does not load it by itself, one line is added to
    ~/.bashrc or ~/.zshrc.

    \b
    Examples:
      minflinkd completion install
      minflinkd completion install fish
    """
    chosen = shell or _own_shell(os.environ)
    place = place_of(chosen, os.environ, loads_by_itself=any(path.is_file() for path in _BASH_COMPLETION))
    try:
        place.script.parent.mkdir(parents=True, exist_ok=True)
        place.script.write_text(script_of(chosen))
        if place.start_file is not None:
            before = place.start_file.read_text() if place.start_file.is_file() else ""
            place.start_file.write_text(with_line(before, place.line))
    except OSError as error:
        raise _not_written(error) from error
    if as_json:
        start = None if place.start_file is None else str(place.start_file)
        print_json({"shell": chosen, "script": str(place.script), "start-file": start})
        return
    added = "" if place.start_file is None else f", and {place.start_file} has a line that loads it"
    click.echo(f"{place.script} is written{added}. It takes effect in the next {chosen}.")


@completion.command()
@_shell
@output_options
def uninstall(shell: str | None, as_json: bool) -> None:
    """Take away what `install` has written.

    \b
    Examples:
      minflinkd completion uninstall zsh
    """
    chosen = shell or _own_shell(os.environ)
    place = place_of(chosen, os.environ, loads_by_itself=False)
    try:
        there = place.script.is_file()
        place.script.unlink(missing_ok=True)
        if place.start_file is not None and place.start_file.is_file():
            before = place.start_file.read_text()
            if (after := without_line(before)) != before:
                place.start_file.write_text(after)
    except OSError as error:
        raise _not_written(error) from error
    if as_json:
        print_json({"shell": chosen, "script": str(place.script), "removed": there})
    else:
        click.echo(f"{place.script} is deleted." if there else f"There is no {place.script}.")


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS))
def show(shell: str) -> None:
    """Print the script for SHELL, to be installed in another way.

    \b
    Examples:
      minflinkd completion show bash > /etc/bash_completion.d/minflinkd
    """
    click.echo(script_of(shell))


def with_line(content: str, line: str) -> str:
    """Return a start file with the line, once, at its end. Pure."""
    kept = without_line(content)
    gap = "" if not kept or kept.endswith("\n") else "\n"
    return f"{kept}{gap}{_BEGIN}\n{line}\n"


def without_line(content: str) -> str:
    """Return a start file without the line. Pure."""
    lines = content.splitlines(keepends=True)
    marks = {i for i, line in enumerate(lines) if line.rstrip("\n") == _BEGIN}
    return "".join(line for i, line in enumerate(lines) if i not in marks and i - 1 not in marks)


def _own_shell(environ: Mapping[str, str]) -> str:
    """Raises Failure."""
    name = Path(environ.get("SHELL", "")).name
    if name not in SHELLS:
        told = f"$SHELL is {name!r}" if name else "$SHELL is not set"
        raise Failure(f"{told}, so it is not clear for which shell.\nName it: {', '.join(SHELLS)}.", ExitCode.REFUSED)
    return name


def _not_written(error: OSError) -> Failure:
    return Failure(
        f"{error.filename} cannot be written: {error.strerror}.\n"
        "`minflinkd completion show SHELL` prints the script, for you to put where your shell finds it.",
        ExitCode.REFUSED,
    )
