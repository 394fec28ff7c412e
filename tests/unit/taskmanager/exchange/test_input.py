"""How far a query may read from an exchange, and which files that includes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange.input import Input
from minflinkd.taskmanager.exchange.log import DataFile, Entry, EntryKind, ExchangeDamaged, LogWriter, entry_path

Make = Callable[..., Input]
A = VertexId("a")


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "log", ("task",))


@pytest.fixture
def reader(tmp_path: Path) -> Make:
    def make(position: int = 0, first: int = 0) -> Input:
        return Input(
            A,
            tmp_path / "log",
            tmp_path / "restored",
            reader="task",
            position=position,
            first=first,
            idle_timeout=None,
        )

    return make


def data(log: LogWriter, *names: str) -> int:
    return log.append(Entry(kind=EntryKind.DATA, files=tuple(DataFile(name, 1, 4) for name in names)))


def barrier(log: LogWriter, number: int) -> None:
    log.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=number))


def end(reader: Input, start: int = 0, *, hold: bool = True) -> int:
    reader.scan(0.0)
    return reader.readable(start, hold=hold)


def names(reader: Input, start: int, until: int) -> list[str]:
    return [file.name for file in reader.data_files(start, until)]


def test_it_holds_at_a_barrier_until_it_is_released(log: LogWriter, reader: Make) -> None:
    """A reader stops at a barrier until the barrier is released (C2)."""
    data(log, "x")
    barrier(log, 1)
    data(log, "y")
    a = reader()
    assert (end(a), end(a, 1)) == (1, 1)
    a.release(1)
    assert end(a, 1) == 3


def test_a_barrier_that_was_released_before_it_came_holds_nothing(log: LogWriter, reader: Make) -> None:
    """The barrier belongs to a checkpoint that has ended (C13)."""
    a = reader()
    a.release(1)
    barrier(log, 1)
    data(log, "x")
    assert end(a) == 2


def test_it_never_holds_at_least_once(log: LogWriter, reader: Make) -> None:
    """With at-least-once checkpoints a reader never stops at a barrier (C3)."""
    data(log, "x")
    barrier(log, 1)
    data(log, "y")
    assert end(reader(), hold=False) == 3


def test_barriers_that_are_passed_cost_no_micro_batch(log: LogWriter, reader: Make) -> None:
    """If the offset moved, Spark would run a micro-batch (C2)."""
    data(log, "x")
    a = reader()
    for number in (1, 2):
        barrier(log, number)
        a.release(number)
    assert end(a, 1) == 1
    data(log, "y")
    assert end(a, 1) == 4


def test_it_does_not_pass_a_barrier_behind_one_that_is_released(log: LogWriter, reader: Make) -> None:
    """Several checkpoints may be in flight (C12)."""
    barrier(log, 1)
    data(log, "x")
    barrier(log, 2)
    data(log, "y")
    a = reader()
    a.release(1)
    assert end(a) == 2


@pytest.mark.parametrize("kind", [EntryKind.WATERMARK, EntryKind.END])
def test_event_time_and_the_end_are_worth_a_micro_batch(log: LogWriter, reader: Make, kind: EntryKind) -> None:
    """A watermark or the end of the input causes a micro-batch, although there is no data (J8a)."""
    log.append(Entry(kind=kind, watermark_ms=1))
    a = reader()
    assert end(a) == 1
    assert names(a, 0, 1) == []


def test_it_yields_what_was_written_between_two_positions(log: LogWriter, reader: Make, tmp_path: Path) -> None:
    """J8."""
    for name in "vwxyz":
        data(log, name, f"{name}2")
    a = reader()
    assert end(a) == 5
    assert names(a, 1, 3) == ["w", "w2", "x", "x2"]
    assert a.data_files(4, 5)[0] == tmp_path / "log" / "data" / "z"


def test_what_was_taken_in_is_not_asked_for_again(log: LogWriter, reader: Make) -> None:
    """Spark asks for the micro-batch that it was restored at, and does not read it (J9)."""
    for name in "xyz":
        data(log, name)
    a = reader()
    end(a)
    a.take_in(2, 0.0)
    assert names(a, 0, 2) == []
    assert names(a, 1, 3) == ["z"]


def test_restored_entries_are_read_from_where_they_were_laid_out(reader: Make, tmp_path: Path) -> None:
    """A barrier among them holds nothing, since nobody will release it (C5)."""
    restored = LogWriter(tmp_path / "restored", (), first=3)
    barrier(restored, 6)
    data(restored, "x")
    log = LogWriter(tmp_path / "log", (), first=5)
    data(log, "y")
    barrier(log, 7)
    a = reader(position=3, first=5)
    assert end(a, 3) == 6
    assert a.data_files(3, 6) == [tmp_path / "restored" / "data" / "x", tmp_path / "log" / "data" / "y"]


@pytest.mark.parametrize("of_the_job_before", [1, 7])
def test_a_restored_barrier_does_not_take_back_the_release_of_a_new_one(
    reader: Make, tmp_path: Path, of_the_job_before: int
) -> None:
    """A job that starts from a savepoint numbers its checkpoints anew. It would wait at the second barrier for ever."""
    restored = LogWriter(tmp_path / "restored", (), first=3)
    barrier(restored, of_the_job_before)
    data(restored, "x")
    log = LogWriter(tmp_path / "log", (), first=5)
    barrier(log, 1)
    data(log, "y")
    a = reader(position=3, first=5)
    assert end(a, 3) == 5
    a.release(1)  # its checkpoint is cut while the first micro-batch runs
    a.take_in(5, 0.0)
    assert names(a, 5, end(a, 5)) == ["y"]


def test_restored_entries_without_their_last_are_an_error(reader: Make, tmp_path: Path) -> None:
    """Nothing is skipped in silence (C5)."""
    data(LogWriter(tmp_path / "restored", (), first=3), "x")
    with pytest.raises(ExchangeDamaged, match="restored entries of a end at 4, not at 5"):
        reader(position=3, first=5).scan(0.0)


def test_an_entry_that_is_gone_is_an_error(log: LogWriter, reader: Make) -> None:
    """Nothing is skipped in silence (J9)."""
    data(log, "x")
    data(log, "y")
    entry_path(log.directory, 0).unlink()
    a = reader()
    assert end(a) == 0
    with pytest.raises(ExchangeDamaged, match="entry 0 of a was never seen"):
        a.data_files(0, 2)
