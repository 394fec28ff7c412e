"""The line that `run --wait` shows is one row of the terminal, however narrow that is."""

from __future__ import annotations

import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from dataclasses import replace
from fcntl import ioctl

import pytest
from rich.cells import cell_len

from minflinkd.cli.text import Part, fit, fit_columns, short, stderr_width
from minflinkd.cli.watch import Progress
from minflinkd.rest.jobs import job_info
from minflinkd.rest.schemas import Checkpoints
from tests.unit.rest.parties import STARTED, details

BUSY = Progress(
    state="RESTARTING",
    tasks_running=11,
    tasks=12,
    rows_in=123_456_789,
    rows_out=98_765_432,
    rows_per_second=123_456.0,
    checkpoints=1234,
    checkpoints_failed=12,
    state_bytes=123 << 20,
    restarts=17,
    repeatedly=False,
)


@pytest.mark.parametrize("width", [20, 40, 60, 72, 80, 100, 132])
@pytest.mark.parametrize("repeatedly", [False, True])
def test_the_line_never_wraps(width: int, repeatedly: bool) -> None:
    """The line never takes more than one row (issue 15, 11)."""
    line = replace(BUSY, repeatedly=repeatedly).line(width, "12 min 34 s")
    assert cell_len(line) <= width
    assert "\n" not in line
    assert line.startswith("RESTARTING"), "the state is what stays to the last"


def test_80_columns_hold_what_matters() -> None:
    line = BUSY.line(80, "12 min 34 s")
    for word in ("tasks 11/12", "123M in", "99M out", "cp 1234, 12 failed", "restarts 17"):
        assert word in line


def test_a_job_that_restarts_repeatedly_says_so_on_80_columns() -> None:
    """Rates and exact numbers give way to it."""
    job = replace(BUSY, repeatedly=True, tasks_running=0, tasks=2, restarts=9, rows_in=5000, rows_out=20)
    assert "restarts 9, repeatedly" in job.line(80, "12 min 34 s")


def test_without_an_edge_nothing_is_left_out() -> None:
    assert BUSY.line() == (
        "RESTARTING   tasks 11/12  rows in 123,456,789, out 98,765,432 (123,456/s)  "
        "checkpoints 1234, 12 failed (123.0 MiB)  restarts 17"
    )


def test_a_row_that_goes_through_an_exchange_is_counted_once() -> None:
    """Rows in are those of the job's sources, rows out those of its sinks: not what its tasks pass on."""
    job = job_info(details(), STARTED + 9000)
    assert [(task.metrics.read_records, task.metrics.write_records) for task in job.vertices] == [(5000, 50), (50, 20)]
    shown = Progress.of(job, Checkpoints())
    assert (shown.rows_in, shown.rows_out) == (5000, 20)
    assert "rows in 5,000, out 20 " in shown.line()


def test_what_has_the_lowest_rank_gives_way_first() -> None:
    parts = [Part(("aaaa", "a"), rank=2), Part(("bbbb", "b"), rank=1)]
    assert [fit(parts, width) for width in (10, 9, 7, 4, 2, 0)] == ["aaaa  bbbb", "aaaa  b", "aaaa  b", "a  b", "a", ""]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (999.6, "1.0k"), (1234, "1.2k"), (12345, "12k"), (9_999_999, "10M"), (3.4e9, "3.4G")],
)
def test_numbers_are_short(count: float, text: str) -> None:
    assert short(count) == text


@pytest.fixture
def terminal() -> Iterator[int]:
    """A terminal's file with 63 columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 63, 0, 0))
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_the_width_is_that_of_the_terminal_in_which_stderr_is_shown(
    terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The width is stderr's, even if stdout is a pipe and no live line is drawn."""
    with open(terminal, "w", closefd=False) as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        assert stderr_width() == 63


@pytest.mark.parametrize(("columns", "width"), [(None, None), ("100", 100), ("wide", None), ("0", None)])
def test_a_log_has_no_edge_unless_columns_says_so(
    columns: str | None, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert stderr_width() == width


@pytest.mark.parametrize(
    ("wanted", "room", "widths"),
    [
        pytest.param([32, 24, 7], 80, [32, 24, 7], id="all fits"),
        pytest.param([32, 40, 7], 80, [32, 35, 7], id="the longest is shortened"),
        pytest.param([32, 60, 7, 9, 19], 110, [32, 31, 7, 9, 19], id="short ones stay whole"),
        pytest.param([32, 60, 7, 9, 19], 80, [32, 23, 7, 9], id="the last is left out"),
        pytest.param([32, 60, 7], 40, [32], id="the id is never left out"),
    ],
)
def test_a_narrow_table_shortens_long_cells_and_then_leaves_out_the_last_columns(
    wanted: list[int], room: int, widths: list[int]
) -> None:
    """`R...` in place of RUNNING would help nobody. The id, which other commands take, stays whole."""
    assert fit_columns(wanted, room) == widths
