"""What a shell is offered for JOB (E10)."""

from __future__ import annotations

import pytest

from minflinkd.cli.completing import words
from minflinkd.cli.completion import place_of, script_of, with_line, without_line
from minflinkd.cli.job_names import Job

CLICKS = Job("3fa9" + "0" * 28, "clicks", "RUNNING", ended=False)
ORDERS = Job("77d1" + "1" * 28, "orders", "FAILED", ended=True)
ODD = Job("c0c0" + "2" * 28, "two words", "RUNNING", ended=False)


@pytest.mark.parametrize(
    ("incomplete", "ended", "found"),
    [
        ("", True, ["clicks", "orders"]),
        ("", False, ["clicks"]),
        ("cl", True, ["clicks"]),
        ("3f", True, [CLICKS.id]),
        ("c0", True, [ODD.id]),
        ("x", True, []),
    ],
)
def test_names_are_offered_and_ids_if_no_name_begins_so(incomplete: str, ended: bool, found: list[str]) -> None:
    """A name that is no single word of a shell is not offered: its id is."""
    assert list(words([ORDERS, ODD, CLICKS], incomplete, ended=ended)) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    assert "_MINFLINKD_COMPLETE" in script_of(shell)


def test_a_start_file_gets_its_line_once_and_loses_it_again() -> None:
    before = "export A=1"
    once = with_line(before, ". x")
    assert with_line(once, ". x") == once
    assert without_line(once) == before + "\n"
    assert without_line(before) == before


def test_the_script_goes_where_the_shell_looks() -> None:
    home = {"HOME": "/home/u"}
    assert place_of("fish", home, loads_by_itself=False).start_file is None
    assert place_of("bash", home, loads_by_itself=True).start_file is None
    assert str(place_of("bash", home, loads_by_itself=False).start_file) == "/home/u/.bashrc"
    assert str(place_of("zsh", {**home, "ZDOTDIR": "/z"}, loads_by_itself=False).start_file) == "/z/.zshrc"
